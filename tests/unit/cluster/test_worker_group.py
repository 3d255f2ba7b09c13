"""Ray's own processes that die end a command in words."""

from typing import Any

import psutil
import pytest
from ray.exceptions import ActorDiedError, LocalRayletDiedError
from ray.train import WorkerGroupError
from ray.train.v2._internal.exceptions import UserExceptionWithTraceback

from paceline.cluster.worker_group import NodeProcesses, death_failure, error_of, lost_group_failure, only_worker_output
from paceline.errors import FAILED, RunFailed
from support.golden import Golden


class Child:
    """A process as psutil has it."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid, self._name, self.state = pid, name, psutil.STATUS_SLEEPING

    def name(self) -> str:
        if self.state is None:
            raise psutil.NoSuchProcess(self.pid)
        return self._name

    def status(self) -> str:
        if self.state is None:
            raise psutil.NoSuchProcess(self.pid)
        return self.state

    def is_running(self) -> bool:
        return self.state is not None


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What this process has started."""
    started = {name: Child(100 + number, name) for number, name in enumerate(("gcs_server", "raylet", "python"))}

    class ThisProcess:
        def children(self) -> list[Any]:
            return list(started.values())

    monkeypatch.setattr(psutil, "Process", ThisProcess)
    return started


@pytest.mark.parametrize("state", [psutil.STATUS_ZOMBIE, None], ids=["zombie", "gone"])
@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_dead_process_of_the_node_is_named(children: dict[str, Any], name: str, state: Any) -> None:
    node = NodeProcesses()
    assert node.dead() is None
    children["python"].state = state
    assert node.dead() is None
    children[name].state = state
    dead = node.dead()
    assert dead is not None
    assert str(children[name].pid) in dead


def test_a_cluster_has_no_process_here_that_could_die(children: dict[str, Any]) -> None:
    for name in ("gcs_server", "raylet"):
        del children[name]
    assert NodeProcesses().dead() is None


@pytest.mark.parametrize(
    ("part", "error", "what"),
    [
        ("the raylet (process 7)", None, "raylet"),
        ("the GCS (process 7)", ActorDiedError(), "GCS"),
        (None, ActorDiedError(), "controller"),
        (None, LocalRayletDiedError(), "raylet"),
    ],
)
def test_a_death_is_an_error_without_a_rank_or_a_traceback(
    part: str | None, error: BaseException | None, what: str, golden: Golden
) -> None:
    failure = death_failure(part, error)
    assert failure is not None
    raised = error_of(failure)
    assert isinstance(raised, RunFailed)
    assert (raised.code, raised.exit_code, raised.traceback_text) == ("ray-process-died", FAILED, "")
    assert what in raised.message
    golden(str(raised))


def test_a_group_that_was_lost_too_often_is_reported_by_rank(golden: Golden) -> None:
    gloo = RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv")
    traced = UserExceptionWithTraceback(gloo, f"Traceback (most recent call last):\n  File ...\nRuntimeError: {gloo}\n")
    failure = lost_group_failure(WorkerGroupError("lost", {1: ActorDiedError(), 0: traced}))
    assert failure is not None
    raised = error_of(failure)
    assert (raised.code, raised.exit_code, failure["traceback_text"]) == ("group-lost", FAILED, "")
    golden(str(raised))


@pytest.mark.parametrize("error", [None, RuntimeError("mine")])
def test_what_the_workers_raise_is_no_death(error: BaseException | None) -> None:
    assert death_failure(None, error) is None
    assert lost_group_failure(error) is None


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("A worker died or was killed while executing a task by an unexpected system error. To troubleshoot", False),
        ("The node with node id: 56b9 and address: 127.0.0.1 has been marked dead because\n(1) raylet crashes", False),
        ("Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL", False),
        ("[node 1] 2 Workers killed due to memory pressure (OOM)", True),
        ("Warning: The following resource request cannot be scheduled right now: {'CPU': 8}", True),
    ],
)
def test_rays_dumps_about_deaths_are_not_shown(text: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import worker

    shown: list[str] = []
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: shown.extend(data["lines"]))
    with only_worker_output():
        worker.print_to_stdstream({"lines": [text]}, ignore_prefix=False)
    assert shown == [text] * is_shown
