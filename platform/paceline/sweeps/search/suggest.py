"""Points that are chosen while the sweep continues: Optuna proposes, its proposals are checked, seeds are averaged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from paceline.config.experiment import ExperimentConfig
from paceline.config.space import LogUniform, QUniform, RandInt, Uniform
from paceline.sweeps.planning.point_checks import Failing, PointCheck
from paceline.sweeps.results.ranking import place, value_of
from paceline.sweeps.search.tune_config import place_in, tune_config
from paceline.sweeps.trials import ENDED, TROUBLE, Point, Trial

if TYPE_CHECKING:
    import optuna

MOST_IN_VAIN = 100
"""How many proposals in a row may be no valid config before the search gives up."""


@dataclass
class _Proposal:
    """What Optuna proposed: one setting, with a trial for each seed."""

    asked: "optuna.trial.Trial"
    points: list[Point]
    open: set[str] = field(default_factory=set)
    """Ids of its trials that have not ended."""


class OptunaPoints(Searcher):  # type: ignore[misc]
    """Tune's searcher over Optuna's TPE sampler.

    Args:
        known: the trials of earlier launches; Optuna gets those that ended, the others are handed out first.
        trials: gives all trials of the sweep as they stand.
        skip: told of a proposal that is no valid config, and why.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        slots: int,
        known: Sequence[Trial],
        trials: Callable[[], Sequence[Trial]],
        skip: Callable[[Point, str], None],
    ) -> None:
        sweep = config.sweep
        assert sweep is not None
        assert sweep.num_samples is not None
        super().__init__(metric=sweep.metrics[0], mode=sweep.objectives[0][1])
        self._config, self._sweep, self._slots = config, sweep, slots
        self._trials, self._skip = trials, skip
        self._check = PointCheck(config)
        # the number of those that are known: the same seed again would propose the same again
        numbers = {self._number(trial) for trial in known}
        self._study = _study(config, len(numbers))
        self._numbers = [number for number in range(sweep.num_samples) if number not in numbers]
        """Those of the proposals that are still to be made, each with an id for each seed."""
        self._distributions = {name: _distribution(axis) for name, axis in sweep.space.items()}
        self._proposals: list[_Proposal] = []
        self._waiting: list[Point] = []
        self._running: dict[str, Point] = {}
        self._recall(known)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next point, for Tune's trial; None when all slots are taken, FINISHED when there are enough."""
        if len(self._running) >= self._slots:
            return None
        if not self._waiting and not self._propose():
            return str(Searcher.FINISHED)
        point = self._waiting.pop(0)
        self._running[trial_id] = point
        return tune_config(point, self._sweep)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Rungs are the scheduler's business."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """A trial of ours has ended; once the last seed of its setting has, Optuna gets it."""
        point = self._running.pop(trial_id, None)
        for proposal in self._proposals:
            if point is not None and point.id in proposal.open:
                proposal.open.remove(point.id)
                if not proposal.open:
                    self._tell(proposal)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the sweep's journal has it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""

    def _propose(self) -> bool:
        for _ in range(min(MOST_IN_VAIN, len(self._numbers))):
            asked = self._study.ask(self._distributions)
            points = self._points(self._numbers.pop(0), self._overrides(asked.params))
            failing = Failing(points[0].overrides, self._check.problems(points[0].overrides))
            if not failing.problems:
                self._proposals.append(_Proposal(asked, points, {point.id for point in points}))
                self._waiting += points
                return True
            self._study.tell(asked, state=_states().FAIL)
            for point in points:
                self._skip(point, failing.reason())
        return False

    def _overrides(self, params: Mapping[str, Any]) -> dict[str, Any]:
        lists = self._sweep.lists
        return {name: lists[name][params[name]] if name in lists else params[name] for name in self._sweep.space}

    def _points(self, number: int, overrides: Mapping[str, Any]) -> list[Point]:
        """The trials of a proposal: one for each seed, with ids that follow from its number."""
        seeds = self._sweep.seeds
        owns = [{"seed": self._config.seed + seed} if seeds > 1 else {} for seed in range(seeds)]
        return [Point(f"{number * seeds + seed:04d}", {**overrides, **own}) for seed, own in enumerate(owns)]

    def _number(self, trial: Trial) -> int:
        """That of the proposal which a trial belongs to."""
        return int(trial.id) // self._sweep.seeds

    def _tell(self, proposal: _Proposal) -> None:
        ids = {point.id for point in proposal.points}
        values = _values([trial for trial in self._trials() if trial.id in ids], self._sweep.metrics)
        if values is None:
            self._study.tell(proposal.asked, state=_states().FAIL)
        else:
            self._study.tell(proposal.asked, values)

    def _recall(self, known: Sequence[Trial]) -> None:
        """Take up what an earlier launch has left."""
        proposals: dict[int, dict[str, Trial]] = {}
        for trial in sorted(known, key=place):
            proposals.setdefault(self._number(trial), {})[trial.id] = trial
        for number, trials in proposals.items():
            setting = next(iter(trials.values())).setting
            points = self._points(number, {name: setting[name] for name in self._sweep.space})
            unfinished = [point for point in points if point.id not in trials or trials[point.id].state not in ENDED]
            if all(trial.state == "skipped" for trial in trials.values()):
                continue
            if unfinished:
                self._ask_again(self._params(setting), points, unfinished)
            elif (values := _values(list(trials.values()), self._sweep.metrics)) is not None:
                self._add(self._params(setting), values)

    def _ask_again(self, params: dict[str, Any], points: list[Point], unfinished: list[Point]) -> None:
        self._study.enqueue_trial(params)
        asked = self._study.ask(self._distributions)
        self._proposals.append(_Proposal(asked, points, {point.id for point in unfinished}))
        self._waiting += unfinished

    def _add(self, params: dict[str, Any], values: list[float]) -> None:
        import optuna

        trial = optuna.trial.create_trial(params=params, distributions=self._distributions, values=values)
        self._study.add_trial(trial)

    def _params(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        lists = self._sweep.lists
        return {
            name: place_in(lists[name], setting[name]) if name in lists else setting[name] for name in self._sweep.space
        }


def _values(trials: Sequence[Trial], metrics: Sequence[str]) -> list[float] | None:
    """The mean of each metric over the trials that have it; None where none has. A pruned trial counts with its
    newest values: it was stopped because they were bad."""
    counted = [trial for trial in trials if trial.state not in (*TROUBLE, "skipped")]
    values = []
    for metric in metrics:
        known = [value for trial in counted if (value := value_of(trial, metric)) is not None]
        if not known:
            return None
        values.append(fmean(known))
    return values


def _study(config: ExperimentConfig, known: int) -> "optuna.Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    assert config.sweep is not None
    minimize, maximize = optuna.study.StudyDirection.MINIMIZE, optuna.study.StudyDirection.MAXIMIZE
    directions = [minimize if mode == "min" else maximize for _, mode in config.sweep.objectives]
    return optuna.create_study(
        directions=directions, sampler=optuna.samplers.TPESampler(seed=(config.seed + known) % 2**32)
    )


def _states() -> Any:
    import optuna

    return optuna.trial.TrialState


def _distribution(axis: Any) -> "optuna.distributions.BaseDistribution":
    """An axis in Optuna's words; a list by the places of its values, which may be mappings."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, list):
        return CategoricalDistribution(tuple(range(len(axis))))
    if isinstance(axis, LogUniform):
        return FloatDistribution(*axis.bounds, log=True)
    if isinstance(axis, RandInt):
        return IntDistribution(*axis.bounds)
    if isinstance(axis, QUniform):
        (low, high), step = axis.bounds, axis.step
        if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
            return IntDistribution(low, high, step=step)
        return FloatDistribution(low, high, step=step)
    assert isinstance(axis, Uniform)
    return FloatDistribution(*axis.bounds)
