"""How the driver starts and ends worker groups."""

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from paceline.cluster.worker_spec import WorkerSpec
from paceline.sweeps import worker_group_manager
from paceline.sweeps.messages import GroupShape, WantedGroup
from paceline.sweeps.worker_group_manager import LEAVING_SECONDS, WorkerGroupManager
from support.sweeps.fake_actor import FakeActor, patch_ray_get

SHAPE = GroupShape(1, 1.0, 0.0, "pack")


class Driver:
    """WorkerGroupManager with fake trainers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.coordinator = FakeActor()
        self.may_end: list[Event] = []
        """Of each trainer, which does nothing until then."""
        self.warnings: list[str] = []
        self.groups = WorkerGroupManager(
            self.coordinator, Path("nowhere"), WorkerSpec("{}"), self.warnings.append, "core"
        )
        monkeypatch.setattr(WorkerGroupManager, "_trainer", self._trainer)

    def _trainer(self, wanted: Any) -> Any:
        self.may_end.append(may_end := Event())
        return SimpleNamespace(fit=lambda: may_end.wait(60))

    def follow(self, generation: int) -> None:
        self.groups.follow([WantedGroup(0, generation, SHAPE)])

    def follow_until(self, generation: int, condition: Callable[[], Any]) -> None:
        """Follow the same wish until something has come about."""
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            self.follow(generation)
            time.sleep(0.005)

    def reported(self, method: str) -> list[tuple[Any, ...]]:
        return self.coordinator.calls(method)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Nothing started yet."""
    patch_ray_get(monkeypatch)
    return Driver(monkeypatch)


def test_group_that_has_left_is_reported_once(driver: Driver) -> None:
    driver.follow(1)
    driver.follow(2)
    assert driver.reported("group_ended") == []
    driver.may_end[0].set()
    driver.follow_until(2, lambda: driver.reported("group_ended"))
    driver.follow(2)
    assert driver.reported("group_ended") == [[0, 1]]
    assert len(driver.may_end) == 2


def test_group_that_stays_at_the_end_is_not_reported_as_ended(driver: Driver) -> None:
    driver.follow(1)
    driver.follow(2)
    driver.may_end[1].set()
    for _ in range(100):
        driver.groups.join(0.05)
        if driver.reported("group_ended"):
            break
    assert driver.reported("group_ended") == [[0, 2]]
    driver.may_end[0].set()


def test_workers_of_a_group_that_does_not_leave_are_killed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, golden: Any
) -> None:
    """They hold the cores that the next group of their slot waits for."""
    now = 0.0
    monkeypatch.setattr(worker_group_manager, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(ray, "kill", lambda worker: (killed.append(worker), driver.may_end[0].set()))
    killed: list[str] = []
    workers: list[bytes] = []
    driver.coordinator.answers["workers_of"] = lambda slot, generation: list(workers)
    driver.follow(1)
    driver.follow(2)
    now += LEAVING_SECONDS
    driver.follow(2)
    assert driver.reported("workers_of") == []
    now += 1
    driver.follow(2)
    assert driver.reported("workers_of") == [[0, 1]]
    assert driver.warnings == []  # none of its workers has come yet: they are told to leave when they do
    workers += [pickle.dumps("first"), pickle.dumps("second")]
    driver.follow(2)
    assert killed == []
    now += LEAVING_SECONDS + 1
    driver.follow_until(2, lambda: driver.reported("group_ended"))
    assert killed == ["first", "second"]
    assert driver.reported("workers_of") == [[0, 1]] * 2
    [warning] = driver.warnings
    golden(warning)


def test_group_that_ends_by_itself_has_failed(driver: Driver) -> None:
    driver.follow(1)
    driver.may_end[0].set()
    driver.follow_until(1, lambda: driver.reported("group_failed"))
    assert driver.reported("group_failed")[0][:2] == [0, 1]
