"""Changes of a config for each kind of bottleneck, in the order to try them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from paceline.config.batch_sizes import ACCUMULATION, GLOBAL, MICRO, BatchSizes, batch_sizes, schedule_of
from paceline.config.experiment import ExperimentConfig
from paceline.config.lightning import uses_own_optimizer
from paceline.errors import ConfigError
from paceline.profiling.parts import COMMUNICATION, DATA, LOGGING, TRANSFER, StepSplit, fixed_seconds

SLEEPY_LOADERS_PER_CORE = 4
"""Most loader processes per core if they mostly wait for a disk or a network."""
LEFT = 0.1
"""Share of a step that the overhead may still take after the fix."""
MOST_TIMES = 32
"""Largest factor by which one fix enlarges a batch."""
STEPS_LEFT = 4
"""Fewest optimizer steps of an epoch with a larger batch."""
LOG_EVERY = 50
RARER = 10
"""Factor by which a fix makes evaluations and checkpoints rarer."""
LARGER_BUCKETS_MB = 100.0


@dataclass(frozen=True)
class Fix:
    """One change to try."""

    overrides: dict[str, Any]
    """Dotted keys and values, for `ExperimentConfig.with_overrides`; they make a valid config."""
    why: str
    """Effect of the overrides, and their side effects, in one sentence."""


def fixes_for(
    kind: str, split: StepSplit, config: ExperimentConfig, larger: StepSplit | None = None
) -> tuple[Fix, ...]:
    """Return the fixes that change the config and keep it valid.

    Args:
        larger: split with a larger micro batch. It determines the factor by which the batch should grow.
    """
    if kind not in _FIXES:
        return ()
    return tuple(fix for fix in _FIXES[kind](split, config, larger) if _changes(config, fix.overrides))


def _changes(config: ExperimentConfig, overrides: Mapping[str, Any]) -> bool:
    try:
        return config.with_overrides(overrides) != config
    except ConfigError:
        return False


def _data(split: StepSplit, config: ExperimentConfig, larger: StepSplit | None) -> Iterator[Fix]:
    if median(split.fractions(TRANSFER)) > median(split.fractions(DATA)):
        yield Fix({"data.pin_memory": True}, "from page-locked memory a copy overlaps with the computation")
        yield Fix({"data.cache": "device"}, "the samples are on the device already, if they fit there")
        return
    needed, most = _loaders(split, config)
    loaders = {"data.num_workers": min(needed, most), "data.persistent_workers": True}
    why = f"{min(needed, most)} processes beside each training process load ahead; what is loaded stays the same"
    cache = Fix({"data.cache": "memory"}, "samples are loaded once, before training; they have to fit into memory")
    ahead = {**loaders, "data.prefetch_factor": config.data.prefetch_factor * 2}
    more = [Fix(loaders, why), Fix(ahead, f"{why}; with more batches ready, single slow ones are bridged")]
    if min(needed, most) <= config.data.num_workers:
        more = more[1:]
    yield from [*more, cache] if needed <= most else [cache, *more]


def _loaders(split: StepSplit, config: ExperimentConfig) -> tuple[int, int]:
    """Return the number of loader processes that would keep up with the rest of the step, and the allowed maximum."""
    slow = max(split.ranks, key=lambda each: each.seconds[DATA])
    waited, own = slow.seconds[DATA], config.data.num_workers
    work = own * slow.step_seconds if own else waited
    needed = ceil(work / max(slow.step_seconds - waited, 0.01 * slow.step_seconds)) + 1
    sleeps = not own and slow.blocked.get(DATA, 0.0) > waited / 2
    return max(needed, own), max(slow.cores * (SLEEPY_LOADERS_PER_CORE if sleeps else 1), own)


def _small_batch(split: StepSplit, config: ExperimentConfig, larger: StepSplit | None) -> Iterator[Fix]:
    sizes, fixed = batch_sizes(config), fixed_seconds(split, larger)
    if not isinstance(sizes, BatchSizes) or fixed is None or schedule_of(config) is not None:
        return
    times = _times(fixed, split.compute_seconds - fixed, MOST_TIMES)
    merged = _divisor(sizes.gradient_accumulation_steps, times)
    if merged > 1:
        cut = sizes.gradient_accumulation_steps // merged
        overrides = {**_sized(sizes.micro_batch_size * merged, cut, sizes), MICRO: sizes.micro_batch_size * merged}
        yield Fix(overrides, f"micro batches {merged} times as large, and as many fewer; the global batch stays")
    while times > 1 and sizes.global_batch_size * times * STEPS_LEFT > split.samples:
        times //= 2
    if times > 1 and not uses_own_optimizer(config):
        batch = _sized(sizes.micro_batch_size * times, sizes.gradient_accumulation_steps, sizes)
        rule, said = _learning_rate(config, sizes)
        why = f"{times} times the micro batch and the global batch, so that fewer steps are made; {said}"
        yield Fix({**batch, **rule}, why)


def _times(fixed: float, rest: float, most: int) -> int:
    """Return the power of two by which to enlarge a batch so that the fixed cost takes at most `LEFT` of a step."""
    times = 2
    while times < most and fixed > LEFT * (fixed + times * rest):
        times *= 2
    return times


def _divisor(number: int, most: int) -> int:
    return max(each for each in range(1, most + 1) if number % each == 0)


def _sized(micro: int, accumulation: int, sizes: BatchSizes) -> dict[str, Any]:
    return {GLOBAL: micro * accumulation * sizes.world_size, MICRO: micro, ACCUMULATION: accumulation}


def _learning_rate(config: ExperimentConfig, sizes: BatchSizes) -> tuple[dict[str, Any], str]:
    """Return overrides that scale the learning rate with the global batch, if it is not scaled yet, and a note."""
    scaling = config.optimizer.lr_scaling
    if scaling != "none":
        return {}, f"the learning rate follows it, as lr_scaling {scaling} says; watch the accuracy"
    rule = config.optimizer.lr_scaling_rule or "sqrt"
    overrides = {"optimizer.lr_scaling": rule, "optimizer.base_batch_size": sizes.global_batch_size}
    return overrides, f"the learning rate follows it by the {rule} rule, best with a warmup; watch the accuracy"


def _communication(split: StepSplit, config: ExperimentConfig, larger: StepSplit | None) -> Iterator[Fix]:
    sizes = batch_sizes(config)
    if isinstance(sizes, BatchSizes) and schedule_of(config) is None:
        exchange = split.median(COMMUNICATION)
        rest = median(each.step_seconds for each in split.ranks) - exchange
        times = _times(exchange, rest, MOST_TIMES)
        while times > 1 and sizes.global_batch_size * times * STEPS_LEFT > split.samples:
            times //= 2
        if times > 1 and not uses_own_optimizer(config):
            batch = _sized(sizes.micro_batch_size, sizes.gradient_accumulation_steps * times, sizes)
            rule, said = _learning_rate(config, sizes)
            why = f"gradients are exchanged once in {times} times as many micro batches; the global batch grows; {said}"
            yield Fix({**batch, **rule}, why)
    if config.parallel.comm_hook == "none":
        yield Fix({"parallel.comm_hook": "bf16"}, "half the bytes are exchanged; gradients are rounded to 8 bits")
    buckets = "fewer, larger buckets wait less often for a link that is slow to answer, and overlap less with backward"
    yield Fix({"parallel.bucket_cap_mb": LARGER_BUCKETS_MB}, buckets)


def _logging(split: StepSplit, config: ExperimentConfig, larger: StepSplit | None) -> Iterator[Fix]:
    slow = max(split.ranks, key=lambda each: each.seconds[LOGGING])
    every = config.trainer.log_every_n_steps
    rarer = every * RARER if every >= LOG_EVERY else LOG_EVERY
    fixes = {
        LOGGING: Fix({"trainer.log_every_n_steps": rarer}, f"metrics are read and reported every {rarer} steps"),
        "evaluation": _rarer_evaluation(config),
        "checkpoints": _rarer_checkpoints(config),
    }
    yield fixes.pop(slow.mostly_after_step)
    if config.tracking.system_metrics and slow.mostly_after_step == LOGGING:
        yield Fix({"tracking.system_metrics": False}, "the machines' own metrics are no longer looked at")
    yield from (fixes[name] for name, seconds in slow.after_step.items() if name in fixes and seconds > 0)


def _rarer_evaluation(config: ExperimentConfig) -> Fix:
    every = config.trainer.evaluate_every_n_epochs * RARER
    return Fix({"trainer.evaluate_every_n_epochs": every}, f"the validation set is gone through every {every} epochs")


def _rarer_checkpoints(config: ExperimentConfig) -> Fix:
    steps, epochs = config.checkpoint.every_n_steps, config.checkpoint.every_n_epochs
    unit, every = ("steps", steps * RARER) if steps else ("epochs", (epochs or 1) * RARER)
    return Fix(
        {f"checkpoint.every_n_{unit}": every}, f"the state is saved every {every} {unit}; more is lost by a kill"
    )


_FIXES: Mapping[str, Callable[[StepSplit, ExperimentConfig, StepSplit | None], Iterator[Fix]]] = {
    "data": _data,
    "small_batch": _small_batch,
    "communication": _communication,
    "logging": _logging,
}
