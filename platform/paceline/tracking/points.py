"""One value of one metric."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, isinf
from typing import Any


@dataclass(frozen=True)
class Point:
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
    def from_json(cls, content: Mapping[str, Any]) -> "Point":
        """The inverse of `to_json`."""
        return cls(content["key"], float(content["value"]), content["step"], content["timestamp_ms"])
