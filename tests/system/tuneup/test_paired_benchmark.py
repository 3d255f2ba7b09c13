"""A paired benchmark on two ranks."""

from __future__ import annotations  # a rank gets this module by value, without its imports

from contextlib import closing
from typing import Any

from paceline.engine.ranks import Ranks
from paceline.study.tuneup.duel import DuelRules, duel
from paceline.study.tuneup.stepper import Stepper
from support.ranks import run_ranks
from support.toys import toy_config
from support.tuneup.clocked_training import check_turns, timed_duel


def slow(seconds: float) -> Any:
    """A task that sleeps in each forward pass, which is a time that no noise hides."""
    from time import sleep

    from support.toys import PointsTask

    class Slow(PointsTask):
        def forward(self, batch: Any) -> Any:
            sleep(seconds)
            return super().forward(batch)

    return Slow


def both_duels(ranks: Ranks) -> tuple[list[float], Any]:
    """The ratios of a duel in real time, and one by a clock of its own."""
    own = {"trainer__precision": "32-true", "scaling__num_workers": ranks.world_size}
    rules = DuelRules(window_seconds=0.1, min_pairs=3, max_pairs=3)
    with (
        closing(Stepper(toy_config(task__path=slow(0.02), **own), ranks)) as baseline,
        closing(Stepper(toy_config(task__path=slow(0.002), **own), ranks)) as arm,
    ):
        found = duel(baseline, arm, rules, ranks)
    return [pair.baseline / pair.arm for pair in found.pairs], timed_duel(ranks)


def test_all_ranks_measure_the_same_turns() -> None:
    real, timed = zip(*run_ranks(both_duels, 2), strict=True)
    for ratios in real:
        assert len(ratios) == 3
        assert all(ratio > 1 for ratio in ratios)
    check_turns(list(timed))
