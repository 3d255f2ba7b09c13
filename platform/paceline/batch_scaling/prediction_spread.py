"""Intervals of the predicted samples to the target.

They come from the scatter between seeds of the samples with the config's own batch, and from the interval of the
critical batch size; both errors are taken as independent. The scatter of a few seeds is moderated by `USUAL_SCATTER`,
like that of a ratio: over 12 to 16 seeds it was 0.10 to 0.13 in three models.
"""

from collections.abc import Sequence
from math import hypot, log, sqrt

from paceline.batch_scaling.critical_batch import CriticalBatch, expected_efficiency
from paceline.batch_scaling.speedup import USUAL_FREEDOM, moderated_scatter

ERROR = 0.05
"""Error level of the intervals."""


def spread_of(
    critical: CriticalBatch, own_batch_size: int, own_samples: Sequence[int], sizes: Sequence[int]
) -> dict[int, tuple[float, float]]:
    """Return by how much the logarithm of the samples to the target may be lower and higher, by batch size.

    Args:
        own_samples: to the target with the config as it is, for each seed.

    Returns:
        Empty if the interval of the critical batch size is not known.
    """
    from scipy.special import stdtrit

    if critical.interval is None:
        return {}
    quantile = float(stdtrit(USUAL_FREEDOM + len(own_samples) - 1, 1 - ERROR / 2))
    of_seeds = quantile * moderated_scatter([log(each) for each in own_samples]) / sqrt(len(own_samples))
    found = {}
    for size in sizes:
        here, *ends = (
            -log(expected_efficiency(size, own_batch_size, each)) for each in (critical.size, *critical.interval)
        )
        found[size] = (hypot(of_seeds, here - min(here, *ends)), hypot(of_seeds, max(here, *ends) - here))
    return found
