"""Base class of the callback configs."""

from typing import TYPE_CHECKING

from paceline.config.base import Component

if TYPE_CHECKING:
    from paceline.callbacks.callback import Callback


class CallbackConfig(Component):
    """Builds a callback. Every worker builds its own."""

    def build(self) -> "Callback":
        """The callback."""
        raise NotImplementedError
