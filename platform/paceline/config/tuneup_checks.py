"""Checks that `tuneup.*` is consistent with itself and with the rest of the config."""

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.config.disagreement import Disagreement, contradiction
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.fields import is_key, nearest_key
from paceline.config.hints import nearest
from paceline.config.source import Key
from paceline.config.space import LARGEST_WHOLE
from paceline.config.technique_names import all_names, is_technique
from paceline.config.tuneup import TuneupConfig
from paceline.errors import Problem

TECHNIQUES, SEEDS = "tuneup.techniques", "tuneup.seeds"
NOT_COMPUTED = ("name", "seed", "storage", "sweep", "scale", "tuneup")
"""Sections and fields without effect on the training computation: name, seed, storage and other commands."""
OF_THE_WORKERS = "scaling"
MAY_CHANGE = "scaling.max_failures"
"""Only field of `scaling` that does not need other workers."""


def _tuneup(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.tuneup is None:
        return
    for name, overrides in config.tuneup.techniques.items():
        for key in overrides:
            yield from _technique_key(config, f"{TECHNIQUES}.{name}", overrides, key)
    yield from _seeds(config, config.tuneup)
    yield from _named(config.tuneup)


def _technique_key(
    config: ExperimentSchema, place: str, overrides: Mapping[str, Any], dotted: str
) -> Iterator[Disagreement]:
    key: Key = tuple(dotted.split("."))
    tree = _tree(config, overrides, str(key[0]))
    if key[0] in NOT_COMPUTED:
        reason = f"{key[0]} does not change how a training is computed, so there is nothing to compare"
        yield contradiction(reason, f"take {dotted} out", place)
    elif key[0] == OF_THE_WORKERS and dotted != MAY_CHANGE:
        reason = f"{dotted} needs other workers, and all techniques are measured on the same ones"
        yield contradiction(reason, f"take {dotted} out, and compare by a sweep over it", place)
    elif _is_object(overrides[dotted]):
        reason = f"{dotted} is a Python object, which cannot be sent to another process"
        yield contradiction(reason, "name it by text like 'my_pkg.nets:build'", place)
    elif not is_key(tree, key):
        problem = Problem("unknown-key", f"there is no such key as {dotted}", place, hint=nearest_key(tree, key))
        yield Disagreement(problem, (place,))


def _is_object(value: Any) -> bool:
    return callable(value) or (isinstance(value, Mapping) and any(map(_is_object, value.values())))


def _tree(config: ExperimentSchema, overrides: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the tree in which the key of a technique must exist: the config, with the technique's component if any."""
    own = {name: getattr(config, name) for name in type(config).model_fields}
    chosen = {name: overrides[f"{section}.{name}"] for name in ("name", "path") if f"{section}.{name}" in overrides}
    return {**own, section: chosen} if chosen else own


def _seeds(config: ExperimentSchema, tuneup: TuneupConfig) -> Iterator[Disagreement]:
    if config.seed + tuneup.seeds - 1 > LARGEST_WHOLE:
        reason = f"the last of {tuneup.seeds} seeds from {config.seed} is more than 2^63 - 1"
        yield contradiction(reason, "lower seed", SEEDS, "seed")


def _named(tuneup: TuneupConfig) -> Iterator[Disagreement]:
    names = {f"tuneup.only.{number}": name for number, name in enumerate(tuneup.only or ())}
    names |= {f"tuneup.skip.{number}": name for number, name in enumerate(tuneup.skip)}
    for place, name in names.items():
        if is_technique(name) or name in tuneup.techniques:
            continue
        known = [*tuneup.techniques, *all_names()]
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
        yield Disagreement(Problem("unknown-technique", f"there is no technique {name}", place, hint=hint), (place,))


TUNEUP_CHECKS = (_tuneup,)
"""Checks of `tuneup.*`; each yields the contradictions in a config."""
