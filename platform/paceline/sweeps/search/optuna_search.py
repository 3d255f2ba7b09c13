"""Optuna as Tune's search algorithm: proposals are checked, seeds averaged, and the cost of each is bounded."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ray.tune.search import Searcher

from paceline.config.constraints import Violations, mean_violations
from paceline.config.experiment import ExperimentConfig
from paceline.config.space import LogUniform, QUniform, RandInt, Uniform
from paceline.config.sweep import SweepConfig
from paceline.sweeps.planning.params_checks import FailingParams, ParamsCheck
from paceline.sweeps.planning.planned_trials import TrialNumbers
from paceline.sweeps.results.ranking import Objective, value_of, with_violations
from paceline.sweeps.search.tune_trials import AxisPlaces, tune_config
from paceline.sweeps.states import ENDED, TROUBLE
from paceline.sweeps.trial import PlannedTrial, Trial, planned_order

if TYPE_CHECKING:
    import optuna

MOST_IN_VAIN = 100
"""Proposals in a row that are not a valid config after which the search gives up."""
MOST_RESULTS = 750
"""Maximum number of results: the sampler reads all of them for each proposal (30 ms for 5,000), so more are thinned."""
KEPT_RESULTS = 500
"""Number of results that are left after thinning."""
KEPT_BEST = 100
"""Best results among those: TPE takes at most 25 results for good ones. The others are the newest."""


class BoundedStudy:
    """Proposals of Optuna's TPE sampler, from the best and the newest results.

    Args:
        has_parallel_trials: keep proposals away from those whose results are still to come.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        distributions: "Mapping[str, optuna.distributions.BaseDistribution]",
        seed: int,
        has_parallel_trials: bool,
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        minimize, maximize = optuna.study.StudyDirection.MINIMIZE, optuna.study.StudyDirection.MAXIMIZE
        self._directions = [minimize if mode == "min" else maximize for _, mode in objectives]
        self._distributions = dict(distributions)
        self._seed, self._has_parallel_trials = seed, has_parallel_trials
        self._open: dict[int, optuna.Trial] = {}
        """Proposals without a result, by number; each in the present study."""
        self._asked = self._results = self._thinned = 0
        self._study = self._new_study()

    @property
    def values(self) -> list[Any]:
        """The values of each trial that the sampler knows; None for those that failed, or have no result yet."""
        return [trial.values for trial in self._study.get_trials(deepcopy=False)]

    def ask(self) -> tuple[int, dict[str, Any]]:
        """Return the number of a new proposal, for `tell`, and its params."""
        trial = self._study.ask(self._distributions)
        return self._note(trial), trial.params

    def add(self, params: Mapping[str, Any]) -> int:
        """Add a proposal of an earlier study, whose result is still to come; returns its number, for `tell`."""
        return self._note(self._ask_for(params))

    def tell(self, number: int, values: Sequence[float] | None, violations: Violations | None = None) -> None:
        """Add the result of a proposal.

        Args:
            values: one for each objective; None: it failed.
            violations: by how much it breaks each constraint.
        """
        from optuna.trial import TrialState

        trial = self._open.pop(number)
        if values is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            for text, violation in (violations or {}).items():
                trial.set_constraint(text, violation)
            self._study.tell(trial, list(values))
        self._results += 1
        if self._results > MOST_RESULTS:
            self._thin_out()

    def _note(self, trial: "optuna.Trial") -> int:
        self._asked += 1
        self._open[self._asked] = trial
        return self._asked

    def _new_study(self) -> "optuna.Study":
        import optuna

        sampler = optuna.samplers.TPESampler(
            seed=(self._seed + self._thinned) % 2**32, constant_liar=self._has_parallel_trials
        )
        return optuna.create_study(directions=self._directions, sampler=sampler)

    def _thin_out(self) -> None:
        """Begin another study with the best and the newest results."""
        from optuna.trial import TrialState

        results = self._study.get_trials(deepcopy=False, states=[TrialState.COMPLETE])
        best = self._best(results)
        kept = {trial.number for trial in [*best, *results[len(best) - KEPT_RESULTS :]]}
        self._thinned += 1
        self._study = self._new_study()
        self._study.add_trials([trial for trial in results if trial.number in kept])
        self._open = {number: self._ask_for(trial.params) for number, trial in self._open.items()}
        self._results = len(kept)

    def _best(self, results: "list[optuna.trial.FrozenTrial]") -> "list[optuna.trial.FrozenTrial]":
        import optuna

        if len(self._directions) > 1:  # those that no other one is better than in every objective
            return self._study.best_trials[:KEPT_BEST]
        sign = 1 if self._directions == [optuna.study.StudyDirection.MINIMIZE] else -1
        return sorted(results, key=lambda trial: (_violation(trial), sign * trial.values[0]))[:KEPT_BEST]

    def _ask_for(self, params: Mapping[str, Any]) -> "optuna.Trial":
        """Have the study propose these params."""
        self._study.enqueue_trial(dict(params))
        return self._study.ask(self._distributions)


def _violation(trial: "optuna.trial.FrozenTrial") -> float:
    """All violations of a trial; 0 when it is feasible."""
    return sum(max(0.0, violation) for violation in trial.constraints.values())


@dataclass
class _Proposal:
    """A setting that Optuna proposed, with a trial for each seed."""

    number: int
    """Number of the trial in the Optuna study."""
    planned_trials: list[PlannedTrial]
    open: set[str] = field(default_factory=set)
    """Ids of its trials that have not ended."""


class OptunaSearch(Searcher):  # type: ignore[misc]
    """Tune's searcher over Optuna's TPE sampler.

    Args:
        known: the trials of earlier launches; Optuna gets those that ended, the others are handed out first.
        trials: gives the trials with these ids as they stand.
        skip: gets a proposal that is not a valid config, and the reason.
        earlier: the sections `sweep` that the sweep had before its extensions.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        slots: int,
        known: Sequence[Trial],
        trials: Callable[[Sequence[str]], Sequence[Trial]],
        skip: Callable[[PlannedTrial, str], None],
        earlier: Sequence[SweepConfig] = (),
    ) -> None:
        sweep = config.sweep
        assert sweep is not None
        assert sweep.num_samples is not None
        super().__init__(metric=sweep.metrics[0], mode=sweep.objectives[0][1])
        self._config, self._sweep, self._slots = config, sweep, slots
        self._trials, self._skip, self._limits = trials, skip, sweep.limits
        self._check, self._places = ParamsCheck(config), AxisPlaces(sweep)
        self._ids = TrialNumbers([(section.num_samples or 0, section.seeds) for section in (*earlier, sweep)])
        # the number of those that are known: the same seed again would propose the same again
        numbers = {self._number(trial) for trial in known}
        distributions = {name: _distribution(axis) for name, axis in sweep.space.items()}
        self._study = BoundedStudy(sweep.objectives, distributions, config.seed + len(numbers), slots > 1)
        self._numbers = deque(number for number in range(sweep.num_samples) if number not in numbers)
        """Numbers of the proposals that are still to be made, each with an id for each seed."""
        self._proposals: dict[str, _Proposal] = {}
        """By the ids of their trials that have not ended."""
        self._waiting: deque[PlannedTrial] = deque()
        self._running: dict[str, PlannedTrial] = {}
        self._recall(known)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial, for Tune's trial; None if all slots are taken, FINISHED if there are enough trials."""
        if len(self._running) >= self._slots:
            return None
        if not self._waiting and not self._propose():
            return str(Searcher.FINISHED)
        planned = self._waiting.popleft()
        self._running[trial_id] = planned
        return tune_config(planned, self._places)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Rungs are the scheduler's business."""

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """A trial of ours has ended; once the last seed of its setting has, Optuna gets it."""
        planned = self._running.pop(trial_id, None)
        proposal = self._proposals.pop(planned.id, None) if planned is not None else None
        if planned is not None and proposal is not None:
            proposal.open.remove(planned.id)
            if not proposal.open:
                self._tell(proposal)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: the sweep's journal has it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""

    def _propose(self) -> bool:
        for _ in range(min(MOST_IN_VAIN, len(self._numbers))):
            number, params = self._study.ask()
            planned_trials = self._over_seeds(self._numbers.popleft(), self._overrides(params))
            failing = FailingParams(planned_trials[0].params, self._check.problems(planned_trials[0].params))
            if not failing.problems:
                self._hand_out(number, planned_trials, planned_trials)
                return True
            self._study.tell(number, None)
            for planned in planned_trials:
                self._skip(planned, failing.reason())
        return False

    def _hand_out(self, number: int, planned_trials: list[PlannedTrial], unfinished: Sequence[PlannedTrial]) -> None:
        proposal = _Proposal(number, planned_trials, {planned.id for planned in unfinished})
        self._proposals |= dict.fromkeys(proposal.open, proposal)
        self._waiting += unfinished

    def _overrides(self, params: Mapping[str, Any]) -> dict[str, Any]:
        lists = self._sweep.lists
        return {name: lists[name][params[name]] if name in lists else params[name] for name in self._sweep.space}

    def _over_seeds(self, number: int, params: Mapping[str, Any]) -> list[PlannedTrial]:
        """The trials of a proposal: one for each seed, with ids that follow from its number."""
        seeds = self._sweep.seeds
        owns = [{"seed": self._config.seed + seed} if seeds > 1 else {} for seed in range(seeds)]
        return [PlannedTrial(self._ids.id_of(number, seed), {**params, **own}) for seed, own in enumerate(owns)]

    def _number(self, trial: Trial) -> int:
        """Return the number of the proposal which a trial belongs to."""
        return self._ids.place_of(trial.id)[0]

    def _tell(self, proposal: _Proposal) -> None:
        trials = self._trials([planned.id for planned in proposal.planned_trials])
        self._study.tell(proposal.number, _values(trials, self._sweep.metrics), self._violations(trials))

    def _violations(self, trials: Sequence[Trial]) -> Violations:
        """By how much a setting breaks each constraint: the mean over the trials that it is compared by."""
        return mean_violations(with_violations(trial, self._limits).violations for trial in _counted(trials))

    def _recall(self, known: Sequence[Trial]) -> None:
        """Restore the state that an earlier launch has left."""
        proposals: dict[int, dict[str, Trial]] = {}
        for trial in sorted(known, key=planned_order):
            proposals.setdefault(self._number(trial), {})[trial.id] = trial
        for number, trials in proposals.items():
            setting = next(iter(trials.values())).setting
            planned_trials = self._over_seeds(number, {name: setting[name] for name in self._sweep.space})
            unfinished = [
                planned
                for planned in planned_trials
                if planned.id not in trials or trials[planned.id].state not in ENDED
            ]
            if all(trial.state == "skipped" for trial in trials.values()):
                reason = next(iter(trials.values())).reason
                for planned in unfinished:  # further seeds of a trial that is not a valid config
                    self._skip(planned, reason)
                continue
            if unfinished:
                self._hand_out(self._study.add(self._params(setting)), planned_trials, unfinished)
            elif (values := _values(list(trials.values()), self._sweep.metrics)) is not None:
                violations = self._violations(list(trials.values()))
                self._study.tell(self._study.add(self._params(setting)), values, violations)

    def _params(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._places.of(name, setting[name]) for name in self._sweep.space}


def _values(trials: Sequence[Trial], metrics: Sequence[str]) -> list[float] | None:
    """The mean of each metric over the trials that have it; None where none has. A pruned trial counts with its
    newest values: it was stopped because they were bad."""
    values = []
    for metric in metrics:
        known = [value for trial in _counted(trials) if (value := value_of(trial, metric)) is not None]
        if not known:
            return None
        values.append(fmean(known))
    return values


def _counted(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.state not in (*TROUBLE, "skipped")]


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
