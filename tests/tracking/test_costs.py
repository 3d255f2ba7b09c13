"""Ledgers: their sums, what they tell, and that they come back as they were written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.config.loading import validate
from paceline.tracking.costs import COST_FILE, SWEEP_PARTS, Goal, Ledger, Reached, goal_of

PARTS = {"startup": 20.0, "training": 70.0, "evaluation": 9.5}
GOAL = Goal("val/accuracy", 0.9, "max")


def config(**changes: object) -> object:
    return validate({"name": "n", "model": {"name": "mlp"}, "data": {"name": "synthetic"}, **changes})


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


CORES = Ledger("core", 3600.0, PARTS, 5.0, price_per_hour=2.0, goal=GOAL)
GPUS = Ledger("GPU", 7200.0, {"training": 7200.0}, 7.0, price_per_hour=10.0, goal=GOAL)


def test_a_launch_on_another_kind_of_device_is_added_at_its_own_price() -> None:
    both = GPUS.after(CORES)
    assert (both.unit, both.allocated, both.allocations) == ("GPU", 7200.0, {"GPU": 7200.0, "core": 3600.0})
    assert (both.joules, both.price, both.gap) == (12.0, 22.0, 0.0)
    assert both.others["core"].parts == PARTS
    assert both.metrics() == {
        "cost/gpu_seconds": 7200.0,
        "cost/core_seconds": 3600.0,
        "cost/price": 22.0,
        "cost/joules": 12.0,
    }
    assert both.lines()[:3] == [
        ("cost", "7,200 GPU-seconds (price 20 at 10 per GPU-hour): 100 % training"),
        ("also spent", "3,600 core-seconds (price 2 at 2 per core-hour): 2 % training, 1 % start-up"),
        ("price", "22 in all"),
    ]
    assert "Also spent: 3,600 core-seconds (price 2 at 2 per core-hour)" in both.markdown()


def test_without_one_of_the_prices_there_is_none_in_all() -> None:
    both = GPUS.after(replace(CORES, price_per_hour=None))
    assert both.price is None
    assert [text for label, text in both.lines() if label in ("cost", "also spent", "price")] == [
        "7,200 GPU-seconds (price 20 at 10 per GPU-hour): 100 % training",
        "3,600 core-seconds: 2 % training, 1 % start-up",
    ]


def test_devices_may_change_back_and_forth() -> None:
    back = replace(CORES, price_per_hour=4.0).after(GPUS.after(CORES))
    assert back.allocations == {"core": 7200.0, "GPU": 7200.0}
    assert (back.joules, back.price) == (17.0, 8.0 + 20.0)
    assert back.parts["training"] == 140.0
    assert GPUS.after(back).allocations == {"GPU": 14400.0, "core": 7200.0}


def test_what_was_spent_on_other_devices_counts_to_the_target() -> None:
    there = replace(GPUS, reached=Reached(1800.0, 3.0)).after(CORES)
    assert there.reached == Reached(1800.0, 8.0, {"core": 3600.0})
    assert (
        there.metrics().items()
        >= {
            "cost/to_target_gpu_seconds": 1800.0,
            "cost/to_target_core_seconds": 3600.0,
            "cost/to_target_price": 7.0,
            "cost/to_target_joules": 8.0,
        }.items()
    )
    spent = "1,800 GPU-seconds and 3,600 core-seconds (price 7), 8 J"
    assert there.lines()[-1] == ("to target", f"val/accuracy 0.9 was reached after {spent}")
    later = CORES.after(there)
    assert later.reached == Reached(3600.0, 8.0, {"GPU": 1800.0})
    before = GPUS.after(replace(CORES, reached=Reached(36.0)))
    assert before.reached == Reached(0.0, None, {"core": 36.0})
    text = "val/accuracy 0.9 was reached after 36 core-seconds (price 0.02)"
    assert before.lines()[-1] == ("to target", text)


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"unit": "core"}'])
def test_without_a_readable_file_there_is_no_ledger(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "cost.json").write_bytes(content)
    assert Ledger.read(tmp_path) is None
    (tmp_path / "cost.json").write_text(json.dumps({**CORES.to_json(), "launch": "more than that"}))
    assert Ledger.read(tmp_path) == CORES


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("price_per_hour", "x"),
        ("price_per_hour", [1]),
        ("allocated_seconds", "x"),
        ("allocated_seconds", 1e999),
        ("joules", {}),
        ("joules", True),
        ("parts_seconds", {"training": "x"}),
        ("parts_seconds", 5),
        ("unit", ["core"]),
        ("unit", "hour"),
        ("to_target", {"metric": "a", "value": "x", "mode": "min", "seconds": None}),
        ("others", {"GPU": 5}),
    ],
)
def test_what_is_no_ledger_is_not_read(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / COST_FILE).write_text(json.dumps({**CORES.to_json(), key: value}))
    assert Ledger.read(tmp_path) is None


def test_it_comes_back_from_json() -> None:
    for ledger in (
        Ledger("core", 100.0, PARTS, 5.0, 2.0, GOAL, Reached(7.0)),
        Ledger("GPU", 10.0, dict.fromkeys(SWEEP_PARTS, 1.0), goal=GOAL, kinds=SWEEP_PARTS),
        Ledger("core", 1.0, PARTS),
        replace(GPUS, reached=Reached(1.0, 2.0)).after(CORES),
    ):
        assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger


def test_what_it_tells() -> None:
    ledger = Ledger(
        "core", 123.4, {"startup": 25.0, "training": 98.0, "closing": 0.1}, 1500.0, 36.0, GOAL, Reached(9.0)
    )
    assert ledger.lines() == [
        ("cost", "123 core-seconds (price 1.234 at 36 per core-hour): 79 % training, 20 % start-up"),
        ("energy", "1,500 J"),
        ("to target", "val/accuracy 0.9 was reached after 9 core-seconds (price 0.09)"),
    ]
    table = ledger.markdown()
    assert table.startswith("| cost | core-seconds | share | price at 36 per core-hour |")
    assert "| training | 98.0 | 79% | 0.98 |" in table
    assert "| **all** | 123.4 | 100% | 1.234 |" in table
    assert "val/accuracy 0.9 was not reached" in Ledger("core", 1.0, PARTS, goal=GOAL).markdown()
    assert ledger.metrics() == {
        "cost/core_seconds": 123.4,
        "cost/price": pytest.approx(1.234),
        "cost/joules": 1500.0,
        "cost/to_target_core_seconds": 9.0,
        "cost/to_target_price": pytest.approx(0.09),
    }


def test_a_goal_is_the_configs_target_or_that_of_the_sweep() -> None:
    assert goal_of(config(tracking={"target": {"val/loss": 0.1}})) == Goal("val/loss", 0.1, "min")
    sweep = {"space": {"optimizer.lr": [0.1]}, "metric": "val/score", "mode": "min", "stop": {"target": 0.5}}
    assert goal_of(config(sweep=sweep)) == Goal("val/score", 0.5, "min")
    assert goal_of(config(sweep=sweep, tracking={"target": {"val/score": 0.4}})) == Goal("val/score", 0.4, "min")
    assert goal_of(config()) is None


@pytest.mark.parametrize(("value", "is_reached"), [(0.89, False), (0.9, True), (float("nan"), False)])
def test_a_goal_is_reached_from_its_side(value: float, is_reached: bool) -> None:
    assert GOAL.is_reached({"val/accuracy": value}) is is_reached
    assert Goal("val/accuracy", 0.9, "min").is_reached({"val/accuracy": value}) is (value in (0.89, 0.9))
    assert not GOAL.is_reached({})
