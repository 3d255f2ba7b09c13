"""Turns pydantic's errors into problems with a plain reason, the key, its place in the file and a hint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from pydantic_core import ErrorDetails

from paceline.config.base import Component, Section
from paceline.config.components import COMPONENT_LISTS, COMPONENT_SECTIONS, components_in, is_component
from paceline.config.constraints import CONSTRAINT_ERROR
from paceline.config.documentation import documentation
from paceline.config.fields import chosen_class, component_names, nearest_key, section_class
from paceline.config.hints import NOT_FINITE, choices, either, hint_for, listed, near_and_all, show
from paceline.config.source import Key, Source, dotted
from paceline.config.space import AXES, AXIS_ERROR
from paceline.errors import Problem

_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "a mapping",
    "none_required": "null",
    "string_type": "text",
    "string_unicode": "text of valid characters",
    "tuple_type": "a list",
}
_LIMITS = {
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "at least {min_length} characters long",
    "too_long": "at most {max_length} long",
    "too_short": "at least {min_length} long",
}


@dataclass(frozen=True)
class Places:
    """Places of the values of a tree: the file, or overrides."""

    source: Source | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Place of each overridden key; empty for a key set from Python."""

    def of(self, key: str) -> str:
        """Return the place of a key, or of its nearest enclosing key."""
        by_override = self._override(key)
        if by_override is not None:
            return self.overrides[by_override]
        return self.source.place(key) if self.source else ""

    def order(self, problem: Problem) -> tuple[int, int, int, str]:
        """Return the sort key of a problem: problems of the file by position, then those of overrides as given."""
        by_override = self._override(problem.key)
        if by_override is not None:
            return 1, list(self.overrides).index(by_override), 0, problem.key
        line, column = self.source.position(problem.key) if self.source else (0, 0)
        return 0, line, column, problem.key

    def _override(self, key: str) -> str | None:
        above = [name for name in self.overrides if key == name or key.startswith(f"{name}.")]
        if above:
            return max(above, key=len)
        if self.source and self.source.has(key):
            return None
        return next((name for name in self.overrides if key and name.startswith(f"{key}.")), None)


def explain(errors: Sequence[ErrorDetails], tree: Any, places: Places) -> list[Problem]:
    """Return the problems behind pydantic's errors; errors of several variants of a union are one problem.

    Where a list or mapping fits one variant but for a value in it, only that value is a problem.
    """
    keyed = [(_key(error, tree), error) for error in errors]
    keyed = [(key, error) for key, error in keyed if not (_is_another_type(error) and _is_above(key, keyed))]
    keyed.sort(key=lambda pair: dotted(pair[0]))
    found = [_explain_one(key, [e for _, e in group], tree) for key, group in groupby(keyed, key=lambda pair: pair[0])]
    return [replace(problem, place=places.of(problem.key)) for problem in found]


def _is_another_type(error: ErrorDetails) -> bool:
    return error["type"] == "literal_error" and isinstance(error["input"], list | Mapping)


def _is_above(key: Key, keyed: Sequence[tuple[Key, ErrorDetails]]) -> bool:
    return any(len(other) > len(key) and other[: len(key)] == key for other, _ in keyed)


def selector_problems(tree: Any) -> list[Problem]:
    """Return a problem for each component section with both `name` and `path`."""
    found = components_in(tree) if isinstance(tree, Mapping) else ()
    sections = {key: value for key, value in found if isinstance(value, Mapping) and not key.startswith("metrics.")}
    reason = "has both name and path, which choose different things"
    hint = "keep name for what Paceline ships, or path for custom code"
    return [
        Problem("two-components", reason, section, hint=hint)
        for section, value in sections.items()
        if "name" in value and "path" in value
    ]


def _key(error: ErrorDetails, tree: Any) -> Key:
    """Return the key of an error: its location without the union tags that pydantic adds."""
    location = error["loc"]
    if len(location) > 1 and location[0] in COMPONENT_SECTIONS:
        location = (location[0], *location[2:])
    elif len(location) > 2 and location[0] in COMPONENT_LISTS and location[0] != "metrics":
        location = (*location[:2], *location[3:])
    key: Key = ()
    for index, part in enumerate(location):
        named = index == len(location) - 1 and error["type"] in ("missing", "extra_forbidden")
        if named or index == 0 or _has(tree, part):
            key = (*key, part)
            tree = _child(tree, part)
    return key


def _has(tree: Any, part: str | int) -> bool:
    if isinstance(tree, Section):
        return part in type(tree).model_fields
    return part in tree if isinstance(tree, Mapping) else isinstance(tree, list) and isinstance(part, int)


def _child(tree: Any, part: str | int) -> Any:
    if isinstance(tree, Section):
        return getattr(tree, str(part), None)
    if isinstance(tree, list):
        return tree[part] if isinstance(part, int) and part < len(tree) else None
    return tree.get(part) if isinstance(tree, Mapping) else None


def _explain_one(key: Key, errors: list[ErrorDetails], tree: Any) -> Problem:
    error = errors[0]
    kind = error["type"]
    if kind == "missing":
        return Problem("missing-key", "is missing", dotted(key), hint=_missing_hint(key, tree))
    if kind == "extra_forbidden":
        return Problem("unknown-key", "there is no such key", dotted(key), hint=nearest_key(tree, key))
    if kind.startswith("union_tag") or (is_component(key) and key[0] != "metrics"):
        return _component_problem(key, error["input"])
    if kind == AXIS_ERROR:
        return Problem("bad-axis", error["ctx"]["reason"], dotted(key), hint=error["ctx"]["hint"])
    if kind == CONSTRAINT_ERROR:
        return Problem("bad-constraint", error["ctx"]["reason"], dotted(key), hint=error["ctx"]["hint"])
    if kind == "value_error":
        code = "import-path" if key[-1:] == ("path",) else "bad-value"
        return Problem(code, str(error.get("ctx", {}).get("error", error["msg"])), dotted(key))
    if kind == "string_pattern_mismatch":
        return Problem("bad-text", f"{show(error['input'])} is not allowed here", dotted(key), hint=_about(key, tree))
    return _value_problem(key, errors)


def _value_problem(key: Key, errors: list[ErrorDetails]) -> Problem:
    value = errors[0]["input"]
    wanted = list(dict.fromkeys(_expected(error) for error in errors))
    if wanted == [""]:
        return Problem("bad-value", errors[0]["msg"].lower(), dotted(key))
    allowed = [choice for error in errors for choice in choices(error)]
    reason = f"must be {' or '.join(filter(None, wanted))}, not {show(value)}"
    kinds = {error["type"] for error in errors}
    is_argument = len(key) > 2 and key[0] in COMPONENT_SECTIONS and key[1] == "args"
    hint = NOT_FINITE if is_argument and "finite_number" in kinds else hint_for(value, kinds, allowed)
    if key == ("sweep", "seeds") and isinstance(value, list):
        hint = f"write how many there are to be, such as seeds: {max(2, len(value))}"
    return Problem(_code(errors), reason, dotted(key), hint=hint)


def _expected(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in _LIMITS:
        return _LIMITS[kind].format(**{name: _short(limit) for name, limit in context.items()})
    if kind == "literal_error":
        return either(choices(error))
    return "a finite number" if kind == "finite_number" else _TYPES.get(kind, "")


def _code(errors: list[ErrorDetails]) -> str:
    kinds = {error["type"] for error in errors}
    if "finite_number" in kinds:
        return "not-finite"
    if kinds & set(_LIMITS):
        return "out-of-range"
    value = errors[0]["input"]
    is_choice = isinstance(value, str) or (kinds == {"literal_error"} and not isinstance(value, list | Mapping))
    return "bad-choice" if is_choice and "literal_error" in kinds else "wrong-type"


def _short(limit: Any) -> str:
    return f"{limit:g}" if isinstance(limit, float) else str(limit)


def _component_problem(key: Key, value: Any) -> Problem:
    section, place = str(key[0]), dotted(key)
    names = component_names(section)
    if isinstance(value, Component):
        return Problem("wrong-type", f"{type(value).__name__} cannot be used as {section}", place)
    if not isinstance(value, Mapping):
        return Problem("wrong-type", f"must be a mapping, not {show(value)}", place, hint=_mapping_hint(section, value))
    if "name" not in value:
        hint = f"write name: one of {listed(names)}; or path: 'my_pkg.module:function'"
        return Problem("no-component", "has neither name nor path", place, hint=hint)
    name = value["name"]
    if not isinstance(name, str):
        hint = f"one of {listed(names)}"
        return Problem("wrong-type", f"must be text, not {show(name)}", f"{place}.name", hint=hint)
    reason = f"there is no {section} {show(name)}"
    return Problem("unknown-component", reason, f"{place}.name", hint=near_and_all(name, names))


def _mapping_hint(section: str, value: Any) -> str:
    if isinstance(value, str) and ":" in value:
        return f"write {section}: {{path: {value[:60]!r}}}"
    name = value[:60] if isinstance(value, str) else next(iter(component_names(section)), "...")
    return f"write {section}: {{name: {name}}}"


def _missing_hint(key: Key, tree: Any) -> str:
    if len(key) == 1 and key[0] in COMPONENT_SECTIONS:
        return f"write {key[0]}: {{name: ...}} with one of {listed(component_names(str(key[0])))}"
    return _about(key, tree)


def _about(key: Key, tree: Any) -> str:
    """Return the documentation of a field on one line; empty if it is not known."""
    cls = section_class(tree, key[:-1])
    return " ".join(documentation(cls).get(str(key[-1]), "").split()) if cls else ""


def broken_keys(problems: Sequence[Problem], tree: Any) -> list[Key]:
    """Return the keys with unusable values; for an unknown component, its whole section."""
    keys = [_parts(problem.key, tree) for problem in problems if problem.key]
    unknown = [key[:1] for key in keys if key[0] in COMPONENT_SECTIONS and not _chosen(key[0], tree)]
    sweep: list[Key] = [("sweep",)] if _leaves_no_axis(keys, tree) else []
    return [*unknown, *sweep, *keys]


def _parts(key: str, tree: Any) -> Key:
    """Return the parts of a dotted key; the name of an axis is one part, dots included."""
    parts = tuple(key.split("."))
    if not key.startswith(AXES):
        return parts
    axis = next((name for name in _axes(tree) if f"{key}.".startswith(f"{AXES}{name}.")), None)
    return parts if axis is None else ("sweep", "space", axis)


def _leaves_no_axis(keys: Sequence[Key], tree: Any) -> bool:
    """Return True if the sweep has no valid axis, so that the whole section has to be removed."""
    return ("sweep", "space") in keys or {key[2] for key in keys if key[:2] == ("sweep", "space")} == set(_axes(tree))


def _axes(tree: Any) -> list[str]:
    space = tree["sweep"].get("space") if isinstance(tree.get("sweep"), Mapping) else None
    return [str(name) for name in space] if isinstance(space, Mapping) else []


def _chosen(section: str, tree: Any) -> bool:
    value = tree.get(section)
    both = isinstance(value, Mapping) and "name" in value and "path" in value
    return not both and chosen_class(section, value) is not None
