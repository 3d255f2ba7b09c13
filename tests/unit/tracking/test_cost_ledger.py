"""Ledgers: their sums, prices and targets, and that they come back from their file as they were written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.config.experiment import ExperimentConfig, validate
from paceline.tracking.costs import COST_FILE, SWEEP_PARTS, Goal, Ledger, Reached, goal_of
from support.golden import Golden

PARTS = {"startup": 20.0, "training": 70.0, "evaluation": 9.5}
GOAL = Goal("val/accuracy", 0.9, "max")
CORES = Ledger("core", 3600.0, PARTS, 5.0, price_per_hour=2.0, goal=GOAL)
GPUS = Ledger("GPU", 7200.0, {"training": 7200.0}, 7.0, price_per_hour=10.0, goal=GOAL)


def labels(ledger: Ledger) -> list[str]:
    return [label for label, _ in ledger.lines()]


def text(ledger: Ledger) -> str:
    """What a terminal and a page show of a ledger."""
    return "\n".join([*map(": ".join, ledger.lines()), "", ledger.markdown()])


def test_the_gap_is_what_the_parts_miss() -> None:
    assert Ledger("core", 100.0, PARTS).gap == pytest.approx(0.005)
    assert Ledger("core", 100.0, {**PARTS, "training": 0.0}).gap == pytest.approx(0.705)
    assert Ledger("core", 50.0, PARTS).gap == pytest.approx(0.99)
    assert Ledger("core", 0.0, {}).gap == 0.0


def test_prices_are_by_the_hour() -> None:
    ledger = Ledger("GPU", 1800.0, PARTS, price_per_hour=3.0)
    assert ledger.price == pytest.approx(1.5)
    assert ledger.to_json()["parts_price"]["startup"] == pytest.approx(1 / 60)
    assert Ledger("GPU", 1800.0, PARTS).price is None


def test_launches_add_up() -> None:
    earlier = Ledger("core", 100.0, PARTS, joules=5.0, goal=GOAL)
    later = Ledger("core", 50.0, {"training": 49.8}, joules=2.0, goal=GOAL, reached=Reached(10.0, 1.0))
    both = later.after(earlier)
    assert (both.allocated, both.joules, both.reached) == (150.0, 7.0, Reached(110.0, 6.0))
    assert both.parts["training"] == pytest.approx(119.8)
    assert earlier.after(both).reached == Reached(110.0, 6.0)
    assert later.after(None) is later


def test_a_launch_on_another_kind_of_device_is_added_at_its_own_price(golden: Golden) -> None:
    both = GPUS.after(CORES)
    assert (both.unit, both.allocated, both.allocations) == ("GPU", 7200.0, {"GPU": 7200.0, "core": 3600.0})
    assert (both.joules, both.price, both.gap) == (12.0, 22.0, 0.0)
    assert both.others["core"].parts == PARTS
    spent = {"cost/gpu_seconds": 7200.0, "cost/core_seconds": 3600.0}
    assert both.metrics() == {**spent, "cost/price": 22.0, "cost/joules": 12.0}
    assert labels(both) == ["cost", "also spent", "price", "energy", "to target"]
    golden(text(both))
    unpriced = GPUS.after(replace(CORES, price_per_hour=None))
    assert unpriced.price is None
    assert "price" not in labels(unpriced)


def test_devices_may_change_back_and_forth() -> None:
    back = replace(CORES, price_per_hour=4.0).after(GPUS.after(CORES))
    assert back.allocations == {"core": 7200.0, "GPU": 7200.0}
    assert (back.joules, back.price) == (17.0, 8.0 + 20.0)
    assert back.parts["training"] == 140.0
    assert GPUS.after(back).allocations == {"GPU": 14400.0, "core": 7200.0}


def test_seconds_of_other_devices_count_to_the_target(golden: Golden) -> None:
    there = replace(GPUS, reached=Reached(1800.0, 3.0)).after(CORES)
    assert there.reached == Reached(1800.0, 8.0, {"core": 3600.0})
    to_target = {key: value for key, value in there.metrics().items() if "to_target" in key}
    assert to_target == {
        "cost/to_target_gpu_seconds": 1800.0,
        "cost/to_target_core_seconds": 3600.0,
        "cost/to_target_price": 7.0,
        "cost/to_target_joules": 8.0,
    }
    golden(there.lines()[-1][1], "on both")
    assert CORES.after(there).reached == Reached(3600.0, 8.0, {"GPU": 1800.0})
    before = GPUS.after(replace(CORES, reached=Reached(36.0)))
    assert before.reached == Reached(0.0, None, {"core": 36.0})
    golden(before.lines()[-1][1], "on the other alone")


def test_a_ledger_shows_its_parts_price_energy_and_target(golden: Golden) -> None:
    parts = {"startup": 25.0, "training": 98.0, "closing": 0.1}
    ledger = Ledger("core", 123.4, parts, 1500.0, 36.0, GOAL, Reached(9.0))
    assert labels(ledger) == ["cost", "energy", "to target"]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ledger.markdown().splitlines()[2:6]]
    assert [row[1:] for row in rows if "training" in row] == [["98.0", "79%", "0.98"]]
    assert rows[-1][1:] == ["123.4", "100%", "1.234"]
    golden(text(ledger))
    assert ledger.metrics() == {
        "cost/core_seconds": 123.4,
        "cost/price": pytest.approx(1.234),
        "cost/joules": 1500.0,
        "cost/to_target_core_seconds": 9.0,
        "cost/to_target_price": pytest.approx(0.09),
    }


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger("core", 100.0, PARTS, 5.0, 2.0, GOAL, Reached(7.0)),
        Ledger("GPU", 10.0, dict.fromkeys(SWEEP_PARTS, 1.0), goal=GOAL, kinds=SWEEP_PARTS),
        Ledger("core", 1.0, PARTS),
        replace(GPUS, reached=Reached(1.0, 2.0)).after(CORES),
    ],
    ids=["reached", "sweep", "bare", "two units"],
)
def test_a_ledger_comes_back_from_its_file(tmp_path: Path, ledger: Ledger) -> None:
    assert Ledger.read(tmp_path) is None
    (tmp_path / COST_FILE).write_text(json.dumps({**ledger.to_json(), "launch": "more than that"}))
    assert Ledger.read(tmp_path) == ledger


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"unit": "core"}'])
def test_a_file_that_holds_no_ledger_is_not_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / COST_FILE).write_bytes(content)
    assert Ledger.read(tmp_path) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("price_per_hour", "x"),
        ("allocated_seconds", 1e999),
        ("joules", True),
        ("parts_seconds", {"training": "x"}),
        ("parts_seconds", 5),
        ("unit", ["core"]),
        ("unit", "hour"),
        ("to_target", {"metric": "a", "value": "x", "mode": "min", "seconds": None}),
        ("others", {"GPU": 5}),
    ],
)
def test_a_ledger_with_a_wrong_field_is_not_read(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / COST_FILE).write_text(json.dumps({**CORES.to_json(), key: value}))
    assert Ledger.read(tmp_path) is None


def test_a_goal_is_the_configs_target_or_that_of_the_sweep() -> None:
    def config(**changes: object) -> ExperimentConfig:
        return validate({"name": "n", "model": {"name": "mlp"}, "data": {"name": "synthetic"}, **changes})

    assert goal_of(config(tracking={"target": {"val/loss": 0.1}})) == Goal("val/loss", 0.1, "min")
    sweep = {"space": {"optimizer.lr": [0.1]}, "metric": "train/score", "mode": "min", "stop": {"target": 0.5}}
    assert goal_of(config(sweep=sweep)) == Goal("train/score", 0.5, "min")
    assert goal_of(config(sweep=sweep, tracking={"target": {"train/score": 0.4}})) == Goal("train/score", 0.4, "min")
    assert goal_of(config()) is None


@pytest.mark.parametrize(("value", "is_reached"), [(0.89, False), (0.9, True), (float("nan"), False)])
def test_a_goal_is_reached_from_its_side(value: float, is_reached: bool) -> None:
    assert GOAL.is_reached({"val/accuracy": value}) is is_reached
    assert Goal("val/accuracy", 0.9, "min").is_reached({"val/accuracy": value}) is (value in (0.89, 0.9))
    assert not GOAL.is_reached({})
