"""Candidates for the recommendation: one batch size for the whole training, or one that grows with the critical one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.batch_scaling.critical_batch import CriticalBatch, Rule, expected_efficiency, stretches
from paceline.batch_scaling.findings import ScaleRow
from paceline.batch_scaling.lr_rules import LrRules

LEAST_GAIN = 1.03
"""Predicted speedup below which the config is not changed. A schedule must also beat the best fixed size by it."""


@dataclass(frozen=True)
class BatchStage:
    """A stretch of training with one batch size."""

    start_samples: int
    batch_size: int
    share: float
    """Predicted share of the samples to the target, 0 to 1."""


@dataclass(frozen=True)
class Candidate:
    """Stages of a training, and its predicted samples and seconds to the target."""

    stages: tuple[BatchStage, ...]
    """At least one; the batch size grows from each to the next."""
    rule: Rule
    samples: float
    seconds: float

    @classmethod
    def of_row(cls, row: ScaleRow, rules: LrRules) -> "Candidate":
        """Build a candidate with one stage from a row of the table."""
        size = row.global_batch_size
        return cls((BatchStage(0, size, 1.0),), rules.at(size), row.samples, row.seconds)

    def trains_like(self, other: "Candidate") -> bool:
        """Return True if both train in the same way, whatever time is predicted for them."""
        return (self.stages, self.rule) == (other.stages, other.rule)

    @property
    def largest(self) -> int:
        """Largest batch size of all stages."""
        return self.stages[-1].batch_size

    @property
    def text(self) -> str:
        """`batch 64`, or `batch 64, 256 after 8,192 samples`."""
        first, *others = self.stages
        return ", ".join(
            [
                f"batch {first.batch_size:,}",
                *(f"{each.batch_size:,} after {each.start_samples:,} samples" for each in others),
            ]
        )


def growing_candidate(
    critical: CriticalBatch,
    rules: LrRules,
    own_batch_size: int,
    samples_to_target: int,
    step_seconds: Mapping[int, float],
    most_samples: float,
) -> Candidate | None:
    """Return the schedule with the fastest batch size for each stretch between two measurements of the critical batch
    size; None if the same size is the fastest in all stretches.

    Args:
        samples_to_target: samples to the target with the config's own batch.
        step_seconds: measured seconds per step, by batch size. Only these sizes are considered.
        most_samples: samples of the config's training length. If the schedule needs more, its largest batch size is
            left out.
    """
    lengths = stretches(critical.by_samples, samples_to_target)
    for most in sorted(step_seconds, reverse=True):
        chosen: list[tuple[int, float]] = []
        seconds, largest = 0.0, 0
        for length, here in lengths:
            samples = {
                size: length / expected_efficiency(size, own_batch_size, here)
                for size in step_seconds
                if largest <= size <= most
            }
            largest = min(samples, key=lambda size: samples[size] / size * step_seconds[size])
            seconds += samples[largest] / largest * step_seconds[largest]
            chosen.append((largest, samples[largest]))
        total = sum(samples for _, samples in chosen)
        if total <= most_samples:
            stages = _stages(chosen)
            return Candidate(stages, rules.at(largest), total, seconds) if len(stages) > 1 else None
    return None


def _stages(chosen: Sequence[tuple[int, float]]) -> tuple[BatchStage, ...]:
    """Join neighbours with the same batch size; the samples are those of the schedule itself."""
    total = sum(samples for _, samples in chosen)
    found: list[BatchStage] = []
    before = 0.0
    for size, samples in chosen:
        if found and found[-1].batch_size == size:
            last = found.pop()
            found.append(BatchStage(last.start_samples, size, last.share + samples / total))
        else:
            found.append(BatchStage(round(before), size, samples / total))
        before += samples
    return tuple(found)
