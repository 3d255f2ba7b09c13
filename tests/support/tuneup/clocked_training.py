"""A paired benchmark of two trainings whose time passes in forward passes alone, by a clock of their own."""

from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest

from paceline.bench.stepper import Stepper
from paceline.engine.dist_context import DistContext
from paceline.tuneups.paired_benchmark import TURN_SECONDS, BenchmarkRules, alternating

BASELINE_SECONDS, TECHNIQUE_SECONDS = 0.03, 0.006
Timed = tuple[tuple[int, int], list[float], tuple[int, int]]


def timed_benchmark(ranks: DistContext) -> Timed:
    """Steps of a turn, ratios, and forward passes of each side. Time passes faster on each rank than on the one
    before."""
    from support.toys import PointsTask, toy_config

    now, passes = [0.0], {BASELINE_SECONDS: 0, TECHNIQUE_SECONDS: 0}

    def timed(seconds: float) -> Any:
        class Timed(PointsTask):
            def forward(self, batch: Any) -> Any:
                now[0] += seconds * (ranks.rank + 1)
                passes[seconds] += 1
                return super().forward(batch)

        return toy_config(task__path=Timed, trainer__precision="32-true", scaling__num_workers=ranks.world_size)

    with (
        patch("paceline.bench.stepper.perf_counter", lambda: now[0]),
        closing(Stepper(timed(BASELINE_SECONDS), ranks)) as baseline,
        closing(Stepper(timed(TECHNIQUE_SECONDS), ranks)) as technique,
    ):
        found = alternating(baseline, technique, BenchmarkRules(window_seconds=0.1, min_pairs=1, max_pairs=1), ranks)
    counts = passes[BASELINE_SECONDS], passes[TECHNIQUE_SECONDS]
    return found.steps, [pair.baseline / pair.technique for pair in found.pairs], counts


def check_turns(found: list[Timed]) -> None:
    """Turns take the same time on both sides, and have as many steps on all ranks."""
    first, *others = found
    steps, ratios, _ = first
    assert steps == (round(TURN_SECONDS / BASELINE_SECONDS), round(TURN_SECONDS / TECHNIQUE_SECONDS))
    assert ratios == pytest.approx([BASELINE_SECONDS / TECHNIQUE_SECONDS])
    for each in others:
        assert (each[0], each[2]) == (first[0], first[2])
