"""What a run's speed was measured on, and whether the speeds of a sweep's trials can be compared at all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.runs.report.html import Child, Markup, Value, tag
from paceline.runs.report.numbers import counted
from paceline.runs.report.parts import Section, facts, pill
from paceline.tracking import metrics
from paceline.tracking.comparing import differences, read_stamp

MOST_REASONS = 12
NAMED = 8
"""Trials of one reason that are named."""
_WHEN = re.compile(" at the (?:start|end) of the (?:first|second) run")
_FIGURE = re.compile(r"\d[\d,]*(?=%| steps| MHz| and [\d,]+ MHz)")
"""What differs between reasons of one kind."""


@dataclass(frozen=True)
class Comparison:
    """Which of several trials' speeds can be compared with that of the best one."""

    best: str
    stamps: Mapping[str, Mapping[str, Any]]
    """Those of the trials that have one."""
    alike: int
    others: int
    """Trials with a stamp, without the best one."""
    unknown: int
    """Trials without a stamp."""
    reasons: Mapping[str, Sequence[str]]
    """Why not, and the trials that it is true of; the most frequent first."""

    @property
    def is_known(self) -> bool:
        """Whether there is anything to compare."""
        return self.best in self.stamps and self.others > 0

    @property
    def doubt(self) -> str:
        """Why the speeds are no measure of the settings, in a few words; empty where nothing is known against them."""
        if not self.is_known or self.alike == self.others:
            return ""
        reason, trials = next(iter(self.reasons.items()))
        whose = f" (trial {trials[0]})" if len(trials) == 1 else ""
        subject = "These speeds cannot be compared" if not self.alike else "Not all of these speeds can be compared"
        return f"{subject}: {_theirs(reason, len(trials))}{whose}"


def compared(tags: Mapping[str, Mapping[str, str]], best: str) -> Comparison:
    """Compare the speeds of several trials with that of the best one.

    Args:
        tags: by trial, its tags; only of those that have a speed.
        best: the trial that the others are compared with.
    """
    stamps = {trial: read_stamp(own) for trial, own in tags.items()}
    stamped = {trial: stamp for trial, stamp in stamps.items() if stamp}
    others = [trial for trial in stamped if trial != best] if best in stamped else []
    found = {trial: [str(each) for each in differences(stamped[best], stamped[trial])] for trial in others}
    alike = sum(not reasons for reasons in found.values())
    return Comparison(best, stamped, alike, len(others), len(tags) - len(stamped), _grouped(found, best))


def compared_section(comparison: Comparison) -> Section:
    """Whether the speeds of several trials can be compared with that of the best one, and why not."""
    title, best = "Can their speeds be compared?", comparison.best
    if not comparison.is_known:
        words = "Not known: fewer than two of the finished trials tell what their speed was measured on."
        return Section("speeds", title, tag("p", words))
    alike, others, unknown = comparison.alike, comparison.others, comparison.unknown
    verdict = f"{alike:,} of {counted(others, 'finished trial')} can be compared with {best}, the best one."
    doubt = f" {counted(unknown, 'trial')} more do not tell what their speed was measured on." if unknown else ""
    counts: dict[str, Value] = {"data_alike": alike, "data_others": others, "data_unknown": unknown, "data_trial": best}
    content: list[Child] = [
        tag("p", _pill(alike, others), " ", verdict, doubt, **counts),
        _reasons(comparison.reasons),
    ]
    more = _stamp_facts(comparison.stamps[best])
    return Section("speeds", title, [*content, tag("h3", f"What the speed of {best} was measured on"), more])


def _grouped(found: Mapping[str, Sequence[str]], best: str) -> dict[str, list[str]]:
    """Reasons that differ in nothing but their figures as one, with the range of these, and the trials of each."""
    kinds: dict[str, tuple[dict[str, None], list[list[str]]]] = {}
    for trial, reasons in found.items():
        for reason in reasons:
            words = _WHEN.sub(" at its start or end", _own(reason))
            trials, figures = kinds.setdefault(_FIGURE.sub("{}", words), ({}, []))
            trials[best if "the first run" in reason else trial] = None
            figures.append(_FIGURE.findall(words))
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1][0]))
    return {kind.format(*map(_range, zip(*figures, strict=True))): list(trials) for kind, (trials, figures) in ordered}


def _own(reason: str) -> str:
    """A reason as it is said of the run itself: braces in it are those of no figure."""
    words = re.sub("the (speed|machine) of the (?:first|second) run", r"its \1", reason)
    return words.replace("{", "(").replace("}", ")")


def _range(figures: Sequence[str]) -> str:
    least, most = (choose(figures, key=lambda text: float(text.replace(",", ""))) for choose in (min, max))
    return least if least == most else f"{least} to {most}"


def _theirs(reason: str, count: int) -> str:
    return re.sub(r"\bits\b", "their", reason) if count > 1 else reason


def _pill(alike: int, others: int) -> Markup:
    if alike == others:
        return pill("finished", "yes")
    return pill("failed", "no") if not alike else pill("pruned", "some")


def _reasons(reasons: Mapping[str, Sequence[str]]) -> Child:
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    items = [
        tag("li", f"{counted(len(own), 'trial')} ({_names(own)}): {_theirs(text, len(own))}", data_trials=" ".join(own))
        for text, own in ordered[:MOST_REASONS]
    ]
    left = len(ordered) - MOST_REASONS
    items += [tag("li", f"... and {counted(left, 'reason')} more")] if left > 0 else []
    return tag("ul", items, class_="reasons") if items else None


def _names(trials: Sequence[str]) -> str:
    return ", ".join(trials[:NAMED]) + (", …" if len(trials) > NAMED else "")


def measured_section(tags: Mapping[str, str]) -> list[Section]:
    """What a run's speed was measured on, and which of its workers the others waited for; none where it is not told."""
    stamp = read_stamp(tags)
    slow = tags.get(metrics.STRAGGLER, "")
    if not stamp and not slow:
        return []
    lines = [tag("li", pill("pruned", "straggler"), " ", line) for line in slow.splitlines() if line.strip()]
    words = tag("ul", lines, class_="reasons") if lines else tag("p", "The others had to wait for none of the workers.")
    note = "Speeds can be compared where these are alike."
    return [Section("speeds", "What its speed was measured on", [words, _stamp_facts(stamp)], note)]


def _stamp_facts(stamp: Mapping[str, Any]) -> Markup:
    return facts([(key.replace("_", " "), _text(key, value)) for key, value in stamp.items() if value is not None])


def _text(key: str, value: Any) -> str:
    if "load" in key and isinstance(value, float):
        return f"{value:.1%} of the cores"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
