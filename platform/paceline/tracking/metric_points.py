"""One value of one metric, and the values that were taken at one step."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, isinf
from typing import Any, NamedTuple


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
    """When the value was taken, in milliseconds since 1970. Kept through every replay."""

    @property
    def is_infinite(self) -> bool:
        """Whether the value is plus or minus infinity, which MLflow cannot store."""
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
    """When they were taken, in milliseconds since 1970."""
    values: dict[str, float]
    """By metric."""

    def points(self) -> list[MetricPoint]:
        """Each value as a point."""
        return [MetricPoint(key, value, self.step, self.timestamp_ms) for key, value in self.values.items()]

    @property
    def age_seconds(self) -> float:
        """How long ago the values were taken; 0 where the clock of the machine that took them is ahead."""
        return max(0.0, time.time() - self.timestamp_ms / 1000)

    def to_json(self) -> list[Any]:
        """The points as JSON values."""
        return [point.to_json() for point in self.points()]

    @classmethod
    def from_json(cls, points: list[Any]) -> "MetricReading":
        """The inverse of `to_json`; there must be a point."""
        read = [MetricPoint.from_json(point) for point in points]
        return cls(read[0].step, read[0].timestamp_ms, {point.key: point.value for point in read})
