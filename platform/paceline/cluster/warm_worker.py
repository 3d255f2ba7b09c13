"""The loop of each process of a warm worker group: one piece of work after the other, until all work is done."""

import pickle
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # re-exported, though not by name

from paceline._compat.torch import default_store
from paceline.engine.dist_context import DistContext
from paceline.engine.fresh import ProcessState, fresh_process_group, leave_together
from paceline.starting_folder import drop_starting_folder

LISTEN_SECONDS = 60.0
"""Seconds that a rank waits for its store in one call; only after it does the rank notice that it has to end."""


class WorkItem(Protocol):
    """Work that a worker group takes from its coordinator."""

    @property
    def number(self) -> int:
        """Number of the item, counted from 1."""

    @property
    def timeout_seconds(self) -> float:
        """Seconds that a collective operation may take."""


def serve(loop_config: dict[str, Any], run: Callable[[Any, DistContext], None]) -> None:
    """Serve as a training function of Ray Train whose workers stay: one call per worker process.

    Each piece of work is run as if it were the first: in a process group of its own, with all flags as at the start.

    Args:
        loop_config: `coordinator`, an actor with the methods `enter` and `take` of
            `sweeps.coordinator.group_reports.GroupReports`; `slot` and `generation`, which say which of its groups this
            is.
        run: does one piece of work, on all ranks.
    """
    import ray
    import ray.train.torch

    drop_starting_folder()
    coordinator, slot, generation = (loop_config[key] for key in ("coordinator", "slot", "generation"))
    store, backend = default_store(), dist.get_backend_config()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = ray.train.torch.get_device()
    me = ray.cloudpickle.dumps(ray.get_runtime_context().current_actor)
    incarnation = ask(coordinator.enter.remote(slot, generation, rank, me))
    works = _Works(store, rank, world_size, lambda: ask(coordinator.take.remote(slot, generation, incarnation)))
    if incarnation is None:
        works.turn_away()
        return
    state = ProcessState()
    while (work := works.next()) is not None:
        with fresh_process_group(store, f"trial/{work.number}", rank, world_size, str(backend), work.timeout_seconds):
            run(work, DistContext.current(device))
        state.restore()


def ask(answer: Any) -> Any:
    """Return the coordinator's answer; None if the coordinator has ended."""
    import ray

    with suppress(ray.exceptions.ActorDiedError):
        return ray.get(answer)
    return None


class _Works:
    """Work items of a group, one after the other. Rank 0 takes each from the coordinator, and passes it to the others
    through the store. All ranks leave together: the store ends with rank 0, and a rank that could not read that the
    work has ended would fail, for which Ray Train starts all of them again."""

    def __init__(self, store: Any, rank: int, world_size: int, take: Callable[[], WorkItem | None]) -> None:
        self._store = store
        self._rank, self._world_size = rank, world_size
        self._take = take
        self._number = 0

    def next(self) -> WorkItem | None:
        """Return the next work item; None: the group is to leave. Every rank must call it."""
        self._number += 1
        key = f"work/{self._number}"
        if self._rank == 0:
            # the ranks have met in the trial before, so that all of them have read what it was
            self._store.delete_key(f"work/{self._number - 1}")
            work = self._take()
            self._store.set(key, pickle.dumps(work))
        else:
            work = pickle.loads(self._listen(key))
        if work is None:
            self._leave()
        return work

    def turn_away(self) -> None:
        """End a group for which the coordinator has no work: rank 0 informs the others, which may have been let in
        before it."""
        if self._rank == 0:
            self._store.set("work/1", pickle.dumps(None))
        self._leave()

    def _leave(self) -> None:
        leave_together(PrefixStore("work", self._store), self._world_size)

    def _listen(self, key: str) -> bytes:
        while True:
            with suppress(dist.DistStoreError):  # a time-out; a lost connection is another error
                self._store.wait([key], timedelta(seconds=LISTEN_SECONDS))
                return bytes(self._store.get(key))
