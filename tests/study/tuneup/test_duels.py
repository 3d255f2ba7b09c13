"""Two trainings that take turns in one process: neither changes the other, and what differs is seen."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch

from paceline.engine.ranks import Ranks
from paceline.engine.state import weights_sha256
from paceline.study.statistics.windows import TURN_SECONDS
from paceline.study.tuneup.duel import DuelRules, duel
from paceline.study.tuneup.stepper import Stepper
from support.ranks import run_ranks
from support.toys import net_with_dropout_and_norm, toy_config


def config(**overrides: Any) -> Any:
    return toy_config(model__path=net_with_dropout_and_norm, trainer__precision="32-true", **overrides)


def weights(stepper: Stepper) -> str:
    return weights_sha256(stepper.trainer.state.model_tensors())


def test_a_training_that_takes_turns_computes_what_it_computes_alone() -> None:
    ranks = Ranks.current()
    with closing(Stepper(config(), ranks)) as alone:
        alone.run(30)
        expected = weights(alone)
    other = config(optimizer__lr=0.7, trainer__float32_matmul_precision="medium", seed=5)
    with closing(Stepper(config(), ranks)) as first, closing(Stepper(other, ranks)) as second:
        for _ in range(10):
            first.run(3)
            second.run(2)
        assert weights(first) == expected
        assert weights(second) != expected


def test_a_window_counts_the_samples_of_its_steps_over_the_ends_of_epochs() -> None:
    with closing(Stepper(config(data__global_batch_size=36), Ranks.current())) as stepper:  # 96 samples: 36, 36, 24
        windows = [stepper.run(2) for _ in range(3)]
    assert [(window.steps, window.samples) for window in windows] == [(2, 72), (2, 60), (2, 60)]
    assert all(window.seconds > 0 for window in windows)


def test_what_a_config_says_of_the_process_holds_in_its_turns_alone() -> None:
    ranks = Ranks.current()
    seen: dict[str, set[str]] = {"highest": set(), "medium": set()}
    with (
        closing(Stepper(config(), ranks)) as first,
        closing(Stepper(config(trainer__float32_matmul_precision="medium"), ranks)) as second,
    ):
        for name, stepper in [("highest", first), ("medium", second)] * 2:
            stepper.run(1)
            seen[name].add(torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("highest")
    assert seen == {"highest": {"highest"}, "medium": {"medium"}}


def test_what_the_engine_could_not_apply_is_told_with_the_duel() -> None:
    ranks, rules = Ranks.current(), DuelRules(window_seconds=0.1, min_pairs=1, max_pairs=1)
    unneeded = config(trainer__remove_redundant_bias=True)  # there is no convolution
    with closing(Stepper(config(), ranks)) as baseline, closing(Stepper(unneeded, ranks)) as arm:
        found = duel(baseline, arm, rules, ranks)
    assert any("has no effect" in each for each in found.warnings)
    assert found.build_seconds > 0


def slow(seconds: float) -> Any:
    """A task that sleeps in each forward pass, which is a time that no noise hides."""
    from time import sleep

    from support.toys import PointsTask

    class Slow(PointsTask):
        def forward(self, batch: Any) -> Any:
            sleep(seconds)
            return super().forward(batch)

    return Slow


def fought_out(ranks: Ranks) -> list[float]:
    own = {"trainer__precision": "32-true", "scaling__num_workers": ranks.world_size}
    rules = DuelRules(window_seconds=0.1, min_pairs=3, max_pairs=3)
    with (
        closing(Stepper(toy_config(task__path=slow(0.02), **own), ranks)) as baseline,
        closing(Stepper(toy_config(task__path=slow(0.002), **own), ranks)) as arm,
    ):
        found = duel(baseline, arm, rules, ranks)
    return [pair.baseline / pair.arm for pair in found.pairs]


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_arm_that_sleeps_less_wins_on_all_ranks_alike(world_size: int) -> None:
    for ratios in run_ranks(fought_out, world_size):
        assert len(ratios) == 3
        assert all(ratio > 1 for ratio in ratios)


BASELINE_SECONDS, ARM_SECONDS = 0.01, 0.002


def fought_out_by_the_clock(ranks: Ranks) -> tuple[tuple[int, int], list[float], tuple[int, int]]:
    """Steps of a turn, ratios, and forward passes of each side. Time passes in forward passes alone, and on each rank
    faster than on the one before."""
    from unittest.mock import patch

    from support.toys import PointsTask

    now, passes = [0.0], {BASELINE_SECONDS: 0, ARM_SECONDS: 0}

    def timed(seconds: float) -> Any:
        class Timed(PointsTask):
            def forward(self, batch: Any) -> Any:
                now[0] += seconds * (ranks.rank + 1)
                passes[seconds] += 1
                return super().forward(batch)

        return toy_config(task__path=Timed, trainer__precision="32-true", scaling__num_workers=ranks.world_size)

    with (
        patch("paceline.study.tuneup.stepper.perf_counter", lambda: now[0]),
        closing(Stepper(timed(BASELINE_SECONDS), ranks)) as baseline,
        closing(Stepper(timed(ARM_SECONDS), ranks)) as arm,
    ):
        found = duel(baseline, arm, DuelRules(window_seconds=0.1, min_pairs=3, max_pairs=3), ranks)
    counts = passes[BASELINE_SECONDS], passes[ARM_SECONDS]
    return found.steps, [pair.baseline / pair.arm for pair in found.pairs], counts


@pytest.mark.parametrize("world_size", [1, 2])
def test_turns_last_as_long_on_both_sides_and_have_as_many_steps_on_all_ranks(world_size: int) -> None:
    first, *others = run_ranks(fought_out_by_the_clock, world_size)
    steps, ratios, _ = first
    assert steps == (round(TURN_SECONDS / BASELINE_SECONDS), round(TURN_SECONDS / ARM_SECONDS))
    assert ratios == pytest.approx([BASELINE_SECONDS / ARM_SECONDS] * 3)
    for each in others:
        assert (each[0], each[2]) == (first[0], first[2])
