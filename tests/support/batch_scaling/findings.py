"""Findings of a scale study as they may come out, with what was measured, extrapolated and verified."""

from math import inf

from paceline.batch_scaling.critical_batch import Branch, CriticalBatch, expected_efficiency
from paceline.batch_scaling.findings import NoisePoint, ScaleFindings, TargetMetric, Verification
from paceline.batch_scaling.goodput import cheapest_of, fastest_of, goodput_table, knee_of
from paceline.batch_scaling.lr_rules import rules_that_held
from paceline.batch_scaling.step_time import StepTimeModel

OWN, SIZES = 32, [32, 64, 128, 256, 512]
LATER = 4_000
"""Samples before the second point of training."""

GROWING = {
    "data.global_batch_size": None,
    "data.batch_size_schedule": [
        {"samples": 0, "global_batch_size": 64},
        {"samples": LATER, "global_batch_size": 256},
    ],
    "optimizer.lr_scaling": "linear",
}
"""A recommended batch size that grows."""


def findings(word: str = "") -> ScaleFindings:
    """A batch of 128 is recommended, after it was verified.

    Args:
        word: part of each text that a user or an exception may have given.
    """
    critical = CriticalBatch(300.0, 200.0, 420.0, ((0, 200.0), (LATER, 420.0)), (100.0, 700.0))
    branches = tuple(
        Branch(start, size, "linear", 1024, 0.5, expected_efficiency(size, OWN, by))
        for start, by in critical.by_samples
        for size in (64, 256)
    )
    branches += (Branch(0, 256, "sqrt", 1024, inf, 0.0),)
    rules = rules_that_held(branches, "linear", OWN)
    model = StepTimeModel(0.002, 1e-5, 0.0, False)
    table = goodput_table(
        SIZES,
        [1, 2, 4],
        own_batch_size=OWN,
        own_samples=12_000,
        largest_trained=256,
        critical=critical,
        seconds_per_step={(size, 2): model.seconds(size // 2, 1, 2) for size in SIZES},
        step_time=model,
        micro_batch_size={size: size // 2 for size in SIZES},
        lr={size: 0.1 * size / OWN for size in SIZES},
        most_samples=30_000,
    )
    here = [row for row in table if row.workers == 2]
    return ScaleFindings(
        target=TargetMetric(f"val/{word}accuracy", 0.96, "max"),
        own_batch_size=OWN,
        workers=2,
        samples_to_target=12_000,
        own_samples={0: 11_000, 1: 13_000},
        critical=critical,
        branches=branches,
        noise=(NoisePoint(1_000, 80.0, 60.0, 110.0), NoisePoint(2_000, 150.0, 90.0, None)),
        rules=rules,
        step_time=model,
        step_time_error=0.03,
        table=tuple(table),
        fastest=fastest_of(here),
        cheapest=cheapest_of(here),
        knee=knee_of(here),
        recommended={"data.global_batch_size": 128, "optimizer.lr": 0.1, "optimizer.lr_scaling": "linear"},
        predicted_seconds=0.35,
        measured_seconds=0.36,
        own_seconds=0.8,
        verifications=(
            Verification((OWN,), (11_000, 13_000), (11_100.0, 12_900.0), (7e-5, 6.5e-5)),
            Verification((128,), (14_000, 17_000), (14_200.0, 16_600.0), (2.4e-5, 2.3e-5)),
        ),
        speedup=2.2,
        speedup_interval=(1.8, 2.7),
        other_workers=(4,),
        other_workers_error=0.12,
        samples_spent=123_456,
        notes=(f"a branch of batch 512 {word} could not be trained",),
    )
