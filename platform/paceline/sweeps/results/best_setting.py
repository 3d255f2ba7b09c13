"""The best setting of a sweep that continues, found without a look at all trials."""

from collections.abc import Sequence
from heapq import heappop, heappush

from paceline.sweeps.results.ranking import Objective, SettingSummary, place, rank_of, setting_key, summary_of
from paceline.sweeps.trial import Trial

_Rank = tuple[tuple[float, ...], tuple[int, str]]


class BestSetting:
    """The first of `ranking.ranked`, over the trials that have finished until now: O(log n) for each trial."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = objectives
        self._metrics = [metric for metric, _ in objectives]
        self._trials: dict[str, dict[str, Trial]] = {}
        """Of each setting, by id."""
        self._ranks: dict[str, _Rank] = {}
        self._heap: list[tuple[_Rank, str]] = []
        """Ranks and settings, outdated ones among them."""

    def add(self, trial: Trial) -> None:
        """Take in how a trial stands; only a finished one counts."""
        if trial.state != "finished":
            return
        key = setting_key(trial)
        self._trials.setdefault(key, {})[trial.id] = trial
        summary = self._summary(key)
        if not summary.spreads[self._metrics[0]].n:
            return
        rank = rank_of(summary, self._objectives), place(summary.trials[0])
        if self._ranks.get(key) != rank:
            self._ranks[key] = rank
            heappush(self._heap, (rank, key))

    def summary(self) -> SettingSummary | None:
        """Return the best setting; None until one that breaks no constraint has finished with a value."""
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks[key] == rank:
                best = self._summary(key)
                return None if best.broken else best
            heappop(self._heap)
        return None

    def _summary(self, key: str) -> SettingSummary:
        return summary_of(sorted(self._trials[key].values(), key=place), self._metrics)
