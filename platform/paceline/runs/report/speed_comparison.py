"""Conditions that a run's speed was measured in, and whether the speeds of a sweep's trials can be compared."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.reports.page import Fact
from paceline.tracking import metrics
from paceline.tracking.speed_stamps import differences, read_stamp

MOST_REASONS = 12
NAMED = 8
"""Trials of one reason that are named."""
_WHEN = re.compile(" at the (?:start|end) of the (?:first|second) run")
_FIGURE = re.compile(r"\d[\d,]*(?=%| steps| MHz| and [\d,]+ MHz)")
"""Differs between reasons of one kind."""


@dataclass(frozen=True)
class Reason:
    """A difference that forbids comparing speeds, and the trials that it concerns."""

    text: str
    trials: Sequence[str]

    @property
    def names(self) -> str:
        """The trials, the first ones by name."""
        return ", ".join(self.trials[:NAMED]) + (", …" if len(self.trials) > NAMED else "")

    @property
    def of_all(self) -> str:
        """The text, said of one trial or of several."""
        return re.sub(r"\bits\b", "their", self.text) if len(self.trials) > 1 else self.text


@dataclass(frozen=True)
class SpeedComparison:
    """Trials whose speeds can be compared with that of the best one."""

    best: str
    stamps: Mapping[str, Mapping[str, Any]]
    """By trial; those without one are missing."""
    alike: int
    others: int
    """Trials with a stamp, the best one not counted."""
    unknown: int
    """Trials without a stamp."""
    reasons: Sequence[Reason]
    """The most frequent first."""

    @property
    def most_reasons(self) -> int:
        """Reasons that a page shows."""
        return MOST_REASONS

    @property
    def is_known(self) -> bool:
        """True where there are stamps to compare."""
        return self.best in self.stamps and self.others > 0

    @property
    def answer(self) -> str:
        """`yes`, `some` or `no`."""
        return "yes" if self.alike == self.others else "some" if self.alike else "no"

    @property
    def doubt(self) -> str:
        """Reason why the speeds do not measure the settings, in a line; empty where nothing is known against them."""
        if not self.is_known or self.alike == self.others:
            return ""
        first = self.reasons[0]
        whose = f" (trial {first.trials[0]})" if len(first.trials) == 1 else ""
        subject = "Not all of these speeds" if self.alike else "These speeds"
        return f"{subject} can{'' if self.alike else 'not'} be compared: {first.of_all}{whose}"

    @property
    def stamp(self) -> list[Fact]:
        """Conditions of the best trial's speed."""
        return _facts(self.stamps.get(self.best, {}))


def compare_speeds(tags: Mapping[str, Mapping[str, str]], best: str) -> SpeedComparison:
    """Compare the speeds of several trials with that of the best one.

    Args:
        tags: by trial, its tags; only of those that have a speed.
        best: the trial that the others are compared with.
    """
    stamps = {trial: stamp for trial, own in tags.items() if (stamp := read_stamp(own))}
    others = [trial for trial in stamps if trial != best] if best in stamps else []
    found = {trial: [str(each) for each in differences(stamps[best], stamps[trial])] for trial in others}
    alike = sum(not reasons for reasons in found.values())
    return SpeedComparison(best, stamps, alike, len(others), len(tags) - len(stamps), _grouped(found, best))


def stamp_facts(tags: Mapping[str, str]) -> list[Fact]:
    """Return the conditions that a run's speed was measured in; empty where they were not recorded."""
    return _facts(read_stamp(tags))


def stragglers(tags: Mapping[str, str]) -> list[str]:
    """Return a line for each worker that the others had to wait for."""
    return [line for line in tags.get(metrics.STRAGGLER, "").splitlines() if line.strip()]


def _grouped(found: Mapping[str, Sequence[str]], best: str) -> list[Reason]:
    """Join reasons that differ in nothing but their figures, with the range of these."""
    kinds: dict[str, tuple[dict[str, None], list[list[str]]]] = {}
    for trial, reasons in found.items():
        for reason in reasons:
            words = _WHEN.sub(" at its start or end", _own(reason))
            trials, figures = kinds.setdefault(_FIGURE.sub("{}", words), ({}, []))
            trials[best if "the first run" in reason else trial] = None
            figures.append(_FIGURE.findall(words))
    joined = [
        Reason(kind.format(*map(_range, zip(*figures, strict=True))), list(trials))
        for kind, (trials, figures) in kinds.items()
    ]
    return sorted(joined, key=lambda reason: -len(reason.trials))


def _own(reason: str) -> str:
    """A reason as it is said of the run itself; braces in it are not those of a figure."""
    words = re.sub("the (speed|machine) of the (?:first|second) run", r"its \1", reason)
    return words.replace("{", "(").replace("}", ")")


def _range(figures: Sequence[str]) -> str:
    least, most = (choose(figures, key=lambda text: float(text.replace(",", ""))) for choose in (min, max))
    return least if least == most else f"{least} to {most}"


def _facts(stamp: Mapping[str, Any]) -> list[Fact]:
    return [Fact(key.replace("_", " "), _text(key, value)) for key, value in stamp.items() if value is not None]


def _text(key: str, value: Any) -> str:
    if "load" in key and isinstance(value, float):
        return f"{value:.1%} of the cores"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
