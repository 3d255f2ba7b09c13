"""The attempts of a run that was resumed: when each began, how far it came, and what was changed in between."""

from paceline.runs.report.html import Child, Value
from paceline.runs.report.numbers import count_text, counted, seconds_text
from paceline.runs.report.parts import Section, pill, table, time_text
from paceline.runs.report.run_story import STATUS_WORDS, RunStory
from paceline.tracking import metrics

MOST_STEPS = 5
"""Steps that a sentence names."""


def resumed_words(story: RunStory) -> str:
    """How often the run was resumed and where, as `resumed after step 87`; empty for one that never was."""
    steps = [f"{each.step:,}" for each in story.told.resumes]
    if not steps:
        return ""
    often = f"resumed {len(steps):,} times, " if len(steps) > 1 else "resumed "
    more = f" and {len(steps) - MOST_STEPS:,} more" if len(steps) > MOST_STEPS else ""
    return f"{often}after {'steps' if len(steps) > 1 else 'step'} {', '.join(steps[:MOST_STEPS])}{more}"


def changed_words(story: RunStory) -> str:
    """The params that were changed on the way, each with its old and new value."""
    return "; ".join(line for line in story.told.tags.get(metrics.CHANGED_PARAMS, "").splitlines() if line.strip())


def attempts_section(story: RunStory) -> list[Section]:
    """A row for each attempt; none of a run that was never resumed."""
    told = story.told
    if not told.resumes:
        return []
    heading = [("attempt", True), ("began", False), ("from step", True), ("to step", True), ("took", True), ("", False)]
    starts = [story.started_ms, *(each.began_ms for each in told.resumes)]
    ends = [*(each.ended_ms for each in told.resumes), told.finally_ms]
    steps = [0, *(each.step for each in told.resumes), told.newest_step]
    states = [*(STATUS_WORDS.get(each.ending, "lost") for each in told.resumes), story.status]
    rows: list[list[tuple[Child, float | None]]] = [
        [
            (str(place + 1), place),
            (time_text(starts[place]), starts[place]),
            (count_text(steps[place]), steps[place]),
            (count_text(steps[place + 1]), steps[place + 1]),
            _duration(starts[place], ends[place]),
            (pill(state), None),
        ]
        for place, state in enumerate(states)
    ]
    about: list[dict[str, Value]] = [
        {"data_attempt": place, "data_state": state} for place, state in enumerate(states, 1)
    ]
    note = f"{seconds_text(told.paused_seconds)} lie between them. The steps are those that were recorded."
    return [Section("attempts", f"Its {counted(len(states), 'attempt')}", table(heading, rows, about=about), note)]


def _duration(start: int | None, end: int | None) -> tuple[Child, float | None]:
    if start is None or end is None:
        return "", None
    seconds = max(end - start, 0) / 1000
    return seconds_text(seconds), seconds
