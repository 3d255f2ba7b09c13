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
    """Replace null, which JSON has in place of an infinite end, by infinity."""
    if isinstance(given, list | tuple) and len(given) == 2:
        return (-inf if given[0] is None else given[0], inf if given[1] is None else given[1])
    return given


Ends = Annotated[tuple[float, float], BeforeValidator(_ends)]
"""Ends of an interval; infinite on an unbounded side."""
Verdict = Literal["gain", "no gain", "regression", "not applicable"]
SEEN = 0.02
"""Smallest difference of speed in the screening that is reported, as a fraction."""
SURELY_COUNTS = 0.05
"""Difference of speed that counts on any machine, as a fraction."""


class BaselineFailed(RunFailed):
    """The config as it is cannot be built, trained or measured, so that the comparison has no reference."""

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
    """`same`: the technique keeps the numerics by design. `equivalent`: shown by an equivalence test over the seeds."""
    metric: str = ""
    difference: float | None = None
    """Difference of the technique's mean from the baseline's, in the metric's unit; positive is better."""
    interval: Ends | None = None
    """Interval of the difference. Its ends are the bounds of the two one-sided tests."""
    seeds: int = 0
    is_not_inferior: Annotated[bool, Field(alias="not_inferior")] = False
    """True if shown to be worse by less than the margin, or not at all."""
    margin: float | None = None
    """Largest difference that counts as equal, in the metric's unit; None if nothing was compared."""
    is_margin_relative: Annotated[bool, Field(alias="margin_is_relative")] = False
    """True if the margin is a share of the baseline's value because the config sets none."""
    seeds_needed: int | None = None
    """Number of seeds that are likely to decide an undecided comparison."""
    mode: Direction = "max"
    """Direction of improvement: `max` if a large metric is better, `min` if a small one is."""

    @property
    def is_fine(self) -> bool:
        """True if a config with it may be recommended."""
        return self.verdict in ("same", "equivalent", "better") or self.is_not_inferior

    @property
    def change(self) -> tuple[float, float, float] | None:
        """Difference and ends of its interval with the sign of the metric itself: negative for a loss that falls."""
        if self.difference is None or self.interval is None:
            return None
        low, high = self.interval
        return (self.difference, low, high) if self.mode == "max" else (-self.difference, -high, -low)


@dataclass(frozen=True)
class TechniqueResult:
    """Result of a technique."""

    name: str
    overrides: Mapping[str, Any]
    verdict: Verdict
    reason: str
    """Reason why it is not applicable; otherwise its effect, and the `warnings`."""
    family: str = ""
    speedup: float | None = None
    """Samples per second with it, divided by those without it; where an earlier `scale` study is known, times the
    efficiency of its batch, so that it is the speed to the same result."""
    speedup_interval: Ends | None = None
    """Interval of the speedup, valid at all looks. With `builds` 0, it is from one build, and proves nothing."""
    pairs: int = 0
    """Number of pairs of windows in the screening."""
    builds: int = 0
    """Number of builds that it was confirmed over; 0 if it was only screened."""
    in_turn: bool = False
    """True if it and the baseline were on the device one after the other, since the device does not hold both."""
    builds_needed: int | None = None
    """Number of builds that are likely to decide it; None if it is decided, or if the difference is too small."""
    is_given_up: Annotated[bool, Field(alias="given_up")] = False
    """True if it was measured no further, since a difference that counts is unlikely."""
    share: float | None = None
    """Speed of the recommended config, divided by its speed without this technique."""
    share_interval: Ends | None = None
    """95 % interval of `share` over builds, not corrected for multiple comparisons."""
    peak_memory_ratio: float | None = None
    """Its peak memory over the baseline's."""
    peak_memory_bytes: int | None = None
    """Peak memory of one worker in bytes, measured in a fresh process."""
    predicted_peak_memory_bytes: int | None = None
    """Predicted peak memory in bytes; see `plan`."""
    predicted_memory_ratio: float | None = None
    """Predicted peak memory, divided by that predicted for the baseline."""
    quality: Quality = Quality("not measured")
    is_untried: Annotated[bool, Field(alias="untried")] = False
    """True if there was no time for it."""
    is_recommended: Annotated[bool, Field(alias="recommended")] = False
    warnings: tuple[str, ...] = ()
    """Warnings raised while it was built that the baseline does not raise, such as that it could not be applied."""
    build_seconds: float | None = None
    """Seconds until a training with it is ready for its first step, including compilation."""

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
        """True if it is faster, and the quality of the trained model was not measured."""
        return self.verdict == "gain" and self.quality.verdict == "not measured"

    @property
    def is_open(self) -> bool:
        """True if `no gain` means that nothing was shown, not that both are equally fast: the difference may still be
        large enough to count."""
        if self.verdict != "no gain" or self.speedup_interval is None or self.is_given_up:
            return False
        low, high = self.speedup_interval
        return high > 1 + SURELY_COUNTS or low < 1 / (1 + SURELY_COUNTS)

    @property
    def is_unconfirmed(self) -> bool:
        """True if the screening saw a difference, and no builds were made to confirm it."""
        is_different = self.speedup is not None and not 1 / (1 + SEEN) <= self.speedup <= 1 + SEEN
        return self.verdict == "no gain" and not self.builds and is_different

    @property
    def is_decided(self) -> bool:
        """False if there was no time for it, or too little to tell whether its difference counts."""
        return not (self.is_untried or self.is_open or self.is_unconfirmed)


Question = Literal["helps", "instead", "needed"]
"""Question about a technique beside others: does it make them faster (`helps`), is it faster in place of another one of
its family (`instead`), or is it still `needed` among them?"""


@dataclass(frozen=True)
class Beside:
    """A technique together with others, compared with these others alone; for `instead`, compared with the others and
    the technique that it replaces. Measured in one build, to choose the techniques to confirm."""

    name: str
    others: tuple[str, ...]
    question: Question
    seen: Literal["faster", "similar", "slower", "not measured"]
    speedup: float | None = None
    speedup_interval: Ends | None = None
    pairs: int = 0
    reason: str = ""
    """Reason why it was not measured; empty if it was."""

    def is_about(self, other: "Beside") -> bool:
        """Return True if both answer the same question."""
        return (self.name, self.others, self.question) == (other.name, other.others, other.question)


@dataclass(frozen=True)
class Findings:
    """Results of a tune-up."""

    techniques: tuple[TechniqueResult, ...]
    noise: float | None
    """Standard deviation between builds of the baseline's speed over its own, as a fraction; None if there were too few
    builds."""
    recommended: Mapping[str, Any]
    """Recommended changes of the config, by dotted key; empty if nothing is recommended."""
    speedup: float | None = None
    """Speedup of all recommended changes together."""
    speedup_interval: Ends | None = None
    """Interval of the speedup over builds, valid at all looks."""
    builds: int = 0
    """Number of builds that all recommended changes together were confirmed over."""
    quality: Quality = Quality("same")
    """Quality with all recommended changes together."""
    peak_memory_ratio: float | None = None
    split: Mapping[str, float] = field(default_factory=dict)
    """Share of the baseline's step time by part of the step."""
    recommended_split: Mapping[str, float] = field(default_factory=dict)
    """Share of the recommended config's step time by part of the step; empty if there was no time to measure it."""
    bottleneck: str = ""
    beside: tuple[Beside, ...] = ()
    """Results of each technique that was tried beside others, in the order of the trials."""
    notes: tuple[str, ...] = ()
    """Notes for the reader, such as measurements that failed, or that there was no time for."""
