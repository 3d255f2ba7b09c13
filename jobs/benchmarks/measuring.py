"""What the benchmarks have in common: intervals, ratios of paired times, and the name of the processor. No torch."""

import platform
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

RESAMPLES = 5000


class Interval(NamedTuple):
    """A figure with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def text(self, decimals: int = 3) -> str:
        """Such as `0.98 (0.97-1.00)`."""
        return f"{self.value:.{decimals}f} ({self.low:.{decimals}f}-{self.high:.{decimals}f})"


def bootstrap(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """95 % interval of a statistic of the values; always the same for the same values."""
    draw = random.Random(0)
    drawn = sorted(statistic(draw.choices(values, k=len(values))) for _ in range(resamples))
    return _middle(drawn)


def interval(values: Sequence[float]) -> Interval:
    """Median of some values, with its interval."""
    return Interval(statistics.median(values), *bootstrap(values))


def over_launches(launches: Sequence[Sequence[float]], resamples: int = RESAMPLES) -> Interval:
    """Mean over launches of the median of each one's values.

    For the interval, launches are drawn, and values within each: of a single launch it says how its values scatter, but
    nothing of how launches differ.
    """
    draw = random.Random(0)

    def resampled() -> float:
        chosen = draw.choices(launches, k=len(launches))
        return statistics.fmean(statistics.median(draw.choices(values, k=len(values))) for values in chosen)

    means = sorted(resampled() for _ in range(resamples))
    return Interval(statistics.fmean(map(statistics.median, launches)), *_middle(means))


def _middle(drawn: Sequence[float]) -> tuple[float, float]:
    return drawn[int(0.025 * len(drawn))], drawn[int(0.975 * len(drawn)) - 1]


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Of values that were measured in the same rounds."""
    return [own / other for own, other in zip(mine, theirs, strict=True)]


def cpu_name() -> str:
    """The processor's name, as far as the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
