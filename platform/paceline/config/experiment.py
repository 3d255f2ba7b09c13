"""Config of one experiment, and its validation."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import escape
from typing import Any, Self

from pydantic import ValidationError, model_validator

from paceline.config.checks import ERROR_TYPE, check_agreement
from paceline.config.components import COMPONENT_SECTIONS
from paceline.config.disagreement import Disagreement
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.overrides import apply_overrides, copy_tree, tree_of
from paceline.config.problems import Places, broken_keys, explain, selector_problems
from paceline.config.source import Source
from paceline.errors import ConfigError, Problem
from paceline.redaction import redact, redact_tree

LONGEST_SHOWN = 120
"""Maximum number of characters of a value shown in a notebook."""


class ExperimentConfig(ExperimentSchema):
    """Everything that decides what one training run computes, where, and how it is recorded."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        check_agreement(self)
        return self

    def with_overrides(self, overrides: Mapping[str, Any]) -> "ExperimentConfig":
        """Return a changed copy, validated again as a whole. This is the only way to change a config.

        Args:
            overrides: dotted key to value, such as `{"trainer.precision": "bf16-mixed"}`. A section may be replaced
                by a mapping. Setting `X.name` or `X.path` switches the component, see `overrides`.

        Raises:
            ConfigError: a key does not exist, or the result is not a valid config.
        """
        # Only what was chosen, not the defaults: another component then comes with its own.
        return validate(apply_overrides(tree_of(self), overrides))

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(key)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
            for key, text in shown_fields(tree_of(self))
        )
        return f"<table>{rows}</table><p>All other fields have their defaults.</p>"


def shown_fields(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and shortened text of each value of a tree, without secrets."""
    for name, value in redact_tree(tree, above.rpartition(".")[2]).items():
        key = f"{above}.{name}" if above else name
        if isinstance(value, Mapping) and value:
            yield from shown_fields(value, key)
        else:
            text = value if isinstance(value, str) else redact(repr(value))
            yield key, text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def validate(
    tree: Mapping[str, Any], source: Source | None = None, overrides: Mapping[str, str] | None = None
) -> ExperimentConfig:
    """Check a config tree as a whole.

    Args:
        tree: plain values, as in a file.
        source: file of the values, for the places in messages.
        overrides: place of each key that no longer has the file's value; empty text for one set from Python.

    Raises:
        ConfigError: the tree is not a valid config; with every problem found.
    """
    places = Places(source, overrides or {})
    config, problems = try_validate(tree, places)
    if config is None:
        raise ConfigError(sorted(problems, key=places.order))
    return config


def try_validate(tree: Mapping[str, Any], places: Places) -> tuple[ExperimentConfig | None, list[Problem]]:
    """Return the config of a tree, or None and every problem found."""
    try:
        return ExperimentConfig.model_validate(tree), []
    except ValidationError as error:
        errors = error.errors(include_url=False)
    chosen_twice = [replace(problem, place=places.of(problem.key)) for problem in selector_problems(tree)]
    twice = {problem.key for problem in chosen_twice}
    plain = [each for each in errors if each["type"] != ERROR_TYPE and not (each["loc"] and each["loc"][0] in twice)]
    problems = [*chosen_twice, *explain(plain, tree, places)]
    found = [each for error in errors if error["type"] == ERROR_TYPE for each in error["ctx"]["found"]]
    found = found or _disagreements_beside(problems, tree)
    return None, [*problems, *(replace(each.problem, place=places.of(each.problem.key)) for each in found)]


def _disagreements_beside(problems: list[Problem], tree: Any) -> list[Disagreement]:
    """Return contradictions between the valid fields, so that they are reported together with the invalid fields."""
    if not isinstance(tree, Mapping):
        return []
    rest = copy_tree(tree)
    broken = broken_keys(problems, tree)
    for key in broken:
        _remove(rest, [str(part) for part in key])
    placeholders: dict[str, Any] = {section: {"path": "a:b"} for section in COMPONENT_SECTIONS}
    required = {
        name: placeholders.get(name, "x")
        for name, field in ExperimentConfig.model_fields.items()
        if field.is_required()
    }
    try:
        ExperimentConfig.model_validate({**required, **rest})
    except ValidationError as error:
        found: list[Disagreement] = [
            each for one in error.errors(include_url=False) if one["type"] == ERROR_TYPE for each in one["ctx"]["found"]
        ]
        gone = [".".join(str(part) for part in key) for key in broken]
        return [each for each in found if not any(_within(key, gone) for key in each.keys)]
    return []


def _within(key: str, sections: list[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def _remove(tree: Any, key: list[str]) -> None:
    for part in key[:-1]:
        tree = tree.get(part) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(key[-1], None)
