"""Ids of a sweep's trials, and which trial and seed each stands for."""

from collections.abc import Sequence


class TrialNumbers:
    """Numbers of trials in the order in which the sweep, and then each of its extensions, has asked for them.

    An extension adds trials, seeds, or both. The trials that were there keep their numbers, and the new ones follow,
    trial by trial.

    Args:
        sizes: how many trials and how many seeds of each the sweep had at first, and after each extension.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]]) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        for planned_trials, seeds in sizes:
            for place in ((planned, seed) for planned in range(planned_trials) for seed in range(seeds)):
                self._numbers.setdefault(place, len(self._numbers))
        self._places = list(self._numbers)

    def id_of(self, planned: int, seed: int) -> str:
        """Return the id of a trial, such as `0007`."""
        return f"{self._numbers[planned, seed]:04d}"

    def place_of(self, trial_id: str) -> tuple[int, int]:
        """Return the number of the trial, and that of the seed, that a trial is for."""
        return self._places[int(trial_id)]
