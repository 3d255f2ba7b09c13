"""All trials of a sweep as the driver knows them, and how far they have come."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import overload

from paceline.sweeps.results.ranking import place
from paceline.sweeps.trial import ENDED, NOT_TRAINED, Trial


class TrialTable(Sequence[Trial]):
    """The trials in the order of their plan. Changes are counted as they come, so that no look costs O(n)."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self._places: list[tuple[int, str]] = []
        self._trials: dict[str, Trial] = {}
        self.counts: Counter[str] = Counter()
        """How many trials are in each state."""
        self.num_infeasible = 0
        """How many finished trials break a constraint."""
        self.open: dict[str, Trial] = {}
        """Those that have not ended, by id."""
        self.ended_ids: list[str] = []
        """Of those that have ended, in the order in which they did."""
        self.update(trials)

    def update(self, changed: Iterable[Trial]) -> None:
        """Take in trials that are new or have changed."""
        for trial in changed:
            known = self._trials.get(trial.id)
            if known is None:
                self._places.insert(bisect_left(self._places, place(trial)), place(trial))
            else:
                self.counts[known.state] -= 1
                self.num_infeasible -= known.is_feasible is False
            self.counts[trial.state] += 1
            self.num_infeasible += trial.is_feasible is False
            self._trials[trial.id] = trial
            if trial.state not in ENDED:
                self.open[trial.id] = trial
            elif known is None or known.state not in ENDED:
                self.open.pop(trial.id, None)
                self.ended_ids.append(trial.id)

    def by_id(self, trial_id: str) -> Trial:
        """The trial with an id.

        Raises:
            KeyError: there is none.
        """
        return self._trials[trial_id]

    @property
    def num_ended(self) -> int:
        """How many trials have ended."""
        return len(self.ended_ids)

    @property
    def num_trained(self) -> int:
        """How many trials have ended, without those that were not trained."""
        return self.num_ended - self.num_untrained

    @property
    def num_untrained(self) -> int:
        """How many trials have ended before they began."""
        return sum(self.counts[state] for state in NOT_TRAINED)

    @property
    def work_done(self) -> float:
        """Trials done, those that were not trained left out, and the shares done of those that run or wait."""
        shares = (min(trial.steps / trial.total_steps, 1.0) for trial in self.open.values() if trial.total_steps)
        return self.num_trained + sum(shares)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Trial: ...

    @overload
    def __getitem__(self, index: slice) -> list[Trial]: ...

    def __getitem__(self, index: int | slice) -> Trial | list[Trial]:
        if isinstance(index, slice):
            return [self._trials[trial_id] for _, trial_id in self._places[index]]
        return self._trials[self._places[index][1]]


class Beginning:
    """When the first trial of this launch began, and what was done by then.

    Trials that an earlier launch has left have had their attempts and steps before.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.work = 0.0
        self.trained = 0
        self._left: dict[str, tuple[int, int]] | None = None

    def is_over(self, view: TrialTable, now: float) -> bool:
        """Whether a trial has begun; takes note of the time when it has."""
        if self.since is not None:
            return True
        if self._left is None:
            self._left = {trial.id: (trial.attempts, trial.steps) for trial in view}
        if any((trial.attempts, trial.steps) > self._left.get(trial.id, (0, 0)) for trial in view):
            self.since, self.work, self.trained = now, view.work_done, view.num_trained
        return self.since is not None
