"""Splits the time of a trainer's steps into their parts.

    split_steps    warm up; with CUDA: run without waits; then measure each step (watching.py); combine all ranks

On CPU the parts are timed by the wall clock. On CUDA the host waits for the GPU at each change of part, so that these
steps are slower, and nothing overlaps. This has not been tested on a GPU yet.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from paceline.engine.forward_backward import LocalForwardBackward
from paceline.engine.monitoring.host_monitor import HostMonitor
from paceline.engine.monitoring.stamp import Card
from paceline.engine.train_step import TrainStep
from paceline.engine.trainer import Trainer
from paceline.errors import ConfigError, Problem
from paceline.profiling.parts import (
    COMMUNICATION,
    DATA,
    FORWARD,
    PARTS,
    WAITING,
    RankSplit,
    StepSplit,
    share_waited,
)
from paceline.profiling.watching import Watch

ENDLESS = 10**12
"""Number of steps of the plan, so that the measured steps are from the middle of a training, not from its end."""
OTHERS = ("evaluation", "checkpoints")
NOT_KNOWN = -1.0


def split_steps(trainer: Trainer, steps: int, warm_up: int) -> StepSplit:
    """Run some optimizer steps and measure the parts of each. The numerics stay the same. Every rank must call it.

    Logs, evaluations and checkpoints are made as the config says, and sent to the trainer's reporter. Afterwards the
    trainer is at a later step, its plan has no end, and its loaders are closed.

    Args:
        trainer: a new trainer from `build_trainer`.
        steps: optimizer steps to measure, at least 1.
        warm_up: optimizer steps before the measurement.

    Raises:
        ConfigError: the step cannot be split: the strategy is a pipeline, or the task steps its optimizers itself.
        ValueError: `steps` is below 1, or `warm_up` is negative.
    """
    if steps < 1 or warm_up < 0:
        raise ValueError(f"{steps} steps after {warm_up} cannot be measured")
    if not isinstance(trainer.step, TrainStep):
        reason = "steps its optimizers itself, so that its steps have no parts that are known"
        raise ConfigError([Problem("no-split", reason, "task")])
    if not isinstance(trainer.step.forward_backward, LocalForwardBackward):
        reason = "the time of a step is split into its parts for ddp, fsdp and data_parallel, not for pipeline"
        raise ConfigError([Problem("no-split", reason, "parallel.strategy", hint="use another strategy")])
    try:
        return _together(trainer, _measure(trainer, trainer.step.forward_backward, steps, warm_up), steps)
    finally:
        trainer.close()


@dataclass
class _Measured:
    """Measurements of one rank's own steps."""

    steps: list[dict[str, float]]
    """Seconds by part, for each step."""
    seconds: float
    """Seconds from the start of the first step to the end of the last."""
    free_seconds: float | None
    """Seconds of as many steps in which the host does not wait for the GPU; None on CPU."""
    blocked: dict[str, float]
    after_step: dict[str, float]
    syncs: int


def _measure(trainer: Trainer, forward_backward: LocalForwardBackward, steps: int, warm_up: int) -> _Measured:
    """Measure all steps in one loop: a second loop would start the loaders again."""
    watch = Watch(trainer, forward_backward)
    free_steps = steps if watch.clock.waits_for_device else 0
    begun: dict[int, float] = {}

    def end_step(done: int) -> None:
        if done == warm_up and free_steps:
            watch.clock.synchronize()
            begun[done] = perf_counter()
            watch.clock.waits_for_device = False
        if done == warm_up + free_steps:
            watch.clock.waits_for_device = free_steps > 0
            watch.begin()
            begun[done] = perf_counter()
        elif done > warm_up + free_steps:
            watch.clock.end_step()

    with watch.put_on():
        _run(trainer, warm_up + free_steps + steps, end_step)
        over = perf_counter()
        blocked = watch.blocked()
    start = begun[warm_up + free_steps]
    free_seconds = start - begun[warm_up] if free_steps else None
    return _Measured(watch.clock.steps, over - start, free_seconds, blocked, watch.after_step, watch.syncs)


def _run(trainer: Trainer, steps: int, end_step: Callable[[int], None]) -> None:
    """Run the trainer's own loop for this number of steps; `end_step` gets the number of finished steps, from 0."""
    plan = trainer.plan
    trainer.plan = replace(plan, trainer=plan.trainer.model_copy(update={"epochs": None, "max_steps": ENDLESS}))
    trainer.open()
    end_step(0)
    for done, _ in enumerate(trainer.steps(), start=1):
        end_step(done)
        if done == steps:
            return


def _together(trainer: Trainer, measured: _Measured, steps: int) -> StepSplit:
    """Combine the measurements of all ranks into one split."""
    ranks, cards, order = trainer.dist, _cards(trainer), trainer.map_style.order
    told = ranks.gather_numbers([*_parts(trainer, measured, steps), *_others(measured, steps)])
    hosts = [card.host for card in cards]
    cores = [max(card.usable_cores // hosts.count(card.host), 1) for card in cards]
    return StepSplit(
        rank=ranks.rank,
        ranks=tuple(_rank_split(*each) for each in zip(told, hosts, cores, strict=True)),
        steps=steps,
        micro_batch_size=order.micro_batch_size,
        global_batch_size=order.global_batch_size,
        samples=order.samples,
        device=ranks.device.type,
        free_step_seconds=None if measured.free_seconds is None else measured.free_seconds / steps,
    )


def _cards(trainer: Trainer) -> list[Card]:
    (monitor,) = (each for each in trainer.callbacks if isinstance(each, HostMonitor))
    return monitor.cards


def _parts(trainer: Trainer, measured: _Measured, steps: int) -> list[float]:
    """Return this rank's seconds per step in the order of `PARTS`."""
    ranks = trainer.dist
    exposed = ranks.gather_numbers([step.get(COMMUNICATION, 0.0) for step in measured.steps])
    communication, waiting = share_waited(exposed)
    own = {part: sum(step.get(part, 0.0) for step in measured.steps) for part in PARTS}
    own |= {COMMUNICATION: sum(communication), WAITING: sum(waiting[ranks.rank])}
    return [own[part] / steps for part in PARTS]


def _others(measured: _Measured, steps: int) -> list[float]:
    """Return the other values of a `RankSplit` as numbers; `_rank_split` reads them."""
    blocked = [measured.blocked.get(part, NOT_KNOWN * steps) for part in (DATA, FORWARD)]
    after_step = [measured.after_step.get(name, 0.0) for name in OTHERS]
    return [number / steps for number in (measured.seconds, *blocked, *after_step, measured.syncs)]


def _rank_split(told: list[float], host: str, cores: int) -> RankSplit:
    step_seconds, in_data, in_forward, evaluation, checkpoints, syncs = told[len(PARTS) :]
    return RankSplit(
        seconds=dict(zip(PARTS, told[: len(PARTS)], strict=True)),
        step_seconds=step_seconds,
        blocked={} if in_data == NOT_KNOWN else {DATA: in_data, FORWARD: in_forward},
        after_step=dict(zip(OTHERS, (evaluation, checkpoints), strict=True)),
        syncs=syncs,
        host=host,
        cores=cores,
    )
