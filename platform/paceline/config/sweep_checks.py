"""Checks that `sweep.*` is consistent with itself and with the rest of the config."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from pydantic_core import PydanticCustomError

from paceline.config.constraints import Constraint
from paceline.config.disagreement import Disagreement, contradiction
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.fields import is_key, nearest_key, value_types
from paceline.config.lightning import BECAUSE, OWN_OPTIMIZER, uses_own_optimizer
from paceline.config.source import Key
from paceline.config.space import LARGEST_WHOLE, LogUniform
from paceline.config.sweep import SweepConfig
from paceline.errors import Problem

LARGEST_SWEEP = 10_000
"""Largest number of trials of a sweep."""
SPACE, SEARCH, SCHEDULER, SAMPLES = "sweep.space", "sweep.search", "sweep.scheduler", "sweep.num_samples"
METRIC, MODE, SEEDS, FIRST_RUNG = "sweep.metric", "sweep.mode", "sweep.seeds", "sweep.first_rung"
CONSTRAINTS = "sweep.constraints"
BATCH_AXIS, LR_AXIS = "data.global_batch_size", "optimizer.lr"
"""Axes of `search: scale`."""
NOT_COMPUTED = ("name", "storage", "tracking", "checkpoint", "sweep", "scale", "tuneup")
"""Sections and fields that decide how trials are stored and recorded, without effect on the numerics."""
PBT_SECTIONS = ("optimizer", "lr_scheduler")


def axis_key(axis: str) -> str:
    """Return the dotted key of an axis."""
    return f"{SPACE}.{axis}"


def _axes_exist(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    for axis in sweep.space:
        key: Key = tuple(axis.split("."))
        trees = list(_trees(config, sweep, key))
        if key[0] in NOT_COMPUTED:
            reason = f"{key[0]} does not change the numerics, so there is nothing to compare"
            hint = f"take the axis out, and set {axis} for the whole sweep" if key[0] != "sweep" else "take it out"
            yield contradiction(reason, hint, axis_key(axis))
        elif not any(is_key(tree, key) for tree in trees):
            problem = Problem("unknown-key", "there is no such key", axis_key(axis), hint=nearest_key(trees[0], key))
            yield Disagreement(problem, (axis_key(axis), str(key[0])))


def _trees(config: ExperimentSchema, sweep: SweepConfig, key: Key) -> Iterator[dict[str, Any]]:
    """Yield the trees in which the key of an axis may exist: the config, also with each component that axes choose."""
    own = {name: getattr(config, name) for name in type(config).model_fields}
    yield own
    for selector in ("name", "path"):
        values = sweep.lists.get(f"{key[0]}.{selector}", [])
        yield from ({**own, str(key[0]): {selector: value}} for value in values if isinstance(value, str))


def _ranges_fit(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    for axis, numbers in sweep.ranges.items():
        key: Key = tuple(axis.split("."))
        taken = {kind for tree in _trees(config, sweep, key) for kind in value_types(tree, key)}
        if not taken or taken & {float, Any} or (int in taken and numbers.is_whole):
            continue
        if int in taken:
            reason, hint = f"{axis} takes whole numbers alone", "write randint, or quniform with whole numbers"
        else:
            reason, hint = f"is a range of numbers, which {axis} does not take", "write a list of values"
        yield contradiction(reason, hint, axis_key(axis))


def _axes_are_apart(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    for axis in sweep.space:
        for other in sweep.space:
            if other.startswith(f"{axis}."):
                reason = f"is a part of the axis {axis}, which sets it, too"
                hint = f"keep one of the two, or write it into the values of {axis}"
                yield contradiction(reason, hint, axis_key(other), axis_key(axis))


def _axes_are_used(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    sections = {axis: axis.partition(".")[0] for axis in sweep.space}
    if not uses_own_optimizer(config) or "task" in sections.values():
        return
    for axis, section in sections.items():
        if section == "optimizer":
            hint = f"sweep an argument of the model, such as model.args.lr, or write {OWN_OPTIMIZER}: false"
            yield contradiction(f"has no effect: {BECAUSE}", hint, axis_key(axis), OWN_OPTIMIZER)


def _seeds(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    if sweep.seeds > 1 and "seed" in sweep.space:
        reason = f"is an axis, while sweep.seeds {sweep.seeds} sets the seed, too"
        yield contradiction(reason, "keep one of the two", axis_key("seed"), SEEDS)
    elif config.seed + sweep.seeds - 1 > LARGEST_WHOLE:
        reason = f"the last of {sweep.seeds} seeds from {config.seed} is more than 2^63 - 1"
        yield contradiction(reason, "lower seed", SEEDS, "seed")


def _objectives(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    metrics = sweep.metrics
    twice = sorted({metric for metric in metrics if metrics.count(metric) > 1})
    if twice:
        yield contradiction(f"{', '.join(twice)} is in the list twice", "keep one", METRIC)
    modes = 1 if isinstance(sweep.mode, str) else len(metrics) if sweep.mode is None else len(sweep.mode)
    if modes != len(metrics):
        reason = f"there are {_count(modes, 'mode')} for {_count(len(metrics), 'metric')}"
        yield contradiction(reason, f"write a list of {len(metrics)}, or null to follow the names", MODE, METRIC)
    if len(metrics) > 1 and sweep.scheduler != "none":
        reason = f"{sweep.scheduler} compares trials by one metric, not by {len(metrics)}"
        yield contradiction(reason, "write scheduler: none, or keep one metric", SCHEDULER, METRIC)


def _constraints(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    for metric, limit in (sweep.constraints or {}).items():
        try:
            Constraint.parse(metric, limit)
        except PydanticCustomError as error:
            context = error.context or {}
            key = f"{CONSTRAINTS}.{metric}"
            yield Disagreement(Problem("bad-constraint", context["reason"], key, hint=context["hint"]), (key,))


def _search(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    if sweep.search == "grid":
        for axis in sweep.ranges:
            reason = "is a range, of which a grid cannot try every value"
            hint = "write search: random with num_samples, or a list of values"
            yield contradiction(reason, hint, axis_key(axis), SEARCH)
        if sweep.num_samples is not None:
            reason = f"a grid has as many points as its lists make, not {sweep.num_samples}"
            yield contradiction(reason, "write search: random, or num_samples: null", SAMPLES, SEARCH)
    elif sweep.num_samples is None:
        reason = f"{sweep.search} needs to know how many points to try"
        yield contradiction(reason, "write a number, such as num_samples: 20", SAMPLES, SEARCH)


def _valley(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    if sweep.search != "scale":
        return
    sizes = sweep.lists.get(BATCH_AXIS, [])
    if not sizes or not all(type(size) is int for size in sizes):
        reason = f"search: scale goes along a list of batch sizes, and {BATCH_AXIS} is none"
        yield contradiction(reason, f"add {BATCH_AXIS}: [64, 128, 256], for example", SPACE, SEARCH)
    if not isinstance(sweep.space.get(LR_AXIS), LogUniform):
        reason = f"search: scale tries learning rates of a range, and {LR_AXIS} is none with a logarithm"
        yield contradiction(reason, f"add {LR_AXIS}: {{loguniform: [0.001, 1]}}, for example", SPACE, SEARCH)
    if not isinstance(config.data.global_batch_size, int):
        reason = "search: scale needs the batch size that the config's learning rate belongs to"
        yield contradiction(reason, "write a number", BATCH_AXIS, SEARCH)


def _size(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    points = _points(sweep)
    if points is None or points * sweep.seeds <= LARGEST_SWEEP:
        return
    seeds = f" and {sweep.seeds} seeds of each" if sweep.seeds > 1 else ""
    reason = f"{points:,} points{seeds} are {points * sweep.seeds:,} trials, more than {LARGEST_SWEEP:,}"
    if sweep.search == "grid":
        hint = "shorten the lists, or write search: random with num_samples"
        yield contradiction(reason, hint, SPACE, SEEDS, SEARCH)
    else:
        yield contradiction(reason, "lower num_samples or seeds", SAMPLES, SEEDS, SEARCH)


def _points(sweep: SweepConfig) -> int | None:
    """Return the number of settings, without seeds; None if it is not known."""
    if sweep.search != "grid":
        return sweep.num_samples
    return None if sweep.ranges else prod(len(values) for values in sweep.lists.values())


def _rungs(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    if sweep.scheduler != "none" and sweep.budget_unit == "seconds" and sweep.first_rung is None:
        reason = "is needed with budget_unit seconds, since nobody knows how long a training takes"
        hint = "write the seconds, such as first_rung: 60, or budget_unit: samples"
        yield contradiction(reason, hint, FIRST_RUNG, "sweep.budget_unit", SCHEDULER)


def _population(config: ExperimentSchema, sweep: SweepConfig) -> Iterator[Disagreement]:
    if sweep.scheduler != "pbt":
        return
    if sweep.search == "optuna":
        reason = "pbt changes the values by itself, and so does optuna"
        yield contradiction(reason, "write search: random, or scheduler: asha", SEARCH, SCHEDULER)
    if sweep.seeds > 1:
        reason = "with pbt trials continue from each other's state, so that a seed says nothing about one"
        yield contradiction(reason, "write seeds: 1, and raise num_samples", SEEDS, SCHEDULER)
    if _points(sweep) == 1:
        reason = "pbt needs at least 2 trials, to continue from each other's state, and there is 1"
        key, hint = (
            (SPACE, "write more values") if sweep.search == "grid" else (SAMPLES, "write num_samples: 4 or more")
        )
        yield contradiction(reason, hint, key, SCHEDULER, SEARCH)
    for axis in sweep.space:
        if not _can_continue(config, sweep, axis):
            reason = "with pbt a trial continues from another's weights and optimizer state, which this may not fit"
            hint = (
                "sweep numbers of optimizer and lr_scheduler or trainer.max_grad_norm, such as optimizer.lr, or write "
                "scheduler: asha"
            )
            yield contradiction(reason, hint, axis_key(axis), SCHEDULER)


def _can_continue(config: ExperimentSchema, sweep: SweepConfig, axis: str) -> bool:
    """Return True if a training can continue with another value of an axis."""
    if axis == "optimizer.lr_scaling":
        # its running means are part of the state
        return "adascale" not in [config.optimizer.lr_scaling, *sweep.lists.get(axis, [])]
    section, _, name = axis.partition(".")
    own = {part: getattr(config, part) for part in PBT_SECTIONS}
    taken = value_types(own, (section, name)) if section in PBT_SECTIONS else set()
    return axis == "trainer.max_grad_norm" or (bool(taken) and taken <= {int, float})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


_CHECKS: tuple[Callable[[ExperimentSchema, SweepConfig], Iterator[Disagreement]], ...] = (
    _axes_exist,
    _ranges_fit,
    _axes_are_apart,
    _axes_are_used,
    _seeds,
    _objectives,
    _constraints,
    _search,
    _valley,
    _size,
    _rungs,
    _population,
)


def _sweep(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.sweep is not None:
        for check in _CHECKS:
            yield from check(config, config.sweep)


SWEEP_CHECKS = (_sweep,)
"""Checks of `sweep.*`; each yields the contradictions in a config."""
