"""The base of every section of the config."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, field_validator

from paceline.config.plain import check_text
from paceline.redaction import redact, redact_tree


class Section(BaseModel):
    """A frozen part of the config tree: unknown keys are errors, numbers are finite, no type is coerced.

    A field's docstring is its documentation: it ends up in the JSON Schema and so in the user's editor, see
    `documentation`.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @field_validator("*")
    @classmethod
    def _text_is_valid(cls, value: Any) -> Any:
        return check_text(value)

    def __repr__(self) -> str:
        return redact(super().__repr__())

    def __str__(self) -> str:
        return redact(super().__str__())

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """The fields for `repr`, without secrets."""
        for name, value in super().__repr_args__():
            yield name, redact_tree(value, name or "")


class Component(Section):
    """A section that is chosen by `name` (shipped with Paceline) or by `path` (user code).

    A shipped component is one file in `models/`, `data/`, `tasks/`, `optimizers/` or `lr_schedulers/` whose class
    derives from this one, declares `name: Literal[...]` and builds the thing itself. It is found by `registry`.
    Torch may be imported inside the building method only, so that a config is checked without it.
    """

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Fields of other sections that have no effect with this component, by dotted key, and why."""

    @classmethod
    def of(cls, chosen: "Component") -> Self:
        """Return a component that a config has chosen as what it is: one of the kind `cls`.

        For the sections that the schema knows only as components, such as `TaskConfig.of(config.task)`.
        """
        assert isinstance(chosen, cls), f"the schema takes {type(chosen).__name__} in place of {cls.__name__}"
        return chosen

    @classmethod
    def selectors(cls) -> tuple[str, ...]:
        """The values of `name` that choose this class; empty for the one that is chosen by `path`."""
        field = cls.model_fields.get("name")
        if field is None:
            return ()
        return tuple(str(value) for value in get_args(field.annotation))

    def describe(self) -> str:
        """How the component is called in tables: its name, or its import path."""
        chosen: Any = getattr(self, "name", None) or getattr(self, "path", "?")
        return str(chosen)
