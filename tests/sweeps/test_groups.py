"""How the driver starts and ends worker groups."""

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import ray

from paceline.cluster.assignment import Assignment
from paceline.sweeps import groups
from paceline.sweeps.groups import Groups
from paceline.sweeps.work import GroupShape, WantedGroup
from sweeps.played_actor import PlayedActor, answers_at_once

SHAPE = GroupShape(1, 1.0, 0.0, "pack")


class Fit:
    """What a trainer does until it may end."""

    def __init__(self) -> None:
        self.may_end = Event()

    def fit(self) -> None:
        self.may_end.wait(10)


class Scene:
    """Groups whose trainers do nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.desk = PlayedActor()
        self.fits: list[Fit] = []
        self.warnings: list[str] = []
        self.groups = Groups(self.desk, Path("nowhere"), Assignment("{}"), self.warnings.append, "core")
        monkeypatch.setattr(Groups, "_trainer", self._trainer)

    def _trainer(self, wanted: Any) -> Fit:
        self.fits.append(Fit())
        return self.fits[-1]

    def want(self, generation: int, shape: GroupShape | None = SHAPE) -> None:
        self.groups.follow([WantedGroup(0, generation, shape)])

    def want_until(self, generation: int, condition: Callable[[], Any]) -> None:
        """Follow the same wish until something has come about."""
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            self.want(generation)
            time.sleep(0.005)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Nothing started yet."""
    answers_at_once(monkeypatch)
    return Scene(monkeypatch)


def test_a_group_that_has_left_is_told_once(scene: Scene) -> None:
    scene.want(1)
    scene.want(2)
    assert scene.desk.calls("group_ended") == []
    scene.fits[0].may_end.set()
    scene.want_until(2, lambda: scene.desk.calls("group_ended"))
    scene.want(2)
    assert scene.desk.calls("group_ended") == [[0, 1]]
    assert len(scene.fits) == 2


def test_at_the_end_only_groups_that_stay_are_left_to_be_killed(scene: Scene) -> None:
    scene.want(1)
    scene.want(2)
    scene.fits[1].may_end.set()
    scene.groups.join(0.5)
    assert scene.desk.calls("group_ended") == [[0, 2]]


def test_the_workers_of_a_group_that_does_not_leave_are_killed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold the cores that the next group of their seat waits for."""
    monkeypatch.setattr(groups, "LEAVING_SECONDS", 0.05)
    monkeypatch.setattr(ray, "kill", lambda worker: (killed.append(worker), scene.fits[0].may_end.set()))
    killed: list[str] = []
    workers: list[bytes] = []
    scene.desk.answers(workers_of=lambda seat, generation: list(workers))
    scene.want(1)
    scene.want(2)
    assert scene.desk.calls("workers_of") == []
    scene.want_until(2, lambda: scene.desk.calls("workers_of"))
    assert scene.warnings == []  # none of its workers has come yet: they are told to leave when they do
    workers += [pickle.dumps("first"), pickle.dumps("second")]
    scene.want_until(2, lambda: scene.desk.calls("group_ended"))
    assert killed == ["first", "second"]
    assert scene.desk.calls("workers_of")[-1] == [0, 1]
    assert len(scene.warnings) == 1
    assert "the workers of group 0 were told to leave, and are killed" in scene.warnings[0]


def test_a_group_that_ends_by_itself_is_told_as_failed(scene: Scene) -> None:
    scene.want(1)
    scene.fits[0].may_end.set()
    scene.want_until(1, lambda: scene.desk.calls("group_failed"))
    assert scene.desk.calls("group_failed")[0][:2] == [0, 1]
