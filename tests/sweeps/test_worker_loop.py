"""How the ranks of a group tell each other what is next, and tell the desk how it ended."""

import pickle
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

from paceline.cluster.assignment import Assignment, TrialPart
from paceline.cluster.serving import _Works
from paceline.config.loading import validate
from paceline.engine.ranks import Ranks
from paceline.sweeps.work import Work
from paceline.sweeps.worker import _run
from sweeps.played_actor import PlayedActor, answers_at_once

SECONDS = 10.0
WORK = Work(1, "0000", 1, b"", 60.0)


class Listening(threading.Thread):
    """A rank above 0, until it is told to leave."""

    def __init__(self, store: Any) -> None:
        super().__init__(daemon=True)
        self.got: list[Work | None] = []
        self._works = _Works(store, 1, lambda: None)

    def run(self) -> None:
        while not self.got or self.got[-1] is not None:
            self.got.append(self._works.next())


def test_ranks_that_were_let_in_hear_that_the_first_was_turned_away() -> None:
    store = dist.HashStore()
    other = Listening(store)
    other.start()
    _Works(store, 1, lambda: None).turn_away()
    other.join(0.3)
    assert other.is_alive()
    _Works(store, 0, lambda: WORK).turn_away()
    other.join(SECONDS)
    assert other.got == [None]


def test_what_was_done_leaves_nothing_in_the_store() -> None:
    store = dist.HashStore()
    left = [WORK, WORK, WORK]
    first, other = _Works(store, 0, lambda: left.pop() if left else None), _Works(store, 1, lambda: None)
    before = store.num_keys()
    for _ in range(3):
        assert (first.next(), other.next()) == (WORK, WORK)
    assert (first.next(), other.next()) == (None, None)
    assert store.num_keys() == before + 1


def broken(**_: Any) -> torch.nn.Module:
    """A user's model that cannot be built."""
    raise TypeError("no such model")


def test_the_desk_is_told_where_the_users_code_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_at_once(monkeypatch)
    config = validate({"name": "run", "model": {"path": broken}, "data": {"name": "synthetic"}})
    text = config.model_copy(update={"sweep": None}).model_dump_json()
    desk = PlayedActor()
    work = Work(1, "0000", 1, pickle.dumps(TrialPart(text, kept=("model",))), 60.0)
    _run(work, Assignment("", {"model": broken}), desk, Ranks.current(torch.device("cpu")))
    [(trial, attempt, ending)] = desk.calls("finish")
    assert (trial, attempt, ending["status"]) == ("0000", 1, "failed")
    line = broken.__code__.co_firstlineno + 2
    assert ending["failure"]["reason"] == f"TypeError: no such model (test_worker_loop.py:{line} in broken)"
    assert "in build_trainer" in ending["failure"]["traceback_text"]
