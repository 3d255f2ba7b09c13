"""The table of a sweep's settings, best first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.runs.report.html import Child, Markup, link, tag
from paceline.runs.report.numbers import formatter
from paceline.runs.report.parts import caveat, pill, table
from paceline.runs.report.sweep_story import SweepStory
from paceline.sweeps.results import labels, ranking, trial_texts
from paceline.sweeps.results.ranking import SettingSummary
from paceline.sweeps.trials import Trial
from paceline.tracking.record import param_text

MOST_ROWS = 1000
"""Settings that the table shows."""
MOST_IDS = 12
"""Trials that a setting, or a reason, names."""

_MEASURES = {"samples_per_second": "samples/s", "seconds": "time", "peak_memory_bytes": "peak memory"}
"""What every trial knows of itself, and its heading."""

DOUBT, LOADING = "*", "†"
"""Signs at the headings of what is not quite what it looks like."""

Cell = tuple[Child, float | None]


@dataclass(frozen=True)
class _Columns:
    """What the table shows of each setting."""

    axes: dict[str, bool]
    """By dotted key, whether all of its values are numbers."""
    objectives: list[str]
    measures: list[str]
    seeds: str
    """What there are several of for a setting."""
    marks: Mapping[str, str]
    """By measure, the sign that a line under the table says more about."""

    @property
    def heading(self) -> list[tuple[str, bool]]:
        names = labels.short_names(self.axes)
        own = [(names[key], is_number) for key, is_number in self.axes.items()]
        measured = [(_MEASURES[measure] + self.marks.get(measure, ""), True) for measure in self.measures]
        goals = [(metric, True) for metric in self.objectives]
        return [("#", True), *own, *goals, *measured, (self.seeds, True), ("trials", False)]


def how_ranked(story: SweepStory) -> str:
    """What puts one setting above another."""
    (metric, mode), *further = story.result.objectives
    words = f"By the mean of {metric} over the finished seeds, {'highest' if mode == 'max' else 'lowest'} first"
    words += f"; among equals by {', '.join(name for name, _ in further)}" if further else ""
    after = "Settings with fewer finished seeds come after the others, those without a result last."
    return f"{words}. {after} Trials in green have finished."


def ranking_table(story: SweepStory) -> Child:
    """All settings, those without a result included."""
    every = [*story.ranked, *story.others]
    if not every:
        return tag("p", "No trial has begun.")
    columns = _columns(story)
    rows = [_row(story, columns, rank, summary) for rank, summary in enumerate(every[:MOST_ROWS], 1)]
    left = len(every) - MOST_ROWS
    more = tag("p", f"... and {left:,} more, see the artifact trials.csv") if left > 0 else None
    about = [{"data_setting": " ".join(trial.id for trial in each.trials)} for each in every[:MOST_ROWS]]
    return [table(columns.heading, rows, "sortable", "ranking of the settings", about), more, _remarks(story, columns)]


def _remarks(story: SweepStory, columns: _Columns) -> list[Markup]:
    """What the marks in the heading stand for."""
    first = story.result.trials[0].id
    loaded = "What a group of workers loads only once, such as libraries, is in the time of its first trial"
    has_time = LOADING in columns.marks.get("seconds", "")
    doubt = [caveat(DOUBT, story.speed_doubt, "speeds")] if story.speed_doubt else []
    return [*doubt, *([tag("p", f"{LOADING} {loaded}, such as {first}.", class_="quiet")] if has_time else [])]


def _columns(story: SweepStory) -> _Columns:
    result = story.result
    found = {
        key: [trial.overrides[key] for trial in result.trials if key in trial.overrides]
        for key in trial_texts.axis_keys(result.trials)
    }
    axes = {key: all(map(labels.is_number, values)) for key, values in found.items()}
    objectives = [metric for metric, _ in result.objectives]
    measures = [measure for measure in _MEASURES if measure not in objectives]
    seeds = "seeds" if any("seed" in trial.overrides for trial in result.trials) else "finished"
    doubt = f" {DOUBT}" if story.speed_doubt else ""
    marks = {"samples_per_second": doubt, "seconds": f"{doubt} {LOADING}"}
    return _Columns(axes, objectives, measures, seeds, marks)


def _row(story: SweepStory, columns: _Columns, rank: int, summary: SettingSummary) -> list[Cell]:
    done, total = len(summary.finished), len(summary.trials)
    return [
        (str(rank) if rank <= len(story.ranked) else "", rank),
        *(_axis_cell(summary, key, is_number) for key, is_number in columns.axes.items()),
        *(_metric_cell(summary, metric) for metric in columns.objectives),
        *(_mean_cell(summary, measure) for measure in columns.measures),
        (str(done) if done == total else f"{done} of {total}", done),
        (_trial_pills(story, summary.trials), None),
    ]


def _axis_cell(summary: SettingSummary, key: str, is_number: bool) -> Cell:
    if key not in summary.setting:
        return "", None
    value = summary.setting[key]
    words = labels.value_text(value)
    shown = tag("span", words, title=param_text(value)) if words.endswith("…") else words
    return shown, float(value) if is_number else None


def _metric_cell(summary: SettingSummary, metric: str) -> Cell:
    """The mean and the spread of a result; of a setting without any, in grey, what its trials got to."""
    values = ranking.aggregate(summary.trials, [metric])[0].spreads[metric]
    if values.n:
        text = formatter(metric)(values.mean)
        words = text if metric in ranking.MEASURES else labels.spread_text(values.mean, values.std, values.n)
        return words, values.mean
    newest = [value for trial in summary.trials if (value := ranking.value_of(trial, metric)) is not None]
    if not newest:
        return "", None
    return tag("span", ", ".join(map(formatter(metric), newest[:3])), class_="quiet"), newest[0]


def _mean_cell(summary: SettingSummary, measure: str) -> Cell:
    """The mean over the finished trials, or over all where none has finished."""
    values = [value for trial in summary.finished or summary.trials if (value := ranking.value_of(trial, measure))]
    mean = sum(values) / len(values) if values else None
    return formatter(measure)(mean) if mean is not None else "", mean


def _trial_pills(story: SweepStory, trials: Sequence[Trial]) -> list[Child]:
    """The trials in the colors of their states, in words where they did not finish; links where MLflow has them."""
    pills: list[Child] = []
    for trial in trials[:MOST_IDS]:
        state = "" if trial.state == "finished" else f" {labels.state_text(trial.state)}"
        pills += [pill(trial.state, [link(story.trials[trial.id].url, trial.id), state], data_trial=trial.id), " "]
    return [*pills, "…" if len(trials) > MOST_IDS else None]


def trial_links(story: SweepStory, trials: Sequence[Trial]) -> list[Child]:
    """Ids of trials, links where MLflow has them."""
    links: list[Child] = [[link(story.trials[trial.id].url, trial.id), " "] for trial in trials[:MOST_IDS]]
    return [*links, "…" if len(trials) > MOST_IDS else None]
