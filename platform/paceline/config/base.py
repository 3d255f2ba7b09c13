"""The base of every section of the config."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self, get_args

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
        """Yield the fields for `repr`, without secrets."""
        for name, value in super().__repr_args__():
            yield name, redact_tree(value, name or "")


class Contradiction(NamedTuple):
    """Fields of one component that are each valid, but not together."""

    reason: str
    hint: str
    fields: tuple[str, ...]
    """The first is the one to change."""


class Component(Section):
    """A section that is chosen by `name` (shipped with Paceline) or by `path` (user code).

    A shipped component is one file in `models/`, `data/`, `tasks/`, `optimizers/` or `lr_schedulers/` whose class
    derives from this one, declares `name: Literal[...]` and builds the object. `registry` finds it. Torch may be
    imported only inside the building method, so that a config can be checked without torch.
    """

    no_effect: ClassVar[Mapping[str, str]] = {}
    """Fields of other sections that have no effect with this component, by dotted key, and why."""
    metric_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of a callback that name a metric of the evaluation, without which it has no effect."""

    @classmethod
    def of(cls, chosen: "Component") -> Self:
        """Return a component of a config, typed as the kind `cls`.

        Needed for sections that the schema types only as `Component`, such as `TaskConfig.of(config.task)`.
        """
        assert isinstance(chosen, cls), f"the schema takes {type(chosen).__name__} in place of {cls.__name__}"
        return chosen

    @classmethod
    def selectors(cls) -> tuple[str, ...]:
        """Return the values of `name` that choose this class; empty for a class that is chosen by `path`."""
        field = cls.model_fields.get("name")
        if field is None:
            return ()
        return tuple(str(value) for value in get_args(field.annotation))

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the contradictions between fields of this component."""
        yield from ()

    def describe(self) -> str:
        """Return the component's label in tables: its name, or its import path."""
        chosen: Any = getattr(self, "name", None) or getattr(self, "path", "?")
        return str(chosen)
