"""Time of a step over micro-batch size, accumulation and workers (Pollux, OSDI 2021, section 3.2).

    T_step = accumulation * T_compute(micro-batch) + T_exchange(workers)
    T_compute(m) = a + b m,        T_exchange(w) = c * (w - 1) / w,  0 for one worker

The exchange of a ring all-reduce moves 2 (w - 1) / w times the gradients. Pollux's overlap of both is left out: what
overlaps is in c, since it is fitted to whole steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RIDGE = 1e-7
"""Weight of coefficients of zero, relative to the data: too small to change a fit that is unique."""


@dataclass(frozen=True)
class MeasuredStep:
    """A kind of step, and how long it takes."""

    micro_batch_size: int
    accumulation: int
    workers: int
    seconds: float

    @property
    def global_batch_size(self) -> int:
        """Samples of the step."""
        return self.micro_batch_size * self.accumulation * self.workers


@dataclass(frozen=True)
class StepTimeModel:
    """Seconds of a step; all three are at least 0."""

    fixed_seconds: float
    """a: of each micro-batch, whatever its size."""
    sample_seconds: float
    """b: of each sample."""
    exchange_seconds: float
    """c: of the exchange between very many workers."""
    has_exchange: bool
    """True if the exchange was observed: with one number of workers, it cannot be separated from the rest of a step."""

    def seconds(self, micro_batch_size: float, accumulation: int, workers: int) -> float:
        """Return the predicted seconds of a step."""
        compute = self.fixed_seconds + self.sample_seconds * micro_batch_size
        return accumulation * compute + self.exchange_seconds * (workers - 1) / workers

    def error(self, measured: MeasuredStep) -> float:
        """Return the relative error of the prediction for a measured step."""
        predicted = self.seconds(measured.micro_batch_size, measured.accumulation, measured.workers)
        return predicted / measured.seconds - 1


def fit_step_time(measured: Sequence[MeasuredStep]) -> StepTimeModel:
    """Fit the model to relative errors, by least squares with coefficients of at least 0.

    Args:
        measured: at least one.
    """
    from scipy.optimize import nnls

    rows = [
        [each.accumulation, each.accumulation * each.micro_batch_size, (each.workers - 1) / each.workers]
        for each in measured
    ]
    seconds = np.asarray([each.seconds for each in measured])
    design = np.asarray(rows) / seconds[:, None]
    # where all micro-batches have one size, a and b cannot be told apart: the ridge makes the solution unique
    ridge = RIDGE * float(np.linalg.norm(design)) * np.eye(design.shape[1])
    target = np.concatenate([np.ones(len(measured)), np.zeros(len(ridge))])
    coefficients, _ = nnls(np.concatenate([design, ridge]), target)
    fixed, sample, exchange = map(float, coefficients)
    return StepTimeModel(fixed, sample, exchange, len({each.workers for each in measured}) > 1)


def held_out_errors(measured: Sequence[MeasuredStep]) -> list[float]:
    """Return the relative error for each measured step of the model that is fitted to all others.

    Args:
        measured: at least three.
    """
    errors = []
    for index, left_out in enumerate(measured):
        model = fit_step_time([*measured[:index], *measured[index + 1 :]])
        errors.append(model.error(left_out))
    return errors
