"""Why a trial failed: its traceback is kept beside its record, and its reason names the user's own line."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline.engine.failure import describe
from paceline.sweeps import slot_worker
from paceline.sweeps.coordinator.running_trial import MOST_CHARACTERS, kept_text
from paceline.sweeps.slot_worker import naming_its_place, own_place
from paceline.tracking import run_recorder
from paceline.tracking.journal import JOURNAL_FILE, Journal
from support.cluster.coordinators import no_space
from support.sweeps.simulation import SimulatedSweep, ending, ends_with, simulated

CANARY = "hunter2hunter2"
TEXT = (
    f'Traceback (most recent call last):\n  File "/home/me/mine.py", line 3, in build\nValueError: password={CANARY}\n'
)


@simulated()
async def test_failed_trial_keeps_its_traceback_without_secrets(sweep: SimulatedSweep) -> None:
    sweep.trainings = {id: [ends_with("failed", traceback_text=text)] for id, text in (("0000", TEXT), ("0001", ""))}
    assert await sweep.run_all("0000", "0001") == ["failed"] * 2
    await sweep.close()
    assert (sweep.tracking() / "artifacts" / "traceback.txt").read_text() == TEXT.replace(CANARY, "***")
    entries = Journal(sweep.tracking() / JOURNAL_FILE).scan()
    assert {"path": "traceback.txt"} in [entry.content for entry in entries if entry.kind == "artifact"]
    assert not list((sweep.folder / "trials" / "0001").rglob("traceback.txt"))


@simulated()
async def test_full_disk_costs_the_traceback_alone(sweep: SimulatedSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.trainings = {"0000": [ends_with("failed", traceback_text=TEXT)]}
    with monkeypatch.context() as patch:
        patch.setattr(run_recorder, "write_durably", no_space)
        assert (await sweep.run("0000")).state == "failed"
        await sweep.settle()
    assert "traceback-not-written" in await sweep.warnings()
    assert (await sweep.run("0001")).state == "finished"
    assert sweep.history().trials["0000"].reason == "RuntimeError: no"


def own_code() -> None:
    torch.ones(2).reshape(3)


def failure_of(body: Callable[[], object]) -> dict[str, Any]:
    """How a trial ends whose code is this."""
    try:
        body()
    except Exception as error:
        failure = describe(error, 0)
        text = failure.traceback_text
        return ending("failed", reason=failure.reason, kind=failure.kind, traceback_text=text)
    raise AssertionError("it did not fail")


def line_of(function: Callable[..., object]) -> int:
    return function.__code__.co_firstlineno + 1


@pytest.mark.parametrize("below", [lambda: own_code(), lambda: json.dumps({1: 2}, default=None, indent=own_code())])
def test_reason_names_the_users_own_line(below: Callable[[], object]) -> None:
    reason = naming_its_place(failure_of(below))["failure"]["reason"]
    assert reason.startswith("RuntimeError: shape '[3]' is invalid")  # torch's
    assert reason.endswith(f" (test_tracebacks.py:{line_of(own_code)} in own_code)")


def test_code_of_others_is_not_named() -> None:
    def decodes() -> None:
        json.loads("{")

    place = own_place(failure_of(decodes)["failure"]["traceback_text"])
    assert place == f"test_tracebacks.py:{line_of(decodes)} in decodes"
    others = [os.__file__, slot_worker.__file__, "/opt/site-packages/torch/module.py", "<frozen importlib._bootstrap>"]
    assert own_place("\n".join(f'  File "{file}", line 1, in some' for file in others)) == ""


def test_only_an_error_with_a_place_has_one_named() -> None:
    diverged = ending("failed", reason="the loss is nan at step 3", kind="diverged", traceback_text=TEXT)
    for end in (ending(), diverged, ending("failed")):
        assert naming_its_place(end) == end
    loader = ending("failed", reason="KeyError: Caught\nOriginal Traceback", traceback_text=TEXT)
    named = naming_its_place(loader)["failure"]["reason"]
    assert named == "KeyError: Caught (mine.py:3 in build)\nOriginal Traceback"


def test_long_traceback_is_cut_in_its_middle() -> None:
    lines = [f"line {number}" for number in range(50_000)]
    kept = kept_text("\n".join(lines)).splitlines()
    [cut] = [place for place, line in enumerate(kept) if not line.startswith("line ")]
    assert sum(len(line) + 1 for line in kept) <= MOST_CHARACTERS + 100
    assert kept[:cut] == lines[:cut]
    assert kept[cut + 1 :] == lines[-(len(kept) - cut - 1) :]
    assert str(len(lines) - len(kept) + 1) in kept[cut]
    assert kept_text(TEXT) == TEXT.replace(CANARY, "***")


@pytest.mark.parametrize("before", [970, 975])
def test_long_line_is_cut_at_no_secret(before: int) -> None:
    kept = kept_text(f"see {'x' * before} http://me:{CANARY}@host/ {'y' * 300_000}")
    assert kept.startswith("see ")
    assert len(kept) < 2000
    assert "hunter" not in kept
