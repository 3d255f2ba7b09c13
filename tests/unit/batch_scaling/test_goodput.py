"""The table of batch sizes and workers, and the rows that are pointed out."""

from dataclasses import replace
from math import inf

import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch
from paceline.batch_scaling.findings import ScaleRow
from paceline.batch_scaling.goodput import cheapest_of, fastest_of, first_candidate, goodput_table, knee_of
from paceline.batch_scaling.step_time import StepTimeModel

SIZES = [32, 64, 128, 256]


def table(critical: float, most_samples: float = 1e9) -> list[ScaleRow]:
    """A step takes 2 ms and 10 us a sample; 10,000 samples to the target with the config's own batch."""
    model = StepTimeModel(0.002, 1e-5, 0.004, True)
    return goodput_table(
        SIZES,
        [1, 2],
        own_batch_size=32,
        own_samples=10_000,
        largest_trained=128,
        critical=CriticalBatch(critical, critical, critical, ()),
        seconds_per_step={(size, 1): model.seconds(size, 1, 1) for size in SIZES},
        step_time=model,
        micro_batch_size={size: size for size in SIZES},
        lr=dict.fromkeys(SIZES, 0.1),
        most_samples=most_samples,
    )


def row(rows: list[ScaleRow], size: int, workers: int = 1) -> ScaleRow:
    return next(each for each in rows if (each.global_batch_size, each.workers) == (size, workers))


def test_samples_follow_the_trade_off_and_seconds_the_steps() -> None:
    rows = table(critical=96.0)
    assert row(rows, 32).samples == 10_000
    # (1 + 128/96) / (1 + 32/96)
    assert row(rows, 128).samples == pytest.approx(17_500)
    assert row(rows, 128).seconds == pytest.approx(17_500 / 128 * 0.00328)
    assert row(rows, 128, 2).worker_seconds == pytest.approx(2 * 17_500 / 128 * (0.002 + 0.00064 + 0.002))


def test_what_was_not_measured_is_marked() -> None:
    rows = table(critical=96.0)
    assert {(each.global_batch_size, each.workers) for each in rows if not each.is_extrapolated} == {
        (32, 1),
        (64, 1),
        (128, 1),
    }


def test_the_fastest_the_cheapest_and_the_knee() -> None:
    rows = table(critical=inf)
    fastest, cheapest, knee = fastest_of(rows), cheapest_of(rows), knee_of(rows)
    assert fastest is not None
    assert cheapest is not None
    assert knee is not None
    assert fastest.seconds == min(each.seconds for each in rows)
    assert cheapest.worker_seconds == min(each.worker_seconds for each in rows)
    assert knee.seconds <= 1.1 * fastest.seconds
    assert knee.global_batch_size <= fastest.global_batch_size


def test_a_target_beyond_the_configs_length_is_out_of_reach() -> None:
    rows = table(critical=96.0, most_samples=12_000)
    assert row(rows, 32).is_in_reach
    assert not row(rows, 128).is_in_reach
    fastest = fastest_of(rows)
    assert fastest is not None
    assert fastest.is_in_reach


@pytest.mark.parametrize(
    ("own", "seconds", "size"),
    [
        (5.0, {64: 4.55, 128: 4.2, 256: 4.3}, 128),  # 64 is nearly as fast, but saves hardly more than half as much
        (10.0, {64: 2.1, 128: 2.0, 256: 2.5}, 64),
        (10.0, {64: 2.5, 128: 2.0, 256: 1.95}, 128),  # 64 saves 93 %, and is not nearly as fast
    ],
)
def test_the_first_candidate_is_small_and_saves_nearly_as_much_as_the_fastest(
    own: float, seconds: dict[int, float], size: int
) -> None:
    rows = [replace(row(table(critical=inf), each), seconds=value) for each, value in seconds.items()]
    first = first_candidate(rows, own)
    assert first is not None
    assert first.global_batch_size == size
    assert first_candidate([], own) is None
