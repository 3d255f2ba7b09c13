"""What a sweep's trials have cost, and which of them did not finish, and why."""

from collections import Counter
from collections.abc import Sequence

from paceline.runs.report.costs import cost_table
from paceline.runs.report.html import Child, Markup, tag
from paceline.runs.report.numbers import count_text, counted, percent_text, seconds_text
from paceline.runs.report.parts import Section, pill, table
from paceline.runs.report.sweep_story import SweepStory
from paceline.runs.report.sweep_table import trial_links
from paceline.sweeps.results import labels, trial_texts
from paceline.sweeps.trials import NOT_TRAINED, TROUBLE, Trial

MOST_REASONS = 30
LONGEST_REASON = 600
_SUFFERED = ("pruned", *TROUBLE, *NOT_TRAINED)


def unfinished_section(story: SweepStory) -> list[Section]:
    """What did not finish, the reasons grouped, the most frequent first."""
    found: dict[tuple[str, str], list[Trial]] = {}
    for trial in story.result.trials:
        if trial.state in _SUFFERED:
            found.setdefault((trial.state, " ".join(trial.reason.split())), []).append(trial)
    if not found:
        return []
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    items = [_reason(story, state, reason, trials) for (state, reason), trials in ordered[:MOST_REASONS]]
    left = sum(len(trials) for _, trials in ordered[MOST_REASONS:])
    content = [tag("ul", items, class_="reasons"), tag("p", f"... and {counted(left, 'trial')} more") if left else None]
    return [
        Section("unfinished", "What did not finish", content, trial_texts.counts_text(story.result.trials, _SUFFERED))
    ]


def _reason(story: SweepStory, state: str, reason: str, trials: Sequence[Trial]) -> Markup:
    words = labels.shortened(reason or "no reason given", LONGEST_REASON)
    return tag(
        "li",
        pill(state, f"{len(trials)} {labels.state_text(state)}"),
        " ",
        words,
        tag("div", "trial ", trial_links(story, trials), class_="quiet"),
        data_state=state,
        data_trials=" ".join(trial.id for trial in trials),
    )


def cost_of(story: SweepStory) -> list[Child]:
    """The ledger, and what went into trials that ended in each way."""
    parts: list[Child] = [cost_table(story.ledger)] if story.ledger is not None and story.ledger.allocated else []
    trials = story.result.trials
    whole = sum(trial.seconds for trial in trials)
    rows = []
    for state, count in Counter(trial.state for trial in trials).most_common():
        own = [trial for trial in trials if trial.state == state]
        seconds, samples = sum(trial.seconds for trial in own), sum(trial.samples for trial in own)
        share = seconds / whole if whole else 0.0
        rows.append(
            [
                (pill(state, labels.state_text(state)), None),
                (count_text(count), count),
                (count_text(samples), samples),
                (seconds_text(seconds), seconds),
                (percent_text(share), share),
            ]
        )
    heading = [("trials that", False), ("number", True), ("samples", True), ("time on workers", True), ("share", True)]
    return (
        [*parts, tag("h3", "By how trials ended") if parts else None, table(heading, rows)]
        if rows
        else [*parts, tag("p", "Nothing was spent.")]
    )
