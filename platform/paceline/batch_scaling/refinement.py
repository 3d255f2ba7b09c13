"""The critical batch size that follows from branches and from trainings to the target together, with its interval.

All errors are taken as normal, on a logarithmic scale.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log

import numpy as np

from paceline.batch_scaling.critical_batch import (
    Branch,
    CriticalBatch,
    best_size,
    candidate_sizes,
    critical_batch,
    log_samples,
    smallest_untrainable,
)

BRANCH_ERROR = 0.5
"""Standard deviation of the logarithm of the critical batch size, if it is known from branches alone. They compare the
loss in a part of the training, not the target. With the branches from the start of 61717afc it was off by -0.9 to 0.5
over ten grids (root mean square 0.39, below 0.56 at 90 % confidence). The fit was
chosen by these grids; for an MLP-Mixer that was not among them it was off by 0.5."""
LIMIT_OF_BRANCHES = 20.0
"""Largest critical batch size that branches can show, over the largest batch of a branch. A larger one lowers the
efficiency of that branch by less than a twentieth, which is less than its scatter."""
NORMAL = 1.96
"""Half of a 95 % interval over the standard error. Its square is twice the logarithm of the likelihood ratio from which
on a size is outside the interval (Wilks 1938)."""


@dataclass(frozen=True)
class SamplesRatio:
    """Samples to the target with a larger batch, over those with the config's own, from trainings with both."""

    batch_size: int
    samples: float
    error: float
    """Standard error of the logarithm of `samples`."""
    freedom: float = inf
    """Degrees of freedom of the error."""
    is_lower_limit: bool = False
    """True if a training with the larger batch did not reach the target."""


def critical_batch_of(
    branches: Sequence[Branch], own_batch_size: int, samples_to_target: int, trained: Sequence[SamplesRatio] = ()
) -> CriticalBatch:
    """Return the critical batch size of branches, corrected by trainings to the target, with its interval.

    Args:
        branches: at least one.
        samples_to_target: with the config's own batch.
    """
    failed = smallest_untrainable(branches)
    largest = max((branch.batch_size for branch in branches if branch.batch_size < failed), default=own_batch_size)
    return refined(critical_batch(branches, own_batch_size, samples_to_target), own_batch_size, trained, largest)


def refined(
    critical: CriticalBatch, own_batch_size: int, trained: Sequence[SamplesRatio], largest: int
) -> CriticalBatch:
    """Correct the critical batch size of branches by trainings to the target, and add its interval.

    Args:
        trained: may be empty; the size is then that of the branches.
        largest: largest batch size of the branches that can be trained. Critical sizes far beyond it are equally
            likely.

    Returns:
        The most likely size. The sizes that were measured over the training change by the same factor.
    """
    candidates, limit = candidate_sizes(own_batch_size), LIMIT_OF_BRANCHES * largest
    logs = np.log(np.minimum(candidates, limit) / min(critical.size, limit))
    errors = (logs / BRANCH_ERROR) ** 2
    wide = errors.copy()  # an error that is known from few seeds is Student's
    for each in trained:
        above = log_samples(candidates, each.batch_size / own_batch_size, own_batch_size) - log(max(each.samples, 1.0))
        if each.is_lower_limit:
            above = np.minimum(above, 0.0)
        errors += (above / each.error) ** 2
        wide += (above / each.error * NORMAL / _student(each.freedom)) ** 2
    likely = candidates[wide - wide.min() < NORMAL**2]
    interval = float(likely[0]), float(likely[-1]) if likely[-1] < limit else inf
    if not trained:
        return replace(critical, interval=interval)
    size = best_size(candidates, errors)

    def changed(before: float) -> float:
        return before * size / critical.size if isfinite(critical.size) else size

    by_samples = tuple((samples, changed(before)) for samples, before in critical.by_samples)
    return CriticalBatch(size, changed(critical.low), changed(critical.high), by_samples, interval)


def _student(freedom: float) -> float:
    """Return half of a 95 % interval over the standard error, with these degrees of freedom."""
    from scipy.special import stdtrit

    return NORMAL if freedom == inf else float(stdtrit(freedom, 0.975))
