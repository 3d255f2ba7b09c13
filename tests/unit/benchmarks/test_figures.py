"""What the benchmarks make of their measurements: figures from hand-made times."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("expected", "losses", "weights", "is_as_expected"),
    [
        ("bit", [2.0, 1.0], "a", True),
        ("bit", [2.0, 1.0], "b", False),
        ("rounding", [2.0, 1.001], "b", True),
        ("rounding", [2.0, float("nan")], "b", False),
        ("design", [2.0, 1.5], "b", True),
    ],
)
def test_losses_of_a_technique_are_as_expected_or_not(
    load: Any, expected: str, losses: list[float], weights: str, is_as_expected: bool
) -> None:
    first = {"losses": [2.0, 1.0], "weights_sha256": "a"}
    mine = {"losses": losses, "weights_sha256": weights}
    assert load("techniques").compare(expected, mine, first)[1] is is_as_expected


def test_mfu_is_that_of_the_paper(load: Any) -> None:
    # GPT-2 small: 6 * 124 M + 12 * 12 * 768 * 1024 = 744 M + 113.246208 M operations a token
    model = {"num_layers": 12, "embedding_dim": 768, "context_length": 1024}
    found = load("techniques").mfu_of(500_000 / 1024, 124_000_000 + 1024 * 768, model, 989.4)
    assert found == pytest.approx(0.5e6 * 857.246208e6 / 989.4e12)


def test_a_ladder_compares_speed_with_its_first_arm(load: Any) -> None:
    techniques, turn = load("techniques"), load("arm_process").Turn
    arms = techniques.LADDERS["loading"].arms
    turns = {"no workers": [turn(1.0, 1.0, 10, 100)] * 2, "2 workers": [turn(0.5, 1.0, 10, 100)] * 2}
    fact = {"losses": [1.0], "weights_sha256": "a", "parameters": 5, "warnings": [], "peak_bytes": 2**20}
    facts = {"no workers": fact, "2 workers": {**fact, "losses": [1.5]}}
    found = techniques.report(arms, facts, turns, {}, Namespace(device="cpu", peak_tflops=None), {})
    assert [row[3].value for row in found.rows] == [1.0, 2.0]
    assert [row[4].value for row in found.rows] == [1.0, 1.0]
    assert list(found.failures) == ["2 workers"]  # its losses should be equal to the bit


def journal(folder: Path, trial: str, start: float, steps: int, seconds: float) -> None:
    """A trial whose steps take so long, the first one twice that, evaluated half a second after the last."""
    ends = [start + seconds * (step + 1) for step in range(1, steps + 1)]
    values = [
        *(("train/loss", 1.0, step, end) for step, end in enumerate(ends, 1)),
        ("step_seconds", 2 * seconds, 1, ends[0]),
        ("val/loss", 1.0, steps, ends[-1] + 0.5),
    ]
    entries: list[dict[str, Any]] = [{"kind": "artifact", "path": "config.yaml"}]
    for key, value, step, end in values:
        entries.append({"kind": "point", "key": key, "value": value, "step": step, "timestamp_ms": int(end * 1000)})
    path = folder / "runs" / "overhead" / "20260102-030405-abcdef" / "trials" / trial / "tracking" / "journal.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))


def test_figures_of_a_sweep_come_from_its_journals(load: Any, tmp_path: Path) -> None:
    sweep_overhead = load("sweep_overhead")
    for number, start in enumerate((1000.0, 1010.0, 1020.0, 1021.0, 1024.0)):
        journal(tmp_path, f"{number:04}", start, steps=10, seconds=0.25)
    times = sweep_overhead.read_trials(tmp_path)
    assert times[0] == pytest.approx((1000.0, 1000.5, 1003.25))
    args = Namespace(trials=5, stock_trials=3)
    found = sweep_overhead.sweep_figures((990.0, 1040.0), times, args)
    # the first two trials are left out: 1 and 3 seconds from end to end
    assert found == pytest.approx({"cold start": 10.5, "trial, mean": 2.0, "trial, median": 2.0, "total": 50.0})
    with pytest.raises(sweep_overhead.ArmFailed):
        sweep_overhead.sweep_figures((990.0, 1040.0), times[1:], args)
    stock = sweep_overhead.stock_figures((1000.0, 1150.0), 1050.0, [1098.0, 1060.0, 1140.0], args)
    assert stock == pytest.approx({"cold start": 50.0, "trial, mean": 40.0, "total": 150.0 + 2 * 40.0})
    eight = [sweep_overhead.TrialTimes(10.0 * each, 0.0, 10.0 * each + 20.0) for each in range(8)]
    assert sweep_overhead.slot_figures(eight) == {"total": 90.0, "ideal": 80.0}


def test_targets_of_a_sweep(load: Any) -> None:
    mean, median = {"trial, mean": 0.25}, {"trial, median": 0.2}
    found = {
        "stock": [{"cold start": 50.0, "trial, mean": 40.0, "total": 1300.0}],
        "paceline": [{"cold start": 45.0, **mean, **median, "total": 50.0}],
        "two slots": [{"total": 90.0, "ideal": 80.0}],
    }
    report = load("sweep_overhead").report
    assert [each.verdict for each in report(found, {}, 32).targets] == ["met", "met", "not met"]
    found["paceline"][0]["trial, mean"] = 0.31  # the median alone would do
    assert report(found, {}, 32).targets[0].verdict == "not met"
    del found["stock"]
    failed = report(found, {"stock": "exit code 3"}, 32)
    assert failed.targets[1].verdict == "not measured"
    assert failed.failures == {"stock": "exit code 3"}


def test_efficiency_is_that_of_each_worker_in_the_same_round(load: Any) -> None:
    batches = {("weak", 1): 100, ("again", 1): 100, ("weak", 2): 200, ("strong", 2): 100}
    slow = (1.0, 2.0, 4.0)  # in each round the machine is half as fast as in the round before
    factors = {"weak 1": 0.1, "again 1": 0.125, "weak 2": 0.125, "strong 2": 0.0625}
    seconds = {name: [factor * each for each in slow] for name, factor in factors.items()}
    rows = load("scaling").efficiency(batches, seconds, {}).rows
    assert [row[:3] for row in rows] == [(*kind, batch) for kind, batch in batches.items()]
    assert [row[5].value for row in rows] == pytest.approx([1.0, 0.8, 0.8, 0.8])
    assert all(row[5].high - row[5].low == pytest.approx(0) for row in rows)  # the drift is not in the interval


def test_weak_scaling_keeps_the_batch_of_a_worker_and_strong_scaling_that_of_all(load: Any) -> None:
    from paceline.config import load_config

    scaling = load("scaling")
    found = scaling.settings(load_config(scaling.DEFAULT, ["data.global_batch_size=64"]), [1, 2, 4])
    sizes = {kind: (config.data.global_batch_size, config.scaling.num_workers) for kind, config in found.items()}
    assert sizes == {
        ("weak", 1): (64, 1),
        ("again", 1): (64, 1),
        ("weak", 2): (128, 2),
        ("strong", 2): (64, 2),
        ("weak", 4): (256, 4),
        ("strong", 4): (64, 4),
    }


def test_the_warm_up_of_a_turn_is_not_timed(load: Any) -> None:
    scaling = load("scaling")
    points = [(4, {"step_seconds": 9.0}), (8, {"step_seconds": 9.0}), (12, {"step_seconds": 9.0})]
    points += [(16, {"step_seconds": 0.5}), (16, {"val/loss": 1.0}), (18, {"step_seconds": 0.25})]
    assert scaling.mean_step_seconds(points) == pytest.approx((4 * 0.5 + 2 * 0.25) / 6)
    assert scaling.steps_for(seconds=1.0, of_a_step=0.02, log_every=10) == 10 + 50
    assert scaling.steps_for(seconds=1.0, of_a_step=5.0, log_every=4) == 12 + 4
