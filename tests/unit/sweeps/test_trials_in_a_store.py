"""Trials of a stored sweep: what their workers get, when their checkpoints count, and a store that cannot be used."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from paceline.cluster.worker_spec import TrialWorkerSpec
from paceline.engine.dist_context import DistContext
from paceline.engine.manifest import MANIFEST
from paceline.storage.address import RunStore
from paceline.storage.lease import Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_checkpoints import StoredCheckpoints
from paceline.sweeps import slot_worker
from paceline.sweeps.messages import Attempt, TrialReport
from paceline.sweeps.search.trainable import POINTER
from paceline.sweeps.search.trial_specs import TrialSpecBuilder
from paceline.sweeps.trial import PlannedTrial
from paceline.tracking.journal import JOURNAL_FILE
from paceline.tracking.metric_points import MetricReading
from paceline.tracking.upload_cursor import is_hurried, note_stored, stored_bytes
from support.storage.local_store import AWAY, LocalStore
from support.storage.stores import play_store, sweep_store
from support.sweeps.configs import sweep_config
from support.sweeps.fake_actor import FakeActor, patch_ray_get
from support.sweeps.simulation import SimulatedSweep, ends_with, simulated
from support.sweeps.trainables import spec_builder_of, trainable_at

SWEEP = sweep_store()
DATA = {"name": "synthetic", "shape": [8], "num_samples": 64, "num_validation_samples": 8, "global_batch_size": 32}
MODEL = {"name": "mlp", "in_features": 8, "num_classes": 10, "hidden": [4]}
CONFIG = sweep_config(base={"model": MODEL, "data": DATA, "trainer": {"epochs": 1}})


def failed(code: str) -> dict[str, Any]:
    return {"rank": 0, "reason": "its state could not be saved", "kind": "error", "problem_code": code}


class StoredSweep(SimulatedSweep):
    """The same with its trials in a store."""

    store = SWEEP

    def spec(self, id: str, *given: Any, **params: Any) -> Any:
        return replace(super().spec(id, *given, **params), store=SWEEP.trial(id))


@pytest.fixture
def new_sweep(tmp_path: Path, store: LocalStore) -> Any:
    return lambda **given: StoredSweep(tmp_path / "sweep", **given)


@simulated(groups=False)
async def test_a_checkpoint_counts_once_the_store_has_the_trials_record(sweep: SimulatedSweep) -> None:
    call, work = await sweep.begin_at_work("0000")
    tracking, me = sweep.tracking(), (work.trial_id, work.attempt)
    assert stored_bytes(tracking) == 0  # so that MLflow is sent nothing yet
    await sweep.coordinator.metrics(*me, [MetricReading(1, 1, {"val/accuracy": 0.5})])
    end, is_there = await sweep.coordinator.secure(*me)
    assert (end, is_there) == ((tracking / JOURNAL_FILE).stat().st_size, False)
    assert is_hurried(tracking)
    note_stored(tracking, end - 1)
    assert not (await sweep.coordinator.secure(*me, end))[1]
    note_stored(tracking, end)
    assert (await sweep.coordinator.secure(*me, end))[1]
    assert not (await sweep.coordinator.secure(work.trial_id, work.attempt + 1, end))[1]
    call.cancel()


@simulated(groups=False)
async def test_a_later_launch_and_a_coordinator_that_was_started_again_wait_for_the_store(
    sweep: SimulatedSweep,
) -> None:
    note_stored(sweep.tracking(), 77)
    call, work = await sweep.begin_at_work("0000")
    assert stored_bytes(sweep.tracking()) == 77
    me = (work.trial_id, work.attempt)
    await sweep.coordinator.metrics(*me, [MetricReading(1, 1, {"val/accuracy": 0.5})])
    note_stored(sweep.tracking(), 7)
    await sweep.restart_coordinator()
    assert stored_bytes(sweep.tracking()) == 7
    end, is_there = await sweep.coordinator.secure(*me)
    assert (end, is_there) == ((sweep.tracking() / JOURNAL_FILE).stat().st_size, False)
    note_stored(sweep.tracking(), end)
    assert (await sweep.coordinator.secure(*me, end))[1]
    call.cancel()


@pytest.mark.parametrize("code", ["checkpoint-lost", "lease-lost", "store-silent", "access-denied"])
@simulated(slots=2)
async def test_a_store_that_fails_ends_the_sweep_and_not_the_trial(sweep: SimulatedSweep, code: str) -> None:
    sweep.trainings = {"0000": [ends_with("failed", **failed(code))]}
    assert (await sweep.run("0000")).state == "pending"
    view = await sweep.view()
    assert view.fault == view.over == "its state could not be saved"
    assert (await sweep.run("0001")).state == "pending"
    assert (await sweep.trial("0000")).reason == "its state could not be saved"
    await sweep.close()
    assert {id: trial.state for id, trial in sweep.history().trials.items()} == {"0000": "pending"}


@simulated(groups=False)
async def test_a_store_that_tune_cannot_use_ends_the_sweep_and_not_the_trial(sweep: SimulatedSweep) -> None:
    call, _ = await sweep.begin_at_work("0000")
    await sweep.coordinator.found_store_fault("0000", "the store does not answer")
    assert (await call).state == "pending"
    view = await sweep.view()
    assert view.fault == view.over == "the store does not answer"


@simulated()
async def test_a_full_disk_of_a_node_leaves_the_trial_and_not_the_sweep(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [ends_with("failed", **{**failed("checkpoint-lost"), "kind": "full_disk"})]}
    assert await sweep.run_all("0000", "0001") == ["pending", "finished"]
    assert ((await sweep.view()).over, await sweep.warnings()) == ("", ["disk-full"])


@simulated()
async def test_other_failures_are_the_trials_own(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [ends_with("failed", **failed("weights-mismatch"))], "0001": [ends_with("failed")]}
    assert await sweep.run_all("0000", "0001", "0002") == ["failed", "failed", "finished"]
    assert (await sweep.view()).fault == ""


# what workers get, and what Tune's trainable does


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    patch_ray_get(monkeypatch)
    return play_store(tmp_path, monkeypatch)


def maker() -> TrialSpecBuilder:
    return spec_builder_of(CONFIG, SWEEP)


def save(trial: RunStore, step: int, content: bytes = b"{}") -> str:
    """Put a checkpoint into the store; its place as workers report it."""
    place = RemoteFolder(trial.address) / "checkpoints" / f"step-{step}"
    place.write("state.json", content)
    place.write(MANIFEST, json.dumps({"files": {"state.json": {"size_bytes": len(content)}}, "step": step}).encode())
    return str(trial.shown_address() / "checkpoints" / f"step-{step}")


def test_a_trial_takes_over_the_checkpoint_of_another_one(store: LocalStore, tmp_path: Path) -> None:
    Lease(RemoteFolder(SWEEP.home), SWEEP.launch).renew()
    giver, taker = SWEEP.trial("0001"), SWEEP.trial("0002")
    place = save(giver, 8, b'{"of": "the giver"}')
    save(taker, 8)
    trainable = trainable_at(FakeActor(run_to_rung=TrialReport("running", {"step": 8.0}, place)), maker(), "0001")
    trainable.step()
    trainable.save_checkpoint(str(tmp_path))
    pointer = json.loads((tmp_path / POINTER).read_text())
    assert pointer == str(giver.address / "pinned" / "step-8")
    (RemoteFolder(giver.address) / "checkpoints").remove_all()
    trainable_at(FakeActor(), maker(), "0002").load_checkpoint(str(tmp_path))
    taken = RemoteFolder(taker.address) / "checkpoints"
    assert (taken / "step-8").read("state.json") == b'{"of": "the giver"}'
    assert taken.folders() == ["step-8"]


def test_a_store_that_is_away_leaves_nobody_anything_to_take_over(store: LocalStore, tmp_path: Path) -> None:
    report = TrialReport("running", {"step": 8.0}, save(SWEEP.trial("0001"), 8))
    trainable = trainable_at(FakeActor(run_to_rung=report), maker(), "0001")
    trainable.step()
    store.fault = AWAY
    trainable.save_checkpoint(str(tmp_path))
    assert json.loads((tmp_path / POINTER).read_text()) is None
    trainable_at(FakeActor(), maker(), "0002").load_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("is_stopped", "has_ended", "status", "step"),
    [(False, True, "finished", 2), (True, True, "stopped", 1), (True, False, "stopped", 1)],
    ids=["finished", "pruned", "paused"],
)
def test_the_checkpoints_of_a_trial_that_has_ended_are_in_the_store_alone(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, is_stopped: bool, has_ended: bool, status: str, step: int
) -> None:
    Lease(RemoteFolder(SWEEP.home), SWEEP.launch).renew()
    monkeypatch.setattr(ray, "wait", lambda answers, timeout: (answers, []))
    spec = maker().make(PlannedTrial("0003", {"optimizer.lr": 0.2}))
    part: TrialWorkerSpec = pickle.loads(spec.worker_spec)
    answers = {"secure": (0, True), "metrics": True, "may_commit": True, "progress": is_stopped, "finish": has_ended}
    coordinator, work = FakeActor(**answers), Attempt(1, "0003", 1, pickle.dumps(part), 60.0)
    slot_worker._run(work, maker().base, coordinator, DistContext.current(torch.device("cpu")))
    [(trial_id, attempt, ending)] = coordinator.calls("finish")
    assert (trial_id, attempt, ending["status"]) == ("0003", 1, status), ending.get("failure")
    trial = SWEEP.trial("0003")
    assert spec.store == trial
    assert ending["checkpoint"] == str(trial.shown_address() / "checkpoints" / f"step-{step}")
    assert StoredCheckpoints(trial).whole_steps() == [step]
    assert list(coordinator.calls("secure")[0]) == ["0003", 1, None]
    assert (trial.folder / "checkpoints").exists() is not has_ended
