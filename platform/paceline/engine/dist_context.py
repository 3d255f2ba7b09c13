"""This process's place among the workers, and the few collective operations that the engine needs."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")

MAX_ROUND_SECONDS = 10.0


def round_seconds_of(timeout_seconds: float) -> float:
    """Return the seconds that ranks wait in one collective operation for another rank's work.

    Well below the operation's time-out.
    """
    return min(MAX_ROUND_SECONDS, timeout_seconds / 4)


@dataclass(frozen=True)
class DistContext:
    """Rank, world size and device of this process. Operations are no-ops in a world of one."""

    rank: int
    world_size: int
    device: torch.device
    group: Any = None
    """torch's process group of these ranks; None is the default one, of all."""

    @classmethod
    def current(cls, device: torch.device | str = "cpu") -> "DistContext":
        """Return this process's place in torch's default process group; a world of one without a group."""
        device = torch.device(device)
        if not dist.is_initialized():
            return cls(0, 1, device)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def is_first(self) -> bool:
        """True if this is rank 0, the one that reports and saves."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place; every rank must call it."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each number over all ranks. Every rank must call it with equally many numbers."""
        return self.begin_sum(values)()

    def begin_sum(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin to sum each number over all ranks, and return a function that waits for the sums and returns them.

        Every rank must call it with equally many numbers, in the same order among the other collective operations.
        """
        if self.world_size == 1:
            return lambda: list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        work = dist.all_reduce(tensor, group=self.group, async_op=True)

        def finish() -> list[float]:
            work.wait()
            return list(tensor.tolist())

        return finish

    def max_numbers(self, values: Sequence[float]) -> list[float]:
        """Return the largest value of each number over all ranks. Every rank must call it with equally many numbers."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return list(tensor.tolist())

    def gather_numbers(self, values: Sequence[float]) -> list[list[float]]:
        """Return the numbers of all ranks, in order of rank. Every rank must call it with equally many numbers."""
        if self.world_size == 1:
            return [list(values)]
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(gathered, mine, group=self.group)
        return [numbers.tolist() for numbers in gathered]

    def from_first(self, values: Sequence[float]) -> list[float]:
        """Return rank 0's numbers on every rank. Every rank must call it with equally many numbers."""
        if self.world_size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, group=self.group, group_src=0)
        return [float(value) for value in tensor.tolist()]

    def object_from_first(self, value: Result) -> Result:
        """Return rank 0's value on every rank; it is pickled between processes. Every rank must call it."""
        return self.object_from(0, value)

    def object_from(self, source: int, value: Result) -> Result:
        """Return a rank's value on every rank; it is pickled between processes. Every rank must call it."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, group=self.group, group_src=source)
        return values[0]

    def share_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy rank 0's tensors into those of every rank, in place. Every rank must call it with equally many."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, group=self.group, group_src=0)

    def each(self, work: Callable[[], Result], round_seconds: float) -> Result:
        """Call `work` on every rank, and wait until all ranks are done. Every rank must call it.

        The work may take longer than the time-out of a collective operation: the ranks wait for each other in rounds of
        `round_seconds`.

        Raises:
            Exception: this rank's work raised it; raised once all ranks are done.
        """
        if self.world_size == 1:
            return work()
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rank-work")
        try:
            future, done = thread.submit(work), False
            while not done:
                wait([future], timeout=round_seconds)
                done = self.sum_numbers([float(future.done())])[0] == self.world_size
            return future.result()
        finally:
            # if another rank is gone, the work may be waiting for it: the error must not wait for the work
            thread.shutdown(wait=False)

    def gather_objects(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in order of rank; pickled between processes. Every rank must call it."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def union(self, items: Iterable[Any]) -> list[Any]:
        """Return the distinct items of all ranks, sorted. Every rank must call it."""
        mine = sorted(items)
        if self.world_size == 1:
            return mine
        gathered: list[list[Any]] = [[] for _ in range(self.world_size)]
        dist.all_gather_object(gathered, mine, group=self.group)
        return sorted({item for part in gathered for item in part})
