"""How the ranks of a worker group share the next trial, and report how it ended."""

import pickle
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ray.exceptions import ActorUnavailableError

from paceline.cluster import metric_buffer
from paceline.cluster.final_report import FinalReport
from paceline.cluster.warm_worker import _Works
from paceline.cluster.worker_spec import TrialWorkerSpec, WorkerSpec
from paceline.config.experiment import validate
from paceline.engine.dist_context import DistContext
from paceline.sweeps import slot_worker
from paceline.sweeps.messages import Attempt
from support.sweeps.fake_actor import FakeActor, patch_ray_get
from support.sweeps.simulation import ending

TIMEOUT_SECONDS = 60.0
WORK = Attempt(1, "0000", 1, b"", 60.0)


def test_other_ranks_leave_when_the_first_is_turned_away() -> None:
    store, got = dist.HashStore(), []

    def listens() -> None:
        works = _Works(store, 1, 3, lambda: None)
        while not got or got[-1] is not None:
            got.append(works.next())

    other = threading.Thread(target=listens, daemon=True)
    other.start()
    turned_away = threading.Thread(target=_Works(store, 2, 3, lambda: None).turn_away, daemon=True)
    turned_away.start()
    other.join(0.1)
    assert other.is_alive()  # rank 2 has no say
    _Works(store, 0, 3, lambda: WORK).turn_away()
    for each in (other, turned_away):
        each.join(TIMEOUT_SECONDS)
        assert not each.is_alive()
    assert got == [None]


def test_finished_trials_leave_nothing_in_the_store() -> None:
    store = dist.HashStore()
    left = [WORK, WORK, WORK]
    first, other = _Works(store, 0, 2, lambda: left.pop() if left else None), _Works(store, 1, 2, lambda: None)
    before = store.num_keys()
    for _ in range(3):
        assert (first.next(), other.next()) == (WORK, WORK)
        assert store.num_keys() == before + 1


def test_rank_that_holds_the_store_leaves_after_all_have_read_that_there_is_no_more_work() -> None:
    has_ended = threading.Event()

    class SlowReader(dist.TCPStore):  # reads only when the store's process has ended, or does not end
        def get(self, key: str) -> bytes:
            has_ended.wait(0.5)
            return super().get(key)

    held = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    other = SlowReader("127.0.0.1", held[0].port, is_master=False, wait_for_workers=False)

    def leaves() -> None:
        assert _Works(held.pop(), 0, 2, lambda: None).next() is None
        has_ended.set()

    first = threading.Thread(target=leaves, daemon=True)
    first.start()
    assert _Works(other, 1, 2, lambda: WORK).next() is None
    first.join(TIMEOUT_SECONDS)
    assert has_ended.is_set()


def broken(**_: Any) -> torch.nn.Module:
    """A user's model that cannot be built."""
    raise TypeError("no such model")


def run(coordinator: FakeActor, part: TrialWorkerSpec, worker_spec: WorkerSpec) -> list[Any]:
    """Run a trial in this process; returns trial, attempt and message of its end."""
    work = Attempt(1, "0000", 1, pickle.dumps(part), 60.0)
    slot_worker._run(work, worker_spec, coordinator, DistContext.current(torch.device("cpu")))
    [end] = coordinator.calls("finish")
    return list(end)


def test_end_names_the_users_line_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_ray_get(monkeypatch)
    config = validate({"name": "run", "model": {"path": broken}, "data": {"name": "synthetic"}})
    text = config.model_copy(update={"sweep": None}).model_dump_json()
    trial, attempt, end = run(FakeActor(), TrialWorkerSpec(text, kept=("model",)), WorkerSpec("", {"model": broken}))
    assert (trial, attempt, end["status"]) == ("0000", 1, "failed")
    line = broken.__code__.co_firstlineno + 2
    assert end["failure"]["reason"] == f"TypeError: no such model (test_worker_loop.py:{line} in broken)"
    assert "in build_trainer" in end["failure"]["traceback_text"]


def test_metrics_that_were_not_recorded_come_with_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_ray_get(monkeypatch)
    monkeypatch.setattr(metric_buffer, "GATHER_SECONDS", 0.01)

    def trains(worker_spec: Any, ranks: Any, reporter: Any) -> dict[str, Any]:
        reporter.metrics(3, {"train/loss": 0.5})
        return ending()

    monkeypatch.setattr(slot_worker, "run_rank", trains)
    coordinator = FakeActor(metrics=ActorUnavailableError("it is being started again", None))
    _, _, message = run(coordinator, TrialWorkerSpec("{}"), WorkerSpec("{}", {}))
    last = FinalReport.read(message)
    assert last.ending == ending()
    assert [(reading.step, reading.values) for reading in last.unrecorded] == [(3, {"train/loss": 0.5})]
