"""Why a trial failed: its traceback is kept beside its record, and its reason names the user's own line."""

import errno
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.failure import describe
from paceline.sweeps.desk import tracebacks
from paceline.sweeps.desk.tracebacks import kept_text, naming_its_place, own_place
from paceline.sweeps.log import read_log
from paceline.tracking import recorder
from paceline.tracking.journal import Journal
from paceline.tracking.points import Reading
from sweeps.desk_players import Floor, Training, ending, played

CANARY = "hunter2hunter2"
TEXT = (
    f'Traceback (most recent call last):\n  File "/home/me/mine.py", line 3, in build\nValueError: password={CANARY}\n'
)


def fails(**changes: Any) -> Training:
    """Fails with such a failure."""

    async def train(floor: Floor, work: Any) -> None:
        told = ending("failed")
        await floor.desk.finish(work.trial_id, work.attempt, {**told, "failure": {**told["failure"], **changes}})

    return train


def record_of(sweep: Floor) -> Path:
    """The folder of the first trial's record."""
    return sweep.folder / "trials" / "0000" / "tracking"


def test_a_failed_trial_keeps_its_traceback_without_secrets(floor: Callable[..., Floor]) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [fails(traceback_text=TEXT)], "0001": [fails(traceback_text="")]}

    async def scene() -> None:
        assert (await sweep.run("0000")).state == "failed"
        assert (await sweep.run("0001")).state == "failed"

    played(sweep, scene)
    kept = (record_of(sweep) / "artifacts" / "traceback.txt").read_text()
    assert kept == TEXT.replace(CANARY, "***")
    entries = [
        entry.content for entry in Journal(record_of(sweep) / "journal.jsonl").scan() if entry.kind == "artifact"
    ]
    assert {"path": "traceback.txt"} in entries  # and so it goes to MLflow
    assert not list((sweep.folder / "trials" / "0001").rglob("traceback.txt"))


def test_a_full_disk_costs_the_traceback_alone(floor: Callable[..., Floor], monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = floor()
    sweep.trainings = {"0000": [fails(traceback_text=TEXT)]}

    def is_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scene() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "write_durably", is_full)
            assert (await sweep.run("0000")).state == "failed"
        [warning] = [told for told in await sweep.events("warning") if "traceback.txt" in told["message"]]
        assert "No space left" in warning["message"]
        assert (await sweep.run("0001")).state == "finished"

    played(sweep, scene)
    assert read_log(sweep.folder).trials["0000"].reason == "RuntimeError: no"


def own_code() -> None:
    torch.ones(2).reshape(3)


def failure_of(body: Callable[[], object]) -> dict[str, Any]:
    """How a trial ends whose code is this."""
    try:
        body()
    except Exception as error:
        failure = describe(error, 0)
        return {
            "status": "failed",
            "failure": {"reason": failure.reason, "kind": failure.kind, "traceback_text": failure.traceback_text},
        }
    raise AssertionError("it did not fail")


def line_of(function: Callable[..., object]) -> int:
    return function.__code__.co_firstlineno + 1


@pytest.mark.parametrize("below", [lambda: own_code(), lambda: json.dumps({1: 2}, default=None, indent=own_code())])
def test_the_reason_names_the_users_own_line(below: Callable[[], object]) -> None:
    reason = naming_its_place(failure_of(below))["failure"]["reason"]
    assert reason.startswith("RuntimeError: shape '[3]' is invalid")
    assert reason.endswith(f" (test_desk_tracebacks.py:{line_of(own_code)} in own_code)")


def test_code_of_others_is_not_named() -> None:
    def decodes() -> None:
        json.loads("{")

    place = own_place(failure_of(decodes)["failure"]["traceback_text"])
    assert place == f"test_desk_tracebacks.py:{line_of(decodes)} in decodes"
    others = [
        f'  File "{os.__file__}", line 1, in walk',
        f'  File "{traceback.__file__}", line 1, in walk',
        f'  File "{tracebacks.__file__}", line 1, in own_place',
        '  File "/opt/site-packages/torch/nn/module.py", line 1, in forward',
        '  File "<frozen importlib._bootstrap>", line 1, in _find',
    ]
    assert own_place("\n".join(others)) == ""


def test_only_an_error_with_a_place_has_one_named() -> None:
    failure = {"reason": "the loss is nan at step 3", "kind": "diverged", "traceback_text": TEXT}
    for told in ({"status": "finished"}, {"status": "failed", "failure": failure}, ending("failed")):
        assert naming_its_place(told) == told
    loader = {"reason": "KeyError: Caught\nOriginal Traceback", "kind": "error", "traceback_text": TEXT}
    named = naming_its_place({"status": "failed", "failure": loader})["failure"]["reason"]
    assert named == "KeyError: Caught (mine.py:3 in build)\nOriginal Traceback"


def test_a_long_traceback_is_cut_in_its_middle() -> None:
    lines = [f"line {number}" for number in range(50_000)]
    kept = kept_text("\n".join(lines))
    assert len(kept) <= tracebacks.MOST_CHARACTERS + 100
    assert kept.startswith("line 0\nline 1\n")
    assert kept.endswith("line 49998\nline 49999\n")
    assert "lines are left out" in kept


@pytest.mark.parametrize("before", [970, 975, 2000])
def test_a_long_line_is_cut_at_no_secret(before: int) -> None:
    kept = kept_text(f"see {'x' * before} http://me:{CANARY}@host/ {'y' * 300_000}")
    assert kept.startswith("see ")
    assert len(kept) < 2000
    assert "hunter" not in kept


@pytest.mark.parametrize(("kind", "step"), [("diverged", 10), ("error", 1)])
def test_a_diverged_trial_came_as_far_as_its_reason_says(floor: Callable[..., Floor], kind: str, step: int) -> None:
    sweep = floor()

    async def measures(floor: Floor, work: Any) -> None:
        await floor.desk.metrics(work.trial_id, work.attempt, [Reading(1, 1, {"train/loss": 1.0})])
        await fails(kind=kind, reason="the loss is nan at step 10")(floor, work)

    sweep.trainings = {"0000": [measures]}

    async def scene() -> None:
        await sweep.run("0000")
        assert (await sweep.trial("0000")).steps == step

    played(sweep, scene)
