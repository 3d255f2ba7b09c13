"""A batch size that grows along with the critical one."""

from math import inf

import pytest

from paceline.batch_scaling.candidate import Candidate, growing_candidate
from paceline.batch_scaling.critical_batch import CriticalBatch, expected_efficiency
from paceline.batch_scaling.lr_rules import LrRules

OWN, TARGET = 16, 16_000
RULES = LrRules(((64, "sqrt"), (256, "linear")))
GROWING = CriticalBatch(60.0, 16.0, 1000.0, ((0, 16.0), (4000, 1000.0)))
FLAT_STEPS = dict.fromkeys((16, 32, 64, 128, 256), 0.01)
"""Seconds of a step: the same for all batch sizes."""


def growing(critical: CriticalBatch = GROWING, most_samples: float = inf) -> Candidate | None:
    return growing_candidate(critical, RULES, OWN, TARGET, FLAT_STEPS, most_samples)


def test_each_stretch_has_its_fastest_batch() -> None:
    seconds = {16: 0.0085, 32: 0.01, 64: 0.015}  # small batches pay early, large ones late
    found = growing_candidate(GROWING, RULES, OWN, TARGET, seconds, inf)
    assert found is not None
    assert [stage.batch_size for stage in found.stages] == [32, 64]
    early, late = 4000 / expected_efficiency(32, OWN, 16.0), 12_000 / expected_efficiency(64, OWN, 1000.0)
    assert [stage.start_samples for stage in found.stages] == [0, round(early)]
    assert found.seconds == pytest.approx(early / 32 * 0.01 + late / 64 * 0.015)
    assert sum(stage.share for stage in found.stages) == pytest.approx(1.0)
    assert (found.rule, found.text) == ("sqrt", f"batch 32, 64 after {round(early):,} samples")


def test_one_size_for_all_is_no_schedule() -> None:
    assert growing(CriticalBatch(100.0, 100.0, 100.0, ((0, 100.0), (4000, 100.0)))) is None
    assert growing(CriticalBatch(100.0, 100.0, 100.0, ((0, 100.0),))) is None


def test_it_keeps_within_the_length_of_the_training() -> None:
    seconds = {16: 0.0085, 32: 0.01, 64: 0.015, 256: 0.03}
    free, bound = (growing_candidate(GROWING, RULES, OWN, TARGET, seconds, most) for most in (inf, 19_000.0))
    assert free is not None
    assert free.largest == 256
    assert bound is not None
    assert bound.largest < 256
