"""The harness of the benchmarks: its statistics, the order of the arms, targets, the command line and the record."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _ask_no_command(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "output_of", lambda *command: "")


def test_an_estimate_is_the_mean_over_processes_of_each_ones_median(harness: Any) -> None:
    found = harness.estimate([[1.0, 1.0, 9.0], [3.0, 3.0, 3.0, 0.0]])
    assert found.value == 2.0
    assert found.low < found.value < found.high
    assert harness.estimate([[1.5] * 4]) == (1.5, 1.5, 1.5)
    assert harness.estimate([[0.5] * 10 + [1.5] * 10])[1:] == (0.5, 1.5)


@pytest.mark.parametrize(
    ("processes", "rounds", "between", "within"), [(4, 10, 0.02, 0.005), (24, 8, 0.0, 0.02), (10, 20, 0.01, 0.03)]
)
def test_intervals_hold_the_true_value_as_often_as_they_say(
    harness: Any, processes: int, rounds: int, between: float, within: float
) -> None:
    """Whether processes differ or rounds do: intervals that are too narrow show what is not there, and those that are
    too wide leave undecided what was measured."""
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        scatter = between * draw.standard_normal((processes, 1)) + within * draw.standard_normal((processes, rounds))
        found = harness.estimate((1 + scatter).tolist())
        hits += found.low <= 1 <= found.high
    assert 0.92 <= hits / 400 <= 0.98


def test_ratios_are_those_of_the_same_round(harness: Any) -> None:
    drift = [1.0, 2.0, 8.0]
    found = harness.ratio([[1.1 * each for each in drift]] * 2, [drift] * 2)
    assert found == pytest.approx((1.1, 1.1, 1.1))
    with pytest.raises(ValueError, match="zip"):
        harness.ratio([[1.0]], [[1.0, 2.0]])


def test_orders_come_in_pairs_that_are_each_others_reverse(harness: Any) -> None:
    names = ["a", "b", "c", "d"]
    found = list(harness.orders(names, 41))
    assert all(sorted(order) == names for order in found)
    assert all(second == first[::-1] for first, second in zip(found[::2], found[1::2], strict=False))
    assert len({tuple(order) for order in found[::2]}) > 10
    assert found == list(harness.orders(names, 41))
    assert found != list(harness.orders(names, 41, seed=1))


def test_an_arm_that_fails_takes_no_further_turn(harness: Any) -> None:
    calls: list[str] = []

    def arm(name: str, turns: int) -> Any:
        def take() -> int:
            calls.append(name)
            if calls.count(name) > turns:
                raise harness.ArmFailed(f"{name} is out of memory")
            return calls.count(name)

        return take

    rounds: list[int] = []
    values, failures = harness.take_turns(
        {"a": arm("a", 9), "b": arm("b", 1), "c": arm("c", 9)}, 4, after_round=lambda number, _: rounds.append(number)
    )
    assert values == {"a": [1, 2, 3, 4], "c": [1, 2, 3, 4]}
    assert failures == {"b": "b is out of memory"}
    assert (calls.count("b"), rounds) == (2, [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ((0.9, 0.8, 1.0), "met"),
        ((0.99, 0.9, 1.01), "not decided"),
        ((1.1, 1.01, 1.2), "not met"),
        (None, "not measured"),
    ],
)
def test_a_verdict_is_that_of_the_whole_interval(harness: Any, value: Any, verdict: str) -> None:
    interval = value and harness.Interval(*value)
    assert harness.Target("time", interval, most=1.0).verdict == verdict
    mirrored = value and harness.Interval(-interval.value, -interval.high, -interval.low)
    assert harness.Target("speed", mirrored, least=-1.0).verdict == verdict


def test_the_table_of_loops_compares_with_the_first_arm(harness: Any) -> None:
    bare = [harness.Seconds(seconds, 2 * seconds) for seconds in (1.0, 2.0, 8.0)]
    slow = [harness.Seconds(1.25 * each.clock, each.cpu) for each in bare]
    processes = [({"bare": bare, "slow": slow}, {"bare": 0.0, "slow": 1e-6})] * 2
    (_, *first), (name, milliseconds, clock, cpu, weights) = harness.loop_rows(processes, steps=10)
    assert first == ["200.000", (1.0, 1.0, 1.0), (1.0, 1.0, 1.0), "equal to the bit"]
    assert (name, milliseconds, weights) == ("slow", "250.000", "differ by 1.0e-06")
    assert (clock.value, cpu.value) == (1.25, 1.0)
    assert harness.loop_rows(processes, 10, as_speed=True)[1][2].value == 0.8


def test_numbers_of_the_command_line(harness: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def parsed(*arguments: str) -> Any:
        benchmark = harness.Benchmark("b", "text", (), arms=["a"])
        benchmark.number("--rounds", 8, 1, "rounds")
        benchmark.number("--warm-up", 0.5, 0.1, "seconds", least=0.1)
        return benchmark.parse(arguments)

    normal, mixed = parsed(), parsed("--quick", "--rounds", "3", "--arms", "a")
    assert [(each.rounds, each.warm_up) for each in (normal, mixed)] == [(8, 0.5), (3, 0.1)]
    for wrong in (["--rounds", "0"], ["--rounds", "1.5"], ["--arms", "b"], ["--quic"]):
        with pytest.raises(SystemExit) as ending:
            parsed(*wrong)
        assert ending.value.code == 2
    capsys.readouterr()


def part(harness: Any, **fields: Any) -> Any:
    targets = [harness.Target("time", harness.exactly(0.9), most=1.0)]
    return harness.Part(("arm", "ms"), [("bare", 1.5), ("paceline", 10)], targets, raw=[1.5, 10], **fields)


def test_the_report_is_markdown_or_json_and_failures_end_with_code_1(
    harness: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = harness.Benchmark("b", "text", ("numpy", "no-such-package"))
    benchmark.parse([])
    assert benchmark.finish({"one": part(harness)}) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 4
    assert {line.count("|") for line in table} == {3}
    assert len({len(line) for line in table}) == 1
    benchmark.parse(["--json"])
    assert benchmark.finish({"one": part(harness, failures={"ray": "died"})}) == 1
    found = json.loads(capsys.readouterr().out)["one"]
    assert (found["raw"], found["failures"], found["targets"][0]["verdict"]) == ([1.5, 10], {"ray": "died"}, "met")
    where = found["environment"]
    assert where["versions"]["numpy"] == np.__version__
    assert where["cores"] == len(os.sched_getaffinity(0))
    assert {"date", "cpu", "gpu", "commit", "command", "options", "load_average"} <= where.keys()
    benchmark.args.config = Path(__file__)
    assert benchmark.environment()["options"]["config"] == "tests/unit/benchmarks/test_harness.py"


def test_a_record_keeps_the_other_parts_of_the_same_day(harness: Any, tmp_path: Path) -> None:
    benchmark = harness.Benchmark("techniques", "text", ())
    benchmark.parse([])
    where = {**benchmark.environment(), "date": "2026-01-02T03:04:05+00:00", "gpu": "NVIDIA H100 80GB HBM3, 570.1"}
    where["command"] = "jobs/benchmarks/techniques.py --parts gpt vit"
    for title in ("gpt", "vit"):
        found = {title: {**part(harness).plain(), "environment": where}}
        folder = harness.write_record(tmp_path, "techniques", found)
    assert folder == tmp_path / "2026-01-02_nvidia-h100-80gb-hbm3_techniques"
    assert list(json.loads((folder / "results.json").read_text())) == ["gpt", "vit"]
    page = (folder / "README.md").read_text()
    assert page.count("| paceline |") == 2
    assert page.count(where["command"]) == 1
    where["gpu"] = "no GPU"
    found = {"vit": {**part(harness).plain(), "environment": where}}
    assert harness.write_record(tmp_path, "loop", found).name == "2026-01-02_cpu_loop"
