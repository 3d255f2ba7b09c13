"""The report of a sweep."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError
from paceline.redaction import redact, redact_values
from paceline.reports.page import Fact, Page, PageSection, Tile, render
from paceline.reports.text import counted, number_text, seconds_text, time_text
from paceline.runs.readable import readable
from paceline.runs.report.costs import cost_tile, cost_values
from paceline.runs.report.origin import origin_values
from paceline.runs.report.speed_comparison import SpeedComparison, compare_speeds
from paceline.runs.report.sweep_charts import sweep_charts
from paceline.runs.report.sweep_ranking import ranking_of, ranking_rule
from paceline.storage.address import RunStore
from paceline.sweeps.results import labels, ranking, result_text
from paceline.sweeps.results.curves import keys_of
from paceline.sweeps.results.pictures import COSTS, SHARES, pareto_pair
from paceline.sweeps.results.ranking import SettingSummary
from paceline.sweeps.results.record import without_secrets
from paceline.sweeps.results.reopening import sweep_in
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.states import ENDED, NOT_TRAINED, TROUBLE
from paceline.sweeps.trial import Trial, axis_keys, planned_order
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.recorded_run import RecordedRun, ledger_of, read_run
from paceline.tracking.run_record import flatten, param_text

LONGEST_NAME = 140
"""Characters of a setting in a sentence."""
LONGEST_REASON = 600
MOST_REASONS = 30
MOST_TRIALS = 12
"""Trials of a setting or of a reason that are named."""
_UNFINISHED = ("pruned", *TROUBLE, *NOT_TRAINED)


@dataclass(frozen=True)
class Change:
    """A field in which two configs differ; None where one has no such field."""

    key: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class UnfinishedTrials:
    """Trials that ended in one way for one reason."""

    state: str
    reason: str
    trials: Sequence[Trial]


@dataclass(frozen=True)
class StateCost:
    """Everything that the trials in one state took."""

    state: str
    count: int
    samples: int
    seconds: float
    share: float


class ThinnedHistories(Mapping[str, Sequence[MetricPoint]]):
    """By the id of a trial its points, thinned out."""

    def __init__(self, trials: Mapping[str, RecordedRun]) -> None:
        self._trials = trials

    def __getitem__(self, trial_id: str) -> list[MetricPoint]:
        curves = self._trials[trial_id].curves
        return [MetricPoint(key, y, round(x), 0) for key, curve in curves.items() for x, y in curve.means]

    def __iter__(self) -> Iterator[str]:
        return iter(self._trials)

    def __len__(self) -> int:
        return len(self._trials)


@dataclass(frozen=True)
class SweepReport:
    """Contents of the folder of a sweep, without secrets. The template `sweep.html` shows them."""

    result: SweepResult
    recorded: RecordedRun
    trials: Mapping[str, RecordedRun]
    """Records of the trials by id, with the curves that are drawn."""
    ranked: Sequence[SettingSummary]
    """Settings with a result, best first; those that violate a constraint are last."""
    others: Sequence[SettingSummary]
    """Settings without a result, in the order of their trials."""
    ledger: Ledger | None

    @cached_property
    def feasible(self) -> list[SettingSummary]:
        """Settings with a result that satisfy all constraints, best first."""
        return [summary for summary in self.ranked if not summary.broken]

    @property
    def best(self) -> SettingSummary | None:
        """Best setting that satisfies all constraints; None if none has a result."""
        return self.feasible[0] if self.feasible else None

    @cached_property
    def names(self) -> dict[str, str]:
        """Short names of the axes, by dotted key."""
        return labels.short_names(axis_keys(self.result.trials))

    @cached_property
    def speeds(self) -> SpeedComparison | None:
        """Comparison of the finished trials' speeds; None where none has a result."""
        if self.best is None:
            return None
        tags = {trial.id: self.trials[trial.id].tags for trial in self.result.trials if trial.state == "finished"}
        return compare_speeds(tags, ranking.best_seed(self.best, self.result.objectives).id)

    @property
    def speed_doubt(self) -> str:
        """Reason why the speeds do not measure the settings; empty where nothing is known against them."""
        return self.speeds.doubt if self.speeds is not None else ""

    @property
    def speed_doubt_in_charts(self) -> str:
        """The same, where a chart shows speeds."""
        pair = pareto_pair(self.result.trials, self.result.objectives)
        return self.speed_doubt if pair is not None and pair[0][0] in COSTS else ""

    @property
    def metric(self) -> str:
        """The first objective."""
        return self.result.objectives[0][0]

    @property
    def best_values(self) -> str:
        """The objectives of the best setting."""
        return ", ".join(f"{metric} {self.spread(self.feasible[0], metric)}" for metric, _ in self.result.objectives)

    @property
    def worst(self) -> SettingSummary:
        """By the first objective alone, whatever the number of seeds."""
        metric, mode = self.result.objectives[0]
        choose = min if mode == "max" else max
        return choose(self.feasible[1:], key=lambda summary: summary.spreads[metric].mean)

    @property
    def is_tied(self) -> bool:
        """True where the first two differ by less than their seeds do."""
        one, other = (summary.spreads[self.metric] for summary in self.feasible[:2])
        return one.n > 1 and other.n > 1 and abs(one.mean - other.mean) <= max(one.std, other.std)

    @property
    def seeds(self) -> str:
        """Number of finished seeds of the best setting."""
        best = self.feasible[0]
        return counted(len(best.finished), "seed" if any("seed" in each.params for each in best.trials) else "trial")

    @property
    def states(self) -> str:
        """Number of trials in each state."""
        return result_text.counts_text(self.result.trials)

    @cached_property
    def best_yaml(self) -> str:
        """The config of the best trial; empty without one."""
        path = self.result.best_config_path
        try:
            return Path(path).read_text("utf-8", "replace") if path else ""
        except OSError:
            return ""

    @property
    def command(self) -> str:
        """The command that trains the best setting again; empty without one."""
        path = self.result.best_config_path
        return f"paceline train {shlex.quote(path)}" if path else ""

    @cached_property
    def changes(self) -> list[Change]:
        """Fields in which the best config differs from the sweep's own."""
        try:
            best = self.result.best_config
        except ConfigError:  # of another version, or of code that is not here
            return []
        if best is None:
            return []
        before = _texts(self.result.config.model_copy(update={"sweep": None}).model_dump(mode="json"))
        after = _texts(best.model_dump(mode="json"))
        keys = sorted(before.keys() | after.keys())
        return [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]

    @property
    def endings(self) -> list[UnfinishedTrials]:
        """Trials that did not finish, by state and reason, the most frequent first."""
        found: dict[tuple[str, str], list[Trial]] = {}
        for trial in self.result.trials:
            if trial.state in _UNFINISHED:
                found.setdefault((trial.state, " ".join(trial.reason.split())), []).append(trial)
        endings = [
            UnfinishedTrials(state, labels.shortened(reason or "no reason given", LONGEST_REASON), trials)
            for (state, reason), trials in found.items()
        ]
        return sorted(endings, key=lambda ending: -len(ending.trials))

    @property
    def state_costs(self) -> list[StateCost]:
        """Time and samples by the way that trials ended."""
        trials = self.result.trials
        whole = sum(trial.seconds for trial in trials)
        costs = []
        for state, count in Counter(trial.state for trial in trials).most_common():
            own = [trial for trial in trials if trial.state == state]
            seconds = sum(trial.seconds for trial in own)
            costs.append(StateCost(state, count, sum(t.samples for t in own), seconds, seconds / whole if whole else 0))
        return costs

    def setting(self, summary: SettingSummary) -> str:
        """Return a setting in a line."""
        text = labels.setting_text(summary.setting, self.names) or "as configured"
        return labels.shortened(text, LONGEST_NAME)

    def spread(self, summary: SettingSummary, metric: str) -> str:
        """Return the mean and the deviation of a metric; empty without a value."""
        spread = summary.spreads[metric]
        return labels.spread_text(spread.mean, spread.std, spread.n) if spread.n else ""

    def ids(self, trials: Sequence[Trial]) -> str:
        """Return the ids of trials."""
        return " ".join(trial.id for trial in trials)

    def state_text(self, state: str) -> str:
        """Return a state in words."""
        return labels.state_text(state)

    def url(self, trial_id: str) -> str:
        """Return the page of a trial in MLflow; empty where there is none."""
        return self.trials[trial_id].url

    def render(self) -> bytes:
        """Return the HTML file."""
        result, endings = self.result, self.endings
        unfinished = result_text.counts_text(result.trials, _UNFINISHED)
        has_best = bool(self.feasible) and bool(self.command or self.changes or self.best_yaml)
        tip = "Point at a line, a dot or a cell to see its setting and value."
        own = [
            PageSection("ranking", "Ranking", ranking_rule(result.objectives, result.has_constraints)),
            PageSection("pictures", "Pictures", tip),
            PageSection("best", "Best config") if has_best else None,
            PageSection("unfinished", "Trials that did not finish", unfinished) if endings else None,
            PageSection("cost", "Cost"),
            PageSection("speeds", "Comparable speeds") if self.speeds is not None else None,
            PageSection("origin", "Origin"),
        ]
        page = Page(
            kind="sweep",
            name=result.name,
            id=result.sweep_id,
            status=result.status,
            subtitle=self._subtitle(),
            tiles=list(self._tiles()),
            sections=[section for section in own if section is not None],
            warnings=self.recorded.warnings,
        )
        has_cost = self.ledger is not None and self.ledger.allocated
        return render(
            "sweep.html",
            page,
            sweep=self,
            most_trials=MOST_TRIALS,
            ranking=ranking_of(result.trials, result.objectives, self.ranked, self.others, bool(self.speed_doubt)),
            charts=sweep_charts(result, ThinnedHistories(self.trials), self.recorded.data(SHARES)),
            endings=endings[:MOST_REASONS],
            endings_left=sum(len(ending.trials) for ending in endings[MOST_REASONS:]),
            cost=cost_values(self.ledger) if self.ledger is not None and has_cost else None,
            **origin_values(self.recorded, self._places()),
        )

    @property
    def _seconds(self) -> float | None:
        """Seconds from the first launch to the end of the last one."""
        if not self.recorded.resumes:
            return self.result.wall_seconds
        return self.recorded.seconds_since(self.recorded.started_ms(self.result.sweep_id))

    def _pause(self) -> str:
        if not self.recorded.resumes:
            return ""
        return f"{seconds_text(self.recorded.paused_seconds)} of it between its launches"

    def _subtitle(self) -> str:
        start, resumes = self.recorded.started_ms(self.result.sweep_id), self.recorded.resumes
        parts = [
            f"started {time_text(start)}" if start else "",
            f"resumed {counted(len(resumes), 'time')}" if resumes else "",
            f"took {seconds_text(self._seconds)}" if self._seconds else "",
            self._pause(),
            self.recorded.tags.get(metrics.STATUS_REASON, ""),
        ]
        return " · ".join(filter(None, parts))

    def _tiles(self) -> Iterator[Tile]:
        trials = self.result.trials
        if self.best is not None:
            metric, mode = self.result.objectives[0]
            better = "higher is better" if mode == "max" else "lower is better"
            yield Tile(f"best {metric}", self.spread(self.best, metric), better)
        states = dict.fromkeys((*ENDED, "running", "paused", "pending"))
        rest = result_text.counts_text(trials, [state for state in states if state != "finished"])
        finished = sum(trial.state == "finished" for trial in trials)
        yield Tile("trials", f"{finished} of {len(trials)} finished", rest)
        settings = len(self.ranked) + len(self.others)
        yield Tile("settings", f"{settings:,}", counted(len(self.names), "axis", "axes"))
        of_all = "of all trials together"
        spent = Tile("time on workers", seconds_text(sum(trial.seconds for trial in trials)), of_all)
        yield from cost_tile(self.ledger) or [spent]
        yield Tile("samples", number_text(sum(trial.samples for trial in trials)), of_all)
        if self._seconds:
            yield Tile("wall time", seconds_text(self._seconds), self._pause())

    def _places(self) -> list[Fact]:
        return [
            Fact("folder", str(self.result.folder), is_code=True),
            Fact("best config", self.result.best_config_path or "", is_code=True),
        ]


def sweep_report(folder: Path, store: RunStore | None = None) -> SweepReport:
    """Gather the report of a sweep. Changes nothing.

    Args:
        folder: folder of the sweep.
        store: see `sweep_in`.

    Raises:
        EnvironmentFault: the folder holds no sweep, or its journal is damaged.
        ConfigError: the sweep's config is not valid any more, such as that of another version of Paceline.
    """
    with readable(folder):
        stored = sweep_in(folder, store)
    visible = tuple(
        replace(trial, params=without_secrets(trial.params), reason=redact(trial.reason)) for trial in stored.trials
    )
    result = replace(stored, trials=visible)
    keys = set(keys_of(result.objectives))
    recorded = read_run(folder / "tracking")
    ranked = ranking.ranked(result.trials, result.objectives)
    taken = {trial.id for summary in ranked for trial in summary.trials}
    left = sorted((trial for trial in result.trials if trial.id not in taken), key=planned_order)
    return SweepReport(
        result=result,
        recorded=recorded,
        trials={each.id: read_run(folder / "trials" / each.id / "tracking", keys) for each in result.trials},
        ranked=ranked,
        others=ranking.aggregate(left, [metric for metric, _ in result.objectives]),
        ledger=ledger_of(recorded),
    )


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a config as text, without secrets."""
    return {key: param_text(value) for key, value in redact_values(flatten(config)).items()}
