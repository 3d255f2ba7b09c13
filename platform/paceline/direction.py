"""Which way a metric is better, as far as its name tells."""

from typing import Literal

Direction = Literal["min", "max"]

LOWER_IS_BETTER = ("loss", "error", "perplexity", "seconds", "bytes", "joules", "wait")
"""Parts of the names of metrics that are minimized unless something says otherwise."""


def default_mode(metric: str) -> Direction:
    """Whether a metric is better when it is small or large, going by its name."""
    return "min" if any(word in metric.lower() for word in LOWER_IS_BETTER) else "max"
