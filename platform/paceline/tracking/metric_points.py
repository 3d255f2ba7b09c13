"""Points of metrics, the readings that they are taken in, and the marks by which a replayed step counts once."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import isfinite, isinf
from typing import Any, NamedTuple

from paceline.redaction import redact


def now_ms() -> int:
    """Return the time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class MetricPoint:
    """The value of a metric at an optimizer step."""

    key: str
    """The metric, one of `paceline.tracking.metrics`."""
    value: float
    """May be NaN or infinite."""
    step: int
    """Optimizer steps done when the value was taken."""
    timestamp_ms: int
    """Time at which the value was taken, in milliseconds since 1970. Kept through every replay."""

    @property
    def is_infinite(self) -> bool:
        """True if the value is plus or minus infinity, which MLflow cannot store."""
        return isinf(self.value)

    def to_json(self) -> dict[str, Any]:
        """The point as JSON values; JSON knows no NaN and no infinity, so these are text."""
        value = float(self.value)
        return {**asdict(self), "value": value if isfinite(value) else str(value)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "MetricPoint":
        """The inverse of `to_json`."""
        return cls(content["key"], float(content["value"]), content["step"], content["timestamp_ms"])


class MetricReading(NamedTuple):
    """Values that were taken together at an optimizer step."""

    step: int
    """Optimizer steps done."""
    timestamp_ms: int
    """Time at which they were taken, in milliseconds since 1970."""
    values: dict[str, float]
    """By metric."""

    def points(self) -> list[MetricPoint]:
        """Each value as a point."""
        return [MetricPoint(key, value, self.step, self.timestamp_ms) for key, value in self.values.items()]

    @property
    def age_seconds(self) -> float:
        """Age of the values; 0 where the clock of the machine that took them is ahead."""
        return max(0.0, time.time() - self.timestamp_ms / 1000)

    def to_json(self) -> list[Any]:
        """The points as JSON values."""
        return [point.to_json() for point in self.points()]

    @classmethod
    def from_json(cls, points: list[Any]) -> "MetricReading":
        """The inverse of `to_json`; there must be a point."""
        read = [MetricPoint.from_json(point) for point in points]
        return cls(read[0].step, read[0].timestamp_ms, {point.key: point.value for point in read})


def fresh_points(marks: dict[str, int], points: Sequence[MetricPoint]) -> list[MetricPoint]:
    """Return the points that are new, each key without secrets; raises the marks to them.

    Args:
        marks: the last step of each key.
    """
    return [point for point in map(_with_clean_key, points) if raise_mark(marks, point)]


def raise_mark(marks: dict[str, int], point: MetricPoint) -> bool:
    """Raise the key's mark to the point's step; False when it is there already."""
    mark = marks.get(point.key)
    if mark is not None and point.step <= mark:
        return False
    marks[point.key] = point.step
    return True


@lru_cache(4096)
def _clean_key(key: str) -> str:
    # a lone surrogate, from the bad byte of a file name, would keep all metrics out of MLflow
    return redact(key).encode("utf-8", "backslashreplace").decode()


def _with_clean_key(point: MetricPoint) -> MetricPoint:
    """A task of the user's may name its metrics as it likes."""
    key = _clean_key(point.key)
    return point if key == point.key else replace(point, key=key)
