"""An Optuna study whose next proposal costs the same after 5,000 results as after 500."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.config.constraints import Violations
from paceline.sweeps.results.ranking import Objective

if TYPE_CHECKING:
    import optuna

MOST_RESULTS = 750
"""The sampler goes over all results for each proposal (30 ms for 5,000 of them), so more than these are thinned out."""
KEPT_RESULTS = 500
"""How many are left then."""
KEPT_BEST = 100
"""How many of those are the best: TPE takes at most 25 results for good ones. The others are the newest."""


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
