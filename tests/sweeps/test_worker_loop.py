"""How the ranks of a group tell each other what is next."""

import threading
from typing import Any

import torch.distributed as dist

from paceline.sweeps.work import Work
from paceline.sweeps.worker import _Works

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
