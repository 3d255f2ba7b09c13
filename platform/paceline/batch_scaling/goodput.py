"""Goodput: statistical efficiency times throughput (Pollux, OSDI 2021), as seconds to the target.

samples(B) = samples(B_0) / efficiency(B),        seconds(B, w) = samples(B) / B * T_step(B, w)
"""

from collections.abc import Mapping, Sequence
from math import exp, hypot, inf
from types import MappingProxyType

from paceline.batch_scaling.candidate import LEAST_GAIN
from paceline.batch_scaling.critical_batch import CriticalBatch, expected_efficiency
from paceline.batch_scaling.findings import ScaleFindings, ScaleRow
from paceline.batch_scaling.step_time import StepTimeModel

TWO_SIDED = 2.0
"""Standard deviations on each side of a 95 % interval."""
NEAR = 1.1
"""Within this factor of the fastest time, a smaller batch is the knee."""
MOST_OF_SAVING = 0.8
"""Least share of the time that the fastest batch saves, for a smaller one to be preferred to it."""


def fastest_not_considered(found: ScaleFindings) -> ScaleRow | None:
    """Return the fastest row that has other workers or was not measured, so that it cannot be recommended; None if the
    config as it is is as fast."""
    here = [row for row in found.table if row.workers == found.workers]
    own = next((row for row in here if row.global_batch_size == found.own_batch_size), None)
    others = [row for row in found.table if row.is_in_reach and (row.workers != found.workers or row.is_extrapolated)]
    best = min(others, key=lambda row: row.seconds, default=None)
    return best if best is not None and own is not None and best.seconds * LEAST_GAIN <= own.seconds else None


def _around(value: float, lower: float, higher: float) -> tuple[float, float]:
    """Return the interval of a value whose logarithm may be lower and higher by so much."""
    return value * exp(-lower), value * exp(higher)


def goodput_table(
    batch_sizes: Sequence[int],
    workers: Sequence[int],
    *,
    own_batch_size: int,
    own_samples: int,
    largest_trained: int,
    critical: CriticalBatch,
    seconds_per_step: Mapping[tuple[int, int], float],
    step_time: StepTimeModel,
    micro_batch_size: Mapping[int, int],
    lr: Mapping[int, float],
    most_samples: float,
    untrainable: float = inf,
    spread: Mapping[int, tuple[float, float]] = MappingProxyType({}),
    step_error: float = 0.0,
) -> list[ScaleRow]:
    """Return a row for each batch size and number of workers that can share it.

    Args:
        own_samples: to the target, with the config's own batch.
        largest_trained: the largest batch size of a branch.
        seconds_per_step: by batch size and number of workers, as measured.
        micro_batch_size: of one worker, by batch size, with the config's own number of workers.
        lr: peak learning rate by batch size.
        most_samples: of the config's length of training.
        untrainable: smallest batch size that has no finite loss.
        spread: by how much the logarithm of the samples may be lower and higher, by batch size, see `spread_of`.
        step_error: relative error of the time of a step that was not measured.
    """
    rows = []
    for size in batch_sizes:
        samples = own_samples / expected_efficiency(size, own_batch_size, critical.size)
        for count in workers:
            if size % count:
                continue
            is_measured = (size, count) in seconds_per_step
            if is_measured:
                step_seconds = seconds_per_step[size, count]
            else:
                micro = min(micro_batch_size.get(size, size // count), size // count)
                step_seconds = step_time.seconds(micro, -(-size // (micro * count)), count)
            seconds = samples / size * step_seconds
            ends = spread.get(size)
            of_steps = 0.0 if is_measured else TWO_SIDED * step_error
            rows.append(
                ScaleRow(
                    global_batch_size=size,
                    workers=count,
                    lr=lr[size],
                    samples=samples,
                    steps=samples / size,
                    seconds=seconds,
                    worker_seconds=seconds * count,
                    is_extrapolated=not is_measured or not own_batch_size <= size <= largest_trained,
                    is_in_reach=samples <= most_samples and size < untrainable,
                    samples_interval=None if ends is None else _around(samples, *ends),
                    seconds_interval=None if ends is None else _around(seconds, *(hypot(e, of_steps) for e in ends)),
                )
            )
    return rows


def fastest_of(rows: Sequence[ScaleRow]) -> ScaleRow | None:
    """Return the row with the fewest seconds of those in reach."""
    return min((row for row in rows if row.is_in_reach), key=lambda row: row.seconds, default=None)


def cheapest_of(rows: Sequence[ScaleRow]) -> ScaleRow | None:
    """Return the row with the fewest worker-seconds of those in reach."""
    return min((row for row in rows if row.is_in_reach), key=lambda row: row.worker_seconds, default=None)


def first_candidate(rows: Sequence[ScaleRow], own_seconds: float) -> ScaleRow | None:
    """Return the smallest batch whose time is nearly the fastest's, and that saves most of the time that the fastest
    saves: with few seeds, a small saving cannot be shown. None without rows.

    Args:
        own_seconds: of the config as it is.
    """
    fastest = fastest_of(rows)
    if fastest is None:
        return None
    least = MOST_OF_SAVING * (own_seconds - fastest.seconds)
    return knee_of([row for row in rows if own_seconds - row.seconds >= least])


def knee_of(rows: Sequence[ScaleRow]) -> ScaleRow | None:
    """Return the smallest batch whose time is nearly the fastest's, for the number of workers of that one."""
    fastest = fastest_of(rows)
    if fastest is None:
        return None
    near = [row for row in rows if row.workers == fastest.workers and row.seconds <= NEAR * fastest.seconds]
    return min(near, key=lambda row: row.global_batch_size)
