"""Student's t distribution, by numpy alone: its distribution function and its quantiles."""

from functools import lru_cache
from math import atan, pi, sqrt, tan

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_HALVINGS = 60


def cdf(t: float, degrees: float) -> float:
    """Probability that a t variable is at most `t`; `degrees` of freedom need not be whole.

    With t = sqrt(degrees) tan(angle) the density is a power of a cosine, which Gauss-Legendre integrates on both sides.
    """
    part = _below(atan(abs(t) / sqrt(degrees)), degrees) / (2 * _below(pi / 2, degrees))
    return 0.5 + part if t > 0 else 0.5 - part


@lru_cache(maxsize=1024)
def quantile(probability: float, degrees: float) -> float:
    """The t that a variable exceeds with probability `1 - probability`.

    Raises:
        ValueError: for a probability that is not between 0 and 1, or no degrees of freedom.
    """
    if not 0 < probability < 1 or degrees <= 0:
        raise ValueError(f"no t quantile for probability {probability} and {degrees} degrees of freedom")
    low, high = -pi / 2, pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(sqrt(degrees) * tan(middle), degrees) < probability else (low, middle)
    return sqrt(degrees) * tan((low + high) / 2)


def _below(angle: float, degrees: float) -> float:
    """Integral of cos^(degrees - 1) from 0 to an angle; the half of it near a right angle is the narrow one."""
    angles = angle / 2 * (_NODES + 1)
    return float(angle / 2 * np.sum(_WEIGHTS * np.cos(angles) ** (degrees - 1)))
