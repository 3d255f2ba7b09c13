"""Planned trials in Tune's words, and the searcher that hands them out where they are known in advance.

The config of a trial is `{"trial": {"id": ..., "values": {axis: value}}}`, with listed values by index.

Tune writes its configs into Ray's own files, which are not the sweep's to guard, and a listed value may be a secret.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.search import Searcher

from paceline.config.sweep import SweepConfig
from paceline.sweeps.trial import PlannedTrial

TRIAL = "trial"


class AxisPlaces:
    """Place of each value in its list, without a search through the list; `True == 1`, and a list may have both."""

    def __init__(self, sweep: SweepConfig) -> None:
        self._places: dict[str, dict[str, int]] = {name: {} for name in sweep.lists}
        for name, choices in sweep.lists.items():
            for place, choice in enumerate(choices):
                self._places[name].setdefault(_text(choice), place)

    def of(self, name: str, value: Any) -> Any:
        """The place of an axis' value; the value itself where the axis is a range.

        Raises:
            KeyError: the list does not have it.
        """
        places = self._places.get(name)
        return value if places is None else places[_text(value)]


def tune_config(planned: PlannedTrial, places: AxisPlaces) -> dict[str, Any]:
    """The config that Tune gets for a trial of the sweep."""
    values = {name: places.of(name, value) for name, value in planned.params.items()}
    return {TRIAL: {"id": planned.id, "values": values}}


def planned_trial_of(config: Mapping[str, Any], sweep: SweepConfig) -> PlannedTrial:
    """The inverse of `tune_config`."""
    lists = sweep.lists
    values = config[TRIAL]["values"]
    return PlannedTrial(
        id_of(config), {name: lists[name][value] if name in lists else value for name, value in values.items()}
    )


def id_of(config: Mapping[str, Any]) -> str:
    """The id of the trial, such as `0007`."""
    return str(config[TRIAL]["id"])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


class ListedTrials(Searcher):  # type: ignore[misc]
    """The trials of a grid, or random ones, in their order. Tune decides nothing here: it only iterates over the list.

    They go through Tune all the same, so that there is one path for all searches and schedulers. Tune's own
    `grid_search` copies the whole grid several times for each trial: seconds each at 5,000 trials.
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
