"""The table of a sweep's settings, best first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.reports.text import metric_text
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.ranking import Objective, SettingSummary
from paceline.sweeps.trial import Trial, axis_keys
from paceline.tracking.run_record import param_text

MOST_ROWS = 1000
"""Settings that the table shows."""
_MEASURES = {"samples_per_second": "samples/s", "seconds": "time", "peak_memory_bytes": "peak memory"}
"""Measured of every trial, with its heading."""
DOUBT, LOADING = "*", "†"
"""Marks in the heading of a column that needs an explanation."""


@dataclass(frozen=True)
class Cell:
    """A cell of the table."""

    text: str
    value: float | None = None
    """The number to sort by; None sorts by the text."""
    is_number: bool = True
    title: str = ""
    """The whole value, where the text is shortened."""
    is_quiet: bool = False


@dataclass(frozen=True)
class RankedRow:
    """A setting with its cells; its trials are shown behind them."""

    cells: Sequence[Cell]
    trials: Sequence[Trial]


@dataclass(frozen=True)
class Ranking:
    """All settings of a sweep, those without a result included."""

    headings: Sequence[tuple[str, bool]]
    """Text of each column, and True if the column has numbers."""
    rows: Sequence[RankedRow]
    left_out: int
    """Settings beyond `MOST_ROWS`."""
    has_time: bool
    """True if the duration of a trial is a column."""


def ranking_of(
    trials: Sequence[Trial],
    objectives: Sequence[Objective],
    ranked: Sequence[SettingSummary],
    others: Sequence[SettingSummary],
    is_speed_doubtful: bool,
) -> Ranking:
    """Return the table.

    Args:
        trials: trials of the sweep.
        objectives: metrics of the sweep.
        ranked: settings with a result, best first.
        others: settings without a result.
        is_speed_doubtful: True marks the columns of speeds as doubtful.
    """
    keys = axis_keys(trials)
    names = labels.short_names(keys)
    axes = {key: all(labels.is_number(each.params[key]) for each in trials if key in each.params) for key in keys}
    goals = [metric for metric, _ in objectives]
    measures = [measure for measure in _MEASURES if measure not in goals]
    doubt = f" {DOUBT}" if is_speed_doubtful else ""
    marks = {"samples_per_second": doubt, "seconds": f"{doubt} {LOADING}"}
    has_seeds = any("seed" in trial.params for trial in trials)
    has_constraints = any(trial.violations for trial in trials)
    headings = [
        ("#", True),
        *((names[key], is_number) for key, is_number in axes.items()),
        *((metric, True) for metric in goals),
        *((_MEASURES[measure] + marks.get(measure, ""), True) for measure in measures),
        *([("feasible", False)] if has_constraints else []),
        ("seeds" if has_seeds else "finished", True),
        ("trials", False),
    ]
    every = [*ranked, *others]
    rows = [
        RankedRow(_cells(place, place <= len(ranked), each, axes, goals, measures, has_constraints), each.trials)
        for place, each in enumerate(every[:MOST_ROWS], 1)
    ]
    return Ranking(headings, rows, max(len(every) - MOST_ROWS, 0), "seconds" in measures)


def ranking_rule(objectives: Sequence[Objective], has_constraints: bool = False) -> str:
    """Return a line about the order of the settings."""
    broken = " then those that break a constraint," if has_constraints else ""
    (metric, mode), *further = objectives
    words = f"By the mean of {metric} over the finished seeds, {'highest' if mode == 'max' else 'lowest'} first"
    words += f"; among equals by {', '.join(name for name, _ in further)}" if further else ""
    return f"{words}. Settings with fewer finished seeds follow,{broken} those without a result are last."


def _cells(
    place: int,
    is_ranked: bool,
    summary: SettingSummary,
    axes: Mapping[str, bool],
    goals: Sequence[str],
    measures: Sequence[str],
    has_constraints: bool,
) -> list[Cell]:
    done, total = len(summary.finished), len(summary.trials)
    return [
        Cell(str(place) if is_ranked and not summary.broken else "", place),
        *(_axis_cell(summary, key, is_number) for key, is_number in axes.items()),
        *(_metric_cell(summary, metric) for metric in goals),
        *(_mean_cell(summary, measure) for measure in measures),
        *([_feasible_cell(summary)] if has_constraints else []),
        Cell(str(done) if done == total else f"{done} of {total}", done),
    ]


def _axis_cell(summary: SettingSummary, key: str, is_number: bool) -> Cell:
    if key not in summary.setting:
        return Cell("", is_number=is_number)
    value = summary.setting[key]
    words = labels.value_text(value)
    title = param_text(value) if words.endswith("…") else ""
    return Cell(words, float(value) if is_number else None, is_number, title)


def _metric_cell(summary: SettingSummary, metric: str) -> Cell:
    """The mean and the spread of a result; of a setting without one, in grey, the newest values of its trials."""
    values = ranking.aggregate(summary.trials, [metric])[0].spreads[metric]
    if values.n:
        text = metric_text(values.mean, metric)
        is_measure = metric in ranking.MEASURES
        return Cell(text if is_measure else labels.spread_text(values.mean, values.std, values.n), values.mean)
    newest = [value for trial in summary.trials if (value := ranking.value_of(trial, metric)) is not None]
    texts = [metric_text(value, metric) for value in newest[:3]]
    return Cell(", ".join(texts), newest[0] if newest else None, is_quiet=True)


def _feasible_cell(summary: SettingSummary) -> Cell:
    """Return a cell with `yes` for a finished setting that satisfies all constraints, else the violated ones."""
    if summary.broken:
        return Cell(f"no: {', '.join(summary.broken)}", is_number=False)
    return Cell("yes" if summary.finished else "", is_number=False)


def _mean_cell(summary: SettingSummary, measure: str) -> Cell:
    """Return a cell with the mean over the finished trials, or over all trials if none has finished."""
    values = [value for trial in summary.finished or summary.trials if (value := ranking.value_of(trial, measure))]
    if not values:
        return Cell("")
    mean = sum(values) / len(values)
    return Cell(metric_text(mean, measure), mean)
