"""The note and metrics of a sweep's own MLflow run: best setting, comparison, cost."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from statistics import fmean, stdev
from typing import Any, Literal

from paceline.config.constraints import broken_by_seeds
from paceline.redaction import redact, redact_values
from paceline.reports.text import number_text
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.markdown import changes_part, code, escaped, table_row
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import TAG_LENGTH, param_text
from paceline.tracking.trials_table import TrialRow

TOP_SETTINGS = 20
TOP_REASONS = 10
MOST_VALUES = 3
"""Trials of an unfinished setting whose values are shown."""
_ROOM = TAG_LENGTH - 200
"""Characters of a note; hiding secrets in it may make it longer."""
_SETTING_LENGTH, _REASON_LENGTH = 160, 200
_GOING_ON = ("pending", "running", "paused")
_COUNTED = {"finished": "finished", "failed": "failed", "oom": "failed", "diverged": "failed", "pruned": "pruned"}


@dataclass(frozen=True)
class Objective:
    """A metric that the sweep optimizes."""

    metric: str
    """Key of the metric, such as `val/accuracy`."""
    mode: Literal["min", "max"]
    """`min`: less of it is better; `max`: more."""


@dataclass(frozen=True)
class _Setting:
    """The trials that differ in nothing but the seed."""

    rows: list[TrialRow]

    @cached_property
    def finished(self) -> list[TrialRow]:
        return [row for row in self.rows if row.state == "finished"]

    @cached_property
    def broken(self) -> list[str]:
        """The constraints that it breaks."""
        return broken_by_seeds([row.violations for row in self.finished])

    @property
    def text(self) -> str:
        """The setting in a few words, escaped."""
        values = redact_values({key: _value_text(value) for key, value in self.rows[0].setting.items()})
        parts = ", ".join(f"{key}={value}" for key, value in values.items())
        return escaped(_cut(parts or "as configured", _SETTING_LENGTH))

    def values(self, metric: str) -> list[float]:
        """The results: the values of the trials that have finished with one."""
        return _finite(self.finished, metric)

    def rank(self, objectives: Sequence[Objective]) -> tuple[float, ...]:
        """Sorts the better ones first; after them those with fewer finished seeds, whose value may be luck, then those
        that break a constraint, those whose trials got to a value without finishing, and the others last."""
        first = objectives[0].metric
        valued = [row for row in self.finished if _finite([row], first)]
        if not valued:
            return (1.0,) if self.newest(first) else (2.0,)
        means = [(self.values(goal.metric), goal.mode) for goal in objectives]
        losses = [(fmean(values) if mode == "min" else -fmean(values)) if values else inf for values, mode in means]
        return 0.0, float(bool(self.broken)), -len({row.seed for row in valued}), *losses

    def shown(self, metric: str) -> str:
        """Mean and spread of a metric over the seeds; empty when no trial finished with it."""
        values = self.values(metric)
        spread = f" ± {stdev(values):.2g}" if len(values) > 1 else ""
        return f"{number_text(fmean(values))}{spread}" if values else ""

    def newest(self, metric: str) -> str:
        """Return the newest values of a setting of which no trial has finished: these are not results."""
        values = [] if self.finished else _finite(self.rows, metric)
        return ", ".join(map(number_text, values[:MOST_VALUES])) + (", ..." if len(values) > MOST_VALUES else "")

    def states(self) -> str:
        if self.broken:
            return escaped(f"infeasible: {', '.join(self.broken)}")
        counted = Counter(row.state for row in self.rows)
        if len(counted) == 1:
            return escaped(self.rows[0].state)
        return ", ".join(f"{count} {escaped(state)}" for state, count in counted.items())

    def rate(self) -> str:
        rates = [row.samples_per_second for row in self.finished or self.rows if row.samples_per_second]
        return number_text(fmean(rates)) if rates else ""


def sweep_note(
    name: str,
    status: str,
    reason: str | None,
    objectives: Sequence[Objective],
    rows: Sequence[TrialRow],
    best: str | None = None,
    command: str = "",
    ledger: Ledger | None = None,
    changes: Mapping[str, tuple[str, str]] | None = None,
    pictures: str = "",
) -> str:
    """Markdown for `metrics.NOTE`, no longer than a tag may be.

    Args:
        name: the config's `name`.
        status: how the sweep stands: `running`, `finished`, `failed`, `interrupted`.
        reason: why it did not finish.
        objectives: the first one ranks the settings.
        rows: all trials.
        best: id of the best trial; by default one of the setting with the best mean.
        command: runs the best setting again, such as `paceline train best.yaml`.
        ledger: what the sweep has cost.
        changes: dotted key to what the sweep's own config has there, and what the best one has.
        pictures: Markdown that shows or names them.
    """
    settings = _settings(rows, objectives)
    shown = min(TOP_SETTINGS, len(settings))
    given = name, status, reason, objectives, settings, best, command
    changed = "" if changes is None else changes_part(changes)
    while len(note := _note(*given, shown, ledger, changed, pictures)) > _ROOM and shown:
        shown -= 1
    return note[:_ROOM]


def sweep_points(endings: Mapping[str, int], best: Mapping[str, float], timestamp_ms: int) -> list[MetricPoint]:
    """The best values so far and the counts of ended trials; their step is the number of trials that have ended.

    A recorder takes them once for each step, so they may be given at any time.

    Args:
        endings: how many trials have ended in each state, such as `finished` or `oom`.
        best: by metric, the value of the best setting: the mean over its seeds.
    """
    counts: Counter[str] = Counter()
    for state, ended in endings.items():
        counts[_COUNTED.get(state, "")] += ended
    values = {metrics.trials_metric(ending): float(counts[ending]) for ending in metrics.TRIAL_COUNTS}
    values |= {metrics.best_metric(metric): value for metric, value in best.items()}
    return [MetricPoint(key, value, sum(endings.values()), timestamp_ms) for key, value in values.items()]


def _settings(rows: Sequence[TrialRow], objectives: Sequence[Objective]) -> list[_Setting]:
    """The best first; those of equal worth in the order in which they were tried."""
    groups: dict[str, list[TrialRow]] = {}
    for row in rows:
        groups.setdefault(json.dumps(dict(row.setting), sort_keys=True, default=str), []).append(row)
    settings = [_Setting(group) for group in groups.values()]
    return sorted(settings, key=lambda setting: setting.rank(objectives)) if objectives else settings


def _note(
    name: str,
    status: str,
    reason: str | None,
    objectives: Sequence[Objective],
    settings: list[_Setting],
    best: str | None,
    command: str,
    shown: int,
    ledger: Ledger | None,
    changed: str,
    pictures: str,
) -> str:
    parts = [f"## {escaped(_cut(name, _SETTING_LENGTH))}", _answer(objectives, settings, best)]
    parts.append(f"Sweep **{escaped(status)}**" + (f": {escaped(_cut(reason, _REASON_LENGTH))}" if reason else "."))
    parts.append(changed)
    if command:
        parts.append(f"To train the best one again:\n\n{code(_cut(command, 500))}")
    rows = [row for setting in settings for row in setting.rows]
    parts += [_table(objectives, settings, shown), _troubles(rows), _spent(rows, ledger), pictures]
    return "\n\n".join(part for part in parts if part)


def _answer(objectives: Sequence[Objective], settings: list[_Setting], best: str | None) -> str:
    """The best setting, and what it is better than."""
    valued = [one for one in settings if objectives and one.values(objectives[0].metric)]
    ranked = [one for one in valued if not one.broken]
    chosen = next((one for one in ranked if any(row.id == best for row in one.rows)), None)
    if best is None and ranked:
        chosen = ranked[0]
    if chosen is None and valued:
        return f"**No best setting**: all {len(valued)} finished settings break a constraint."
    if chosen is None:
        return "**No best setting yet**: no trial has finished with a value."
    values = ", ".join(f"{escaped(goal.metric)} {chosen.shown(goal.metric)}" for goal in objectives)
    answer = f"**Best: {chosen.text}** with {values} ({_seeds(chosen)})."
    others = [one for one in ranked if one is not chosen]
    if not others:
        return f"{answer} There is no other finished setting to compare it with."
    first, last = (f"{one.text} with {one.shown(objectives[0].metric)}" for one in (others[0], others[-1]))
    worst = f"; last is {last}" if len(others) > 1 else ""
    return f"{answer} Compared with {len(others)} other finished settings: next is {first}{worst}."


def _seeds(setting: _Setting) -> str:
    count = len(setting.finished)
    return f"{count} seed{'s' * (count != 1)}"


def _table(objectives: Sequence[Objective], settings: list[_Setting], shown: int) -> str:
    if not settings:
        return ""
    has_rate = metrics.SAMPLES_PER_SECOND not in (goal.metric for goal in objectives)  # then it is shown as a goal
    goals = [f"{escaped(goal.metric)} ({goal.mode})" for goal in objectives] + ["samples/s"] * has_rate
    lines = [
        table_row(["#", "setting", *goals, "state", "seeds"]),
        table_row(["---:", "---", *["---:"] * len(goals), "---", "---:"]),
    ]
    for place, setting in enumerate(settings[:shown], 1):
        values = [setting.shown(goal.metric) or setting.newest(goal.metric) for goal in objectives]
        rate = [setting.rate()] * has_rate
        is_ranked = not objectives or (setting.values(objectives[0].metric) and not setting.broken)
        rank = str(place) if is_ranked else ""
        lines.append(table_row([rank, setting.text, *values, *rate, setting.states(), str(len(setting.rows))]))
    left = len(settings) - shown
    return "\n".join(lines) + (f"\n\n... and {left} more" if left else "")


def _finite(rows: Sequence[TrialRow], metric: str) -> list[float]:
    return [row.metrics[metric] for row in rows if isfinite(row.metrics.get(metric, float("nan")))]


def _value_text(value: Any) -> str:  # a float with four digits
    return f"{value:.4g}" if isinstance(value, float) else param_text(value)


def _troubles(rows: Sequence[TrialRow]) -> str:
    """Return the trials that did not finish, grouped by reason, the most frequent first."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.state not in (*_GOING_ON, "finished"):
            found.setdefault((row.state, redact(row.reason) or "no reason given"), []).append(row.id)
    if not found:
        return ""
    ordered = sorted(found.items(), key=lambda item: -len(item[1]))
    lines = [
        f"- {len(ids)} **{escaped(state)}** ({_ids(ids)}): {escaped(_cut(reason, _REASON_LENGTH))}"
        for (state, reason), ids in ordered[:TOP_REASONS]
    ]
    left = sum(len(ids) for _, ids in ordered[TOP_REASONS:])
    return "\n".join(["Did not finish:", "", *lines, *([f"- ... and {left} more"] if left else [])])


def _ids(ids: list[str]) -> str:
    return escaped(", ".join(ids[:5])) + (", ..." if len(ids) > 5 else "")


def _spent(rows: Sequence[TrialRow], ledger: Ledger | None) -> str:
    """Return the cost of the sweep by part; where nobody counted, the samples and worker-seconds of all
    trials, and how much of them went into what did not finish."""
    if ledger is not None and ledger.allocated:
        samples = sum(row.samples for row in rows)
        return f"Spent on {len(rows)} trials with {samples:,} samples:\n\n{ledger.markdown()}"
    if not rows:
        return ""
    parts = [f"Spent on {len(rows)} trials: {_cost(rows)}"]
    for ending in ("failed", "pruned"):
        those = [row for row in rows if _COUNTED.get(row.state) == ending]
        if those:
            parts.append(f"of these {_cost(those)} on {len(those)} {ending}")
    return "; ".join(parts) + "."


def _cost(rows: Sequence[TrialRow]) -> str:
    seconds = sum(row.seconds * row.workers for row in rows)
    return f"{sum(row.samples for row in rows):,} samples and {seconds:,.0f} worker-seconds"


def _cut(text: str, length: int) -> str:
    whole = redact(text)  # of a secret that is cut first, a part would stay
    return whole if len(whole) <= length else whole[: length - 3] + "..."
