"""The user's own callback, by import path."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback
from paceline.config.imports import PATH_PATTERN, Called, Imported, check_path, path_of
from paceline.errors import UnusableCode


def _check(value: Any) -> Any:
    return value if isinstance(value, Callback) else check_path(value)


def _text(value: Any) -> str:
    return str(value) if isinstance(value, str) else path_of(type(value) if isinstance(value, Callback) else value)


class CalledCallbackConfig(Called, CallbackConfig):
    """A callable (a `Callback` class, say) that takes `args` and returns a `Callback`."""

    def build(self) -> Callback:
        """Call the user's builder.

        Raises:
            UnusableCode: it returned no callback.
        """
        callback = self.target if isinstance(self.target, Callback) else self.call()
        if not isinstance(callback, Callback):
            message = f"{self.chosen('callbacks')} returned {type(callback).__name__}, not a paceline.Callback"
            raise UnusableCode(message, "not-a-callback")
        return callback


class ImportedCallbackConfig(Imported, CalledCallbackConfig):
    """`path` leads to a callable that takes `args` and returns a `paceline.Callback`, such as a subclass of it."""

    path: Annotated[
        Any,
        BeforeValidator(_check),
        PlainSerializer(_text, return_type=str, when_used="json"),
        WithJsonSchema({"type": "string", "pattern": PATH_PATTERN, "examples": ["my_pkg.callbacks:Plot"]}),
    ] = Field()
    """`module:Class` of user code. From Python, also the callback object itself."""
