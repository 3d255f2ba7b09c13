"""Rungs: where training stops to be compared, what is told there, and that nothing else changes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from paceline.engine import rungs as rungs_module
from paceline.engine.build import build_trainer
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.engine.rungs import Rungs, ask_first
from support.ranks import end_ranks, run_ranks
from support.toys import net_with_dropout_and_norm, points, toy_config

EVERY_40 = Rungs(40)
"""Steps are of 16 samples: rungs are reached at the steps 3, 5, 8 and 10 of 12."""


def train(
    rungs: Rungs | None, folder: Path | None, reporter: MemoryReporter | None = None, **overrides: Any
) -> tuple[Any, Any, MemoryReporter]:
    reporter = reporter or MemoryReporter()
    trainer = build_trainer(toy_config(**overrides), Ranks.current(), reporter, folder, rungs)
    return trainer, trainer.fit(), reporter


def asked_at(reporter: MemoryReporter) -> list[int]:
    return [step for step, _ in reporter.asked]


@pytest.mark.parametrize(
    ("rungs", "amounts"),
    [
        (Rungs(10), [10, 20, 30, 40]),
        (Rungs(10, 2), [10, 20, 40, 80]),
        (Rungs(0.1, unit="epochs"), [0.1, 0.2, 0.3, 0.4]),
        (Rungs(0.1, 3), [0.1, 0.3, 0.9, 2.7]),
    ],
)
def test_rungs_ascend(rungs: Rungs, amounts: list[float]) -> None:
    found = [0.0]
    for amount in amounts:
        found.append(rungs.above(found[-1]))
        assert rungs.above(amount) > amount * 1.01
    assert found[1:] == pytest.approx(amounts)


@pytest.mark.parametrize(("first", "factor"), [(0, None), (-1, None), (1, 1.0), (1, 0.5), (float("nan"), None)])
def test_rungs_that_do_not_ascend_are_refused(first: float, factor: float | None) -> None:
    with pytest.raises(ValueError, match="rungs begin above 0"):
        Rungs(first, factor)


@pytest.mark.parametrize(
    ("rungs", "steps"),
    [
        (EVERY_40, [3, 5, 8, 10]),
        (Rungs(1), list(range(1, 12))),
        (Rungs(32, 2), [2, 4, 8]),
        (Rungs(0.5, unit="epochs"), [3, 6, 9]),
        (Rungs(1, unit="epochs"), [6]),
        (Rungs(2, unit="epochs"), []),
        (Rungs(1e-9, unit="seconds"), [6]),
        (Rungs(1e6, unit="seconds"), []),
    ],
)
def test_a_rung_is_asked_about_once_and_never_at_the_end(rungs: Rungs, steps: list[int]) -> None:
    _, outcome, reporter = train(rungs, None)
    assert asked_at(reporter) == steps
    assert (outcome.stopped, outcome.step) == (False, 12)


def test_epochs_are_whole_where_the_last_batch_is_dropped() -> None:
    data = {"data__path": lambda: points(103, 31), "data__drop_last": True}
    assert asked_at(train(Rungs(1, unit="epochs"), None, **data)[2]) == [6]


def test_what_is_told_at_a_rung(tmp_path: Path) -> None:
    _, _, reporter = train(Rungs(0.5, unit="epochs"), tmp_path)
    step, values = reporter.asked[0]
    assert (step, values["step"], values["samples"], values["epochs"]) == (3, 3, 48, 0.5)
    assert 0 < values["seconds"] < 60
    newest = [point["val/loss"] for at, point in reporter.points if at == 3 and "val/loss" in point]
    assert newest == [values["val/loss"]]
    assert values["train/loss"] == reporter.values("train/loss")[2]
    evaluated = [at for at, point in reporter.points if "val/loss" in point]
    assert evaluated == [3, 6, 9, 12], "once a step, also where rung and plan meet"


def test_the_checkpoint_is_safe_before_the_question(tmp_path: Path) -> None:
    class Looking(MemoryReporter):
        def rung(self, step: int, values: Mapping[str, float]) -> bool:
            assert (tmp_path / f"step-{step}" / "MANIFEST.json").exists()
            assert ("checkpoint", {"step": step, "path": str(tmp_path / f"step-{step}")}) in self.events
            return super().rung(step, values)

    assert len(train(EVERY_40, tmp_path, Looking())[2].asked) == 4


def test_a_no_ends_the_trial_and_its_resumption_goes_on(tmp_path: Path) -> None:
    _, whole, _ = train(None, tmp_path / "whole")
    folder = tmp_path / "parts"
    _, first, _ = train(EVERY_40, folder, MemoryReporter(stop_at_rung=5))
    assert (first.stopped, first.step, first.checkpoint) == (True, 5, str(folder / "step-5"))
    _, second, reporter = train(EVERY_40, folder)
    assert asked_at(reporter) == [8, 10]
    assert second.weights_sha256 == whole.weights_sha256


class Killed(Exception):
    """Stands for the end of the process."""


class Dying(MemoryReporter):
    """Is killed while it waits for an answer, or just after the next step."""

    at_rung = 5

    def rung(self, step: int, values: Mapping[str, float]) -> bool:
        super().rung(step, values)
        if step == self.at_rung:
            raise Killed
        return True


def test_a_rung_without_an_answer_is_asked_first_thing(tmp_path: Path) -> None:
    _, whole, _ = train(None, tmp_path / "whole")
    folder, dying = tmp_path / "parts", Dying()
    with pytest.raises(Killed):
        train(EVERY_40, folder, dying)
    shutil.copytree(folder, tmp_path / "again")
    trainer, second, reporter = train(EVERY_40, folder)
    assert asked_at(reporter) == [5, 8, 10]
    assert second.weights_sha256 == whole.weights_sha256
    before, after = dying.asked[-1][1], reporter.asked[0][1]
    assert after["seconds"] == pytest.approx(before["seconds"], abs=1)
    assert {**after, "seconds": 0} == {**before, "seconds": 0}, "the metrics are those of the checkpoint"
    trainer, stopped, reporter = train(EVERY_40, tmp_path / "again", MemoryReporter(stop_at_rung=5))
    assert (asked_at(reporter), stopped.stopped, stopped.step, trainer.state.task.seen) == ([5], True, 5, [])
    assert "val/loss" in stopped.metrics
    assert asked_at(train(EVERY_40, tmp_path / "again")[2]) == [8, 10]


def test_a_run_that_is_stopped_at_a_rung_asks_when_it_goes_on(tmp_path: Path) -> None:
    _, first, reporter = train(EVERY_40, tmp_path, MemoryReporter(stop_at_step=5))
    assert (first.step, asked_at(reporter)) == (5, [3])
    assert asked_at(train(EVERY_40, tmp_path)[2]) == [5, 8, 10]


def test_a_rung_that_was_left_without_a_decision_is_asked_about_again(tmp_path: Path) -> None:
    _, first, reporter = train(EVERY_40, tmp_path, MemoryReporter(leave_at_rung=5))
    assert (first.stopped, first.step, asked_at(reporter)) == (True, 5, [3, 5])
    assert asked_at(train(EVERY_40, tmp_path)[2]) == [5, 8, 10]


def test_an_answer_holds_between_rungs_too(tmp_path: Path) -> None:
    train(EVERY_40, tmp_path, MemoryReporter(stop_at_step=6))
    assert asked_at(train(EVERY_40, tmp_path)[2]) == [8, 10]


def test_rungs_that_lie_behind_are_not_for_a_run_that_had_none(tmp_path: Path) -> None:
    train(None, tmp_path / "none", MemoryReporter(stop_at_step=5))
    assert asked_at(train(EVERY_40, tmp_path / "none")[2]) == [8, 10]
    train(Rungs(1e6), tmp_path / "others", MemoryReporter(stop_at_step=5))
    assert asked_at(train(EVERY_40, tmp_path / "others")[2]) == [8, 10]


class SlowReporter(MemoryReporter):
    """Makes an epoch of six steps take 0.4 seconds at least."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        time.sleep(0.06)
        super().metrics(step, values)


def test_seconds_go_on_over_attempts(tmp_path: Path) -> None:
    at_once = Rungs(1e-9, unit="seconds")
    _, first, reporter = train(at_once, tmp_path, SlowReporter(stop_at_rung=6), trainer__epochs=3)
    assert (first.stopped, first.step) == (True, 6)
    before = reporter.asked[0][1]["seconds"]
    assert before > 0.4
    _, _, reporter = train(Rungs(before + 0.2, unit="seconds"), tmp_path, SlowReporter(), trainer__epochs=3)
    assert asked_at(reporter) == [12]
    assert reporter.asked[0][1]["seconds"] > before + 0.4


def test_waiting_at_a_rung_is_no_training_time() -> None:
    class Slow(MemoryReporter):
        def rung(self, step: int, values: Mapping[str, float]) -> bool:
            time.sleep(0.6)
            return super().rung(step, values)

    trainer, outcome, _ = train(EVERY_40, None, Slow())
    assert trainer.rungs.seconds < 2.0
    assert outcome.samples_per_second > 16 * 12 / 2.0


TECHNIQUES: dict[str, dict[str, Any]] = {
    "accumulation": {"data__micro_batch_size": 2},
    "fp32, samples kept, logging seldom": {
        "trainer__precision": "32-true",
        "trainer__log_every_n_steps": 5,
        "data__cache": "memory",
    },
    "bf16, checkpointing": {"trainer__precision": "bf16-mixed", "trainer__activation_checkpointing": "selective"},
    "adascale": {"optimizer__lr_scaling": "adascale", "optimizer__base_batch_size": 4},
    "powersgd": {"parallel__comm_hook": "powersgd", "parallel__powersgd_start_step": 2},
    "fsdp": {"parallel__strategy": "fsdp"},
    "pipeline": {"parallel__strategy": "pipeline", "trainer__gradient_accumulation_steps": 2},
    "loader": {"data__num_workers": 1, "data__path": lambda: points(96, 31, noisy=True)},
}


def model() -> nn.Module:
    return nn.Sequential(net_with_dropout_and_norm(), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)))


def with_and_without(ranks: Ranks, folder: Path) -> dict[str, list[Any]]:
    results: dict[str, list[Any]] = {}
    for name, overrides in TECHNIQUES.items():
        settings = {"model__path": model, **overrides}
        config = toy_config(scaling__num_workers=ranks.world_size, **settings)
        for rungs in (None, EVERY_40):
            reporter = MemoryReporter()
            trainer = build_trainer(config, ranks, reporter, folder / name / str(rungs is None), rungs)
            outcome = trainer.fit()
            told = outcome.weights_sha256, reporter.values("train/loss"), outcome.metrics.get("val/loss")
            results.setdefault(name, []).append((told, asked_at(reporter)))
    return results


def test_rungs_change_no_bit(tmp_path: Path) -> None:
    results = run_ranks(with_and_without, 2, tmp_path)[0]
    assert results.keys() == TECHNIQUES.keys()
    for name, (without, with_rungs) in results.items():
        assert with_rungs[0] == without[0], name
        assert (without[1], with_rungs[1]) == ([], [3, 5, 8, 10]), name


def stop_and_go_on(ranks: Ranks, folder: Path) -> list[Any]:
    told = []
    config = toy_config(scaling__num_workers=ranks.world_size)
    for stop_at in (5, None):
        reporter = MemoryReporter(stop_at_rung=stop_at)
        outcome = build_trainer(config, ranks, reporter, folder, EVERY_40).fit()
        told.append((outcome.stopped, outcome.step, asked_at(reporter)))
    return told


def test_all_ranks_do_what_rank_0_is_told(tmp_path: Path) -> None:
    first, second = run_ranks(stop_and_go_on, 2, tmp_path)
    assert first == [(True, 5, [3, 5]), (False, 12, [8, 10])]
    assert second == [(True, 5, []), (False, 12, [])]


def wait_for_long(ranks: Ranks, seconds: float, round_seconds: float) -> tuple[bool, float]:
    from datetime import timedelta

    import torch.distributed as dist

    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))

    def question() -> bool:
        time.sleep(seconds)
        return False

    start = time.monotonic()
    return ask_first(ranks, question, round_seconds), time.monotonic() - start


def test_the_others_wait_for_longer_than_an_operation_may_take() -> None:
    for answer, seconds in run_ranks(wait_for_long, 2, 3.0, 0.25):
        assert (answer, 2.9 < seconds < 5) == (False, True)
    impatient = end_ranks(wait_for_long, 2, 3.0, 30.0)
    assert impatient[1].error is not None, "without rounds they would time out"


def fail_at_a_rung(ranks: Ranks) -> str:
    from paceline.engine.failure import RankFailed, failing_together

    config = toy_config(scaling__num_workers=ranks.world_size)
    try:
        failing_together(ranks, lambda: build_trainer(config, ranks, Dying(), None, EVERY_40).fit())
    except RankFailed as error:
        return error.failure.reason
    return "no failure"


def test_an_error_instead_of_an_answer_ends_all_ranks() -> None:
    assert [told.rpartition(".")[2] for told in run_ranks(fail_at_a_rung, 2)] == ["Killed: ", "Killed: "]


def test_rounds_are_short_beside_the_timeout() -> None:
    trainer, _, _ = train(EVERY_40, None, parallel__timeout_seconds=8)
    assert trainer.rungs._round_seconds == 2
    assert train(EVERY_40, None)[0].rungs._round_seconds == rungs_module.ROUND_SECONDS
