"""Findings of a tune-up: a verdict for each technique, the bottleneck, and the recommended changes.

The classes are also the schema of `findings.json`, where a field has the name of its alias; see `stored_findings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paceline.direction import Direction
from paceline.errors import RunFailed


def _ends(given: Any) -> Any:
    """Read null, which JSON has in place of an infinite end."""
    if isinstance(given, list | tuple) and len(given) == 2:
        return (-inf if given[0] is None else given[0], inf if given[1] is None else given[1])
    return given


Ends = Annotated[tuple[float, float], BeforeValidator(_ends)]
"""Ends of an interval; infinite where it has none."""
Verdict = Literal["gain", "no gain", "regression", "not applicable"]
SEEN = 0.02
"""A difference of speed in the screening that is reported, as a part of 1."""
SURELY_COUNTS = 0.05
"""A difference of speed that counts, as a part of 1, on whatever machine."""


class BaselineFailed(RunFailed):
    """The config as it is cannot be built, trained or measured, so that there is nothing to compare with."""

    def __init__(self, message: str, doing: str = "") -> None:
        """Args:
        doing: what failed: `build`, `train` or `measure`.
        """
        super().__init__(message)
        self.code, self.fields = "baseline-failed", {"doing": doing}


class Note(str):
    """A sentence of the findings, with a stable code."""

    code: str

    def __new__(cls, text: str, code: str) -> "Note":
        note = super().__new__(cls, text)
        note.code = code
        return note


@dataclass(frozen=True)
class Quality:
    """Quality of the trained model compared with the baseline's."""

    verdict: Literal["same", "equivalent", "better", "worse", "undecided", "not measured"]
    """`same`: by how the technique works. `equivalent`: an equivalence test over the seeds says so."""
    metric: str = ""
    difference: float | None = None
    """Of the technique's mean from the baseline's, in the metric's unit; positive is better."""
    interval: Ends | None = None
    """Of the difference: its ends are the bounds of the two one-sided tests."""
    seeds: int = 0
    is_not_inferior: Annotated[bool, Field(alias="not_inferior")] = False
    """Shown to be worse by less than the margin, or not at all."""
    margin: float | None = None
    """What counts as equal, in the metric's unit; None where nothing was compared."""
    is_margin_relative: Annotated[bool, Field(alias="margin_is_relative")] = False
    """Whether the margin follows from the baseline's value, since the config sets none."""
    seeds_needed: int | None = None
    """How many seeds are likely to decide what is undecided."""
    mode: Direction = "max"
    """Whether the metric is better when it is large or small."""

    @property
    def is_fine(self) -> bool:
        """True if a config with it may be recommended."""
        return self.verdict in ("same", "equivalent", "better") or self.is_not_inferior

    @property
    def change(self) -> tuple[float, float, float] | None:
        """The difference and the ends of its interval as the metric itself goes: a loss that falls is negative."""
        if self.difference is None or self.interval is None:
            return None
        low, high = self.interval
        return (self.difference, low, high) if self.mode == "max" else (-self.difference, -high, -low)


@dataclass(frozen=True)
class TechniqueResult:
    """A technique, and the result."""

    name: str
    overrides: Mapping[str, Any]
    verdict: Verdict
    reason: str
    """Why it is not applicable, or what it does and the `warnings`."""
    family: str = ""
    speedup: float | None = None
    """Samples per second with it, over those without."""
    speedup_interval: Ends | None = None
    """Holds at all looks at the builds. With `builds` 0 it is that of one build, on which nothing is claimed."""
    pairs: int = 0
    """Pairs of windows in the screening."""
    builds: int = 0
    """Builds that it was confirmed over; 0: it was screened alone."""
    in_turn: bool = False
    """Whether it and the baseline were on the device one after the other, since it does not hold both."""
    builds_needed: int | None = None
    """How many builds are likely to decide it; None where it is decided, or where the difference is too small."""
    share: float | None = None
    """How many times as fast all that is recommended is, as it would be without this technique."""
    share_interval: Ends | None = None
    """Its interval over builds, 95 % without a correction."""
    peak_memory_ratio: float | None = None
    """Its peak memory over the baseline's."""
    peak_memory_bytes: int | None = None
    """Of one worker's share, in a fresh process."""
    predicted_peak_memory_bytes: int | None = None
    """What was predicted for it; see `plan`."""
    predicted_memory_ratio: float | None = None
    """The same over what was predicted for the baseline."""
    quality: Quality = Quality("not measured")
    is_recommended: Annotated[bool, Field(alias="recommended")] = False
    warnings: tuple[str, ...] = ()
    """Warnings when it was built that the baseline does not have: that it could not be applied."""
    build_seconds: float | None = None
    """How long a training with it takes to be ready for its first step, compiling included."""

    @property
    def memory_ratio(self) -> float | None:
        """Its peak memory over the baseline's: predicted where there was no time to measure it."""
        return self.predicted_memory_ratio if self.peak_memory_ratio is None else self.peak_memory_ratio

    @property
    def is_memory_predicted(self) -> bool:
        """True if `memory_ratio` is a prediction."""
        return self.peak_memory_ratio is None and self.predicted_memory_ratio is not None

    @property
    def gains_unmeasured(self) -> bool:
        """True if it is faster, and nobody knows what the model comes out like."""
        return self.verdict == "gain" and self.quality.verdict == "not measured"

    @property
    def is_open(self) -> bool:
        """True if `no gain` says that nothing was shown, rather than that there is no difference: there may be one that
        counts."""
        if self.verdict != "no gain" or self.speedup_interval is None:
            return False
        low, high = self.speedup_interval
        return high > 1 + SURELY_COUNTS or low < 1 / (1 + SURELY_COUNTS)

    @property
    def is_unconfirmed(self) -> bool:
        """True if a difference was seen in the screening, which no builds were made for."""
        is_different = self.speedup is not None and not 1 / (1 + SEEN) <= self.speedup <= 1 + SEEN
        return self.verdict == "no gain" and not self.builds and is_different


Question = Literal["helps", "instead", "needed"]
"""What a technique beside others was asked: whether it `helps` them, is faster than another of its family `instead`, or
is still `needed` among them."""


@dataclass(frozen=True)
class Beside:
    """A technique together with others, against these others alone; or, `instead`, with the one of its family. Seen in
    one build, to choose what to confirm."""

    name: str
    others: tuple[str, ...]
    question: Question
    seen: Literal["faster", "similar", "slower", "not measured"]
    speedup: float | None = None
    speedup_interval: Ends | None = None
    pairs: int = 0
    reason: str = ""
    """Why it was not measured; empty when it was."""

    def is_about(self, other: "Beside") -> bool:
        """Return True if both were asked the same."""
        return (self.name, self.others, self.question) == (other.name, other.others, other.question)


@dataclass(frozen=True)
class Findings:
    """All that a tune-up has found out."""

    techniques: tuple[TechniqueResult, ...]
    noise: float | None
    """Standard deviation of the baseline's speed over its own between builds, as a part of 1; None where too few were
    made."""
    recommended: Mapping[str, Any]
    """The changes of the config that are recommended, by dotted key; empty: none."""
    speedup: float | None = None
    """Of all recommended changes together."""
    speedup_interval: Ends | None = None
    """Over builds; holds at all looks at them."""
    builds: int = 0
    """Builds that all recommended changes together were confirmed over."""
    quality: Quality = Quality("same")
    """Of all recommended changes together."""
    peak_memory_ratio: float | None = None
    split: Mapping[str, float] = field(default_factory=dict)
    """Share of a step's time by what it goes into, of the baseline."""
    recommended_split: Mapping[str, float] = field(default_factory=dict)
    """The same of the recommended config; empty where there was no time for it."""
    bottleneck: str = ""
    beside: tuple[Beside, ...] = ()
    """Each technique that was tried beside others, in the order of the trials."""
    notes: tuple[str, ...] = ()
    """Notes for the reader: measurements that there was no time for, and those that failed."""
