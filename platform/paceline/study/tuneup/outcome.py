"""What a tune-up has found out: a verdict for each technique, the bottleneck, and the recommended changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["gain", "none", "harm", "not applicable"]


@dataclass(frozen=True)
class Quality:
    """Whether what is trained is as good as the baseline's."""

    verdict: Literal["same", "equivalent", "better", "worse", "undecided", "not measured"]
    """`same`: by how the technique works. `equivalent`: an equivalence test over the seeds says so."""
    metric: str = ""
    difference: float | None = None
    """Of the arm's mean from the baseline's, in the metric's unit; positive is better."""
    interval: tuple[float, float] | None = None
    """Of the difference, 90 %: what the two one-sided tests at 5 % look at."""
    seeds: int = 0
    is_not_inferior: bool = False
    """Shown to be worse by less than the margin, or not at all."""

    @property
    def is_fine(self) -> bool:
        """Whether a config with it may be recommended."""
        return self.verdict in ("same", "equivalent", "better") or self.is_not_inferior


@dataclass(frozen=True)
class ArmResult:
    """A technique, and what came of it."""

    name: str
    overrides: Mapping[str, Any]
    verdict: Verdict
    reason: str
    """Why it is not applicable, or what it does."""
    family: str = ""
    speedup: float | None = None
    """Samples per second with it, over those without: the median of paired ratios."""
    speedup_interval: tuple[float, float] | None = None
    pairs: int = 0
    peak_memory_ratio: float | None = None
    """Its peak memory over the baseline's."""
    peak_memory_bytes: int | None = None
    """Of one worker's share, in a fresh process."""
    predicted_peak_memory_bytes: int | None = None
    """What was predicted for it; see `plan`."""
    quality: Quality = Quality("not measured")
    is_recommended: bool = False

    def to_json(self) -> dict[str, Any]:
        """As `paceline tuneup --json` prints it."""
        return {
            "name": self.name,
            "overrides": dict(self.overrides),
            "verdict": self.verdict,
            "speedup": self.speedup,
            "speedup_interval": list(self.speedup_interval) if self.speedup_interval else None,
            "peak_memory_ratio": self.peak_memory_ratio,
            "peak_memory_bytes": self.peak_memory_bytes,
            "predicted_peak_memory_bytes": self.predicted_peak_memory_bytes,
            "quality": {
                "verdict": self.quality.verdict,
                "metric": self.quality.metric,
                "difference": self.quality.difference,
                "interval": list(self.quality.interval) if self.quality.interval else None,
                "seeds": self.quality.seeds,
            },
            "reason": self.reason,
            "pairs": self.pairs,
            "recommended": self.is_recommended,
        }


@dataclass(frozen=True)
class Findings:
    """All that a tune-up has found out."""

    arms: tuple[ArmResult, ...]
    noise: tuple[float, float]
    """What came of the baseline against itself: the interval of its ratios. Nothing within it is a difference."""
    recommended: Mapping[str, Any]
    """The changes of the config that are recommended, by dotted key; empty: none."""
    speedup: float | None = None
    """Of all recommended changes together."""
    speedup_interval: tuple[float, float] | None = None
    quality: Quality = Quality("same")
    """Of all recommended changes together."""
    peak_memory_ratio: float | None = None
    split: Mapping[str, float] = field(default_factory=dict)
    """Share of a step's time by what it goes into, of the baseline."""
    bottleneck: str = ""
    notes: tuple[str, ...] = ()
    """What the reader is to know beside: what there was no time for, and what failed."""
