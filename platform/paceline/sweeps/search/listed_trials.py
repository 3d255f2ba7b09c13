"""The trials of a grid or of random trials, for Tune: it only iterates over them."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.search import Searcher

from paceline.config.sweep import SweepConfig
from paceline.sweeps.search.tune_config import AxisPlaces, tune_config
from paceline.sweeps.trial import PlannedTrial


class ListedTrials(Searcher):  # type: ignore[misc]
    """Tune's searcher over trials that are known in advance, in their order.

    Tune's own `grid_search` copies the whole grid several times for each trial: seconds each at 5,000 trials.
    """

    def __init__(self, planned_trials: Sequence[PlannedTrial], sweep: SweepConfig) -> None:
        super().__init__(metric=sweep.metrics[0], mode=sweep.objectives[0][1])
        self._left, self._places = deque(planned_trials), AxisPlaces(sweep)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the next trial; FINISHED after the last one."""
        return tune_config(self._left.popleft(), self._places) if self._left else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: no result changes what comes next."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the sweep's log has it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""
