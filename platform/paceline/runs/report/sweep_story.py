"""What there is to tell of a sweep: gathered from its folder, without secrets."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from paceline.errors import ConfigError
from paceline.runs.readable import readable
from paceline.runs.report.costs import ledger_of
from paceline.runs.report.reading import Told, read
from paceline.runs.report.settings import Change, changes_between
from paceline.runs.report.speeds import Comparison, compared
from paceline.sweeps.results import ranking
from paceline.sweeps.results.curves import keys_of
from paceline.sweeps.results.ranking import SettingSummary
from paceline.sweeps.results.record import without_secrets
from paceline.sweeps.results.reopening import sweep_in
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.trials import Trial
from paceline.tracking.costs import Ledger
from paceline.tracking.points import Point


@dataclass(frozen=True)
class SweepStory:
    """One sweep."""

    result: SweepResult
    told: Told
    """What its own record says."""
    trials: Mapping[str, Told]
    """By id, what the trials' records say, with those curves that are drawn."""
    ranked: Sequence[SettingSummary]
    """The settings with a result, best first."""
    others: Sequence[SettingSummary]
    """Those without one, in the order of their trials."""
    ledger: Ledger | None
    best_yaml: str
    """The config of the best trial; empty without one."""
    command: str
    """Trains the best setting again; empty without one."""
    changes: Sequence[Change]
    """What the best config has otherwise than the sweep's own."""

    @cached_property
    def speeds(self) -> Comparison | None:
        """Whether the speeds of the finished trials can be compared; None where none has a result."""
        if not self.ranked:
            return None
        tags = {trial.id: self.trials[trial.id].tags for trial in self.result.trials if trial.state == "finished"}
        return compared(tags, ranking.best_seed(self.ranked[0], self.result.objectives).id)

    @property
    def speed_doubt(self) -> str:
        """Why the speeds are no measure of the settings; empty where nothing is known against them."""
        return self.speeds.doubt if self.speeds is not None else ""

    @property
    def histories(self) -> "Histories":
        """The trials' curves."""
        return Histories(self.trials)


class Histories(Mapping[str, Sequence[Point]]):
    """By the id of a trial its points, thinned out."""

    def __init__(self, trials: Mapping[str, Told]) -> None:
        self._trials = trials

    def __getitem__(self, trial_id: str) -> list[Point]:
        curves = self._trials[trial_id].curves
        return [Point(key, y, round(x), 0) for key, curve in curves.items() for x, y in curve.means]

    def __iter__(self) -> Iterator[str]:
        return iter(self._trials)

    def __len__(self) -> int:
        return len(self._trials)


def sweep_story(folder: Path) -> SweepStory:
    """All of it. Changes nothing.

    Args:
        folder: the sweep's own.

    Raises:
        EnvironmentFault: there is no sweep in it, or its journal is damaged.
        ConfigError: the sweep's config is none any more.
    """
    result = _without_secrets(_loaded(folder))
    keys = set(keys_of(result.objectives))
    trials = {trial.id: read(folder / "trials" / trial.id / "tracking", keys) for trial in result.trials}
    told = read(folder / "tracking")
    ranked = ranking.ranked(result.trials, result.objectives)
    return SweepStory(
        result=result,
        told=told,
        trials=trials,
        ranked=ranked,
        others=_others(result, ranked),
        ledger=ledger_of(told),
        best_yaml=_best_yaml(result),
        command=f"paceline train {shlex.quote(result.best_config_path)}" if result.best_config_path else "",
        changes=_changes(result),
    )


def _loaded(folder: Path) -> SweepResult:
    with readable(folder):
        return sweep_in(folder)


def _without_secrets(result: SweepResult) -> SweepResult:
    trials = tuple(replace(trial, overrides=without_secrets(trial.overrides)) for trial in result.trials)
    return replace(result, trials=trials)


def _others(result: SweepResult, ranked: Sequence[SettingSummary]) -> list[SettingSummary]:
    names = [metric for metric, _ in result.objectives]
    taken = {trial.id for summary in ranked for trial in summary.trials}
    left: list[Trial] = sorted((trial for trial in result.trials if trial.id not in taken), key=ranking.place)
    return ranking.aggregate(left, names)


def _best_yaml(result: SweepResult) -> str:
    try:
        return Path(result.best_config_path).read_text("utf-8", "replace") if result.best_config_path else ""
    except OSError:
        return ""


def _changes(result: SweepResult) -> list[Change]:
    try:
        best = result.best_config
    except ConfigError:  # of another version, or of code that is not here
        return []
    if best is None:
        return []
    own = result.config.model_copy(update={"sweep": None})
    return changes_between(own.model_dump(mode="json"), best.model_dump(mode="json"))
