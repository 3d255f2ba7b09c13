"""Direction in which a metric is better, derived from its name."""

from typing import Literal

Direction = Literal["min", "max"]

LOWER_IS_BETTER = ("loss", "error", "perplexity", "seconds", "bytes", "joules", "wait")
"""Parts of the names of metrics that are minimized unless something says otherwise."""


def default_mode(metric: str) -> Direction:
    """Return the direction in which a metric is better, derived from its name: `min` or `max`."""
    return "min" if any(word in metric.lower() for word in LOWER_IS_BETTER) else "max"
