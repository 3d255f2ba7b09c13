"""Rungs: where training stops to be compared, what is told there, and that nothing else changes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.engine import meter as meter_module
from paceline.engine import rungs as rungs_module
from paceline.engine import trainer as trainer_module
from paceline.engine.dist_context import MAX_ROUND_SECONDS
from paceline.engine.reporter import MemoryReporter
from paceline.engine.rungs import Rungs
from support.toys import fit, points, toy_config

EVERY_40 = Rungs(40)
"""Steps are of 16 samples: rungs are reached at the steps 3, 5, 8 and 10 of 12."""


def train(
    rungs: Rungs | None, folder: Path | None, reporter: MemoryReporter | None = None, **overrides: Any
) -> tuple[Any, Any, MemoryReporter]:
    return fit(toy_config(**overrides), None, folder, reporter, rungs)


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
    with pytest.raises(ValueError, match="rungs"):
        Rungs(first, factor)


@pytest.mark.parametrize(
    ("rungs", "samples", "steps"),
    [
        (EVERY_40, 96, [3, 5, 8, 10]),
        (Rungs(1), 96, list(range(1, 12))),
        (Rungs(32, 2), 96, [2, 4, 8]),
        (Rungs(0.5, unit="epochs"), 96, [3, 6, 9]),
        (Rungs(1, unit="epochs"), 96, [6]),
        (Rungs(1, unit="epochs"), 103, [6]),  # epochs are whole where the last batch is dropped
        (Rungs(2, unit="epochs"), 96, []),
        (Rungs(1e-9, unit="seconds"), 96, [6]),
        (Rungs(1e6, unit="seconds"), 96, []),
    ],
)
def test_a_rung_is_asked_about_once_and_never_at_the_end(rungs: Rungs, samples: int, steps: list[int]) -> None:
    _, outcome, reporter = train(rungs, None, data__path=lambda: points(samples), data__drop_last=True)
    assert asked_at(reporter) == steps
    assert (outcome.stopped, outcome.step) == (False, 12)


def test_values_reported_at_a_rung(tmp_path: Path) -> None:
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


def test_a_trial_that_is_stopped_at_a_rung_resumes(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("rungs", "ending", "first", "second"),
    [
        (EVERY_40, {"stop_at_step": 5}, [3], [5, 8, 10]),  # stopped at a rung, which was not asked about
        (EVERY_40, {"leave_at_rung": 5}, [3, 5], [5, 8, 10]),  # left without a decision
        (EVERY_40, {"stop_at_step": 6}, [3, 5], [8, 10]),
        (None, {"stop_at_step": 5}, [], [8, 10]),  # rungs behind a run that had none are not asked about
        (Rungs(1e6), {"stop_at_step": 5}, [], [8, 10]),
    ],
)
def test_a_resumed_run_asks_about_rungs_without_an_answer(
    rungs: Rungs | None, ending: dict[str, int], first: list[int], second: list[int], tmp_path: Path
) -> None:
    assert asked_at(train(rungs, tmp_path, MemoryReporter(**ending))[2]) == first
    assert asked_at(train(EVERY_40, tmp_path)[2]) == second


class SlowReporter(MemoryReporter):
    """A report takes a second, an answer a hundred."""

    now = 1000.0

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        SlowReporter.now += 1.0
        super().metrics(step, values)

    def rung(self, step: int, values: Mapping[str, float]) -> bool | None:
        SlowReporter.now += 100.0
        return super().rung(step, values)


def test_seconds_are_of_training_over_all_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rungs_module, trainer_module, meter_module):
        monkeypatch.setattr(module, "perf_counter", lambda: SlowReporter.now)
    at_once = Rungs(1e-9, unit="seconds")
    _, first, reporter = train(at_once, tmp_path, SlowReporter(stop_at_rung=6), trainer__epochs=3)
    assert (first.stopped, first.step) == (True, 6)
    before = reporter.asked[0][1]["seconds"]
    assert 6 <= before <= 10
    later = Rungs(before + 2, unit="seconds")
    trainer, second, reporter = train(later, tmp_path, SlowReporter(), trainer__epochs=3)
    assert asked_at(reporter) == [12]
    assert before + 6 <= reporter.asked[0][1]["seconds"] <= before + 10
    assert trainer.callbacks[0].seconds < 40, "waiting for an answer is no training time"
    assert second.samples_per_second > 16 * 12 / 40


def test_rounds_are_short_beside_the_timeout() -> None:
    trainer, _, _ = train(EVERY_40, None, parallel__timeout_seconds=8)
    assert trainer.callbacks[0]._round_seconds == 2
    assert train(EVERY_40, None)[0].callbacks[0]._round_seconds == MAX_ROUND_SECONDS
