"""Iterable data sets whose every sample can be followed."""

import random
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from support.toys import Points

SAMPLES = 90


class Stream(IterableDataset[Any]):
    """The points one after the other, shuffled within a window."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.points = Points(samples, noisy=True)

    def __iter__(self) -> Iterator[Any]:
        window: list[int] = []
        for index in range(len(self.points)):
            window.append(index)
            if len(window) == 8:
                yield self.points[window.pop(random.randrange(8))]
        for index in window:
            yield self.points[index]


class StatefulStream(Stream):
    """One that continues from a state of its own, as torchdata's do; it does not shuffle."""

    def __init__(self, samples: int = SAMPLES) -> None:
        super().__init__(samples)
        self.next = 0
        self.restored = 0

    def __iter__(self) -> Iterator[Any]:
        while self.next < len(self.points):
            self.next += 1
            yield self.points[self.next - 1]
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next, self.restored = state["next"], self.restored + 1


def stream() -> Any:
    """Training stream and validation set."""
    return Stream(), Points(30)


def stateful_stream() -> Any:
    """The same with a state."""
    return StatefulStream(), Points(30)


class ShuffleBuffer(Stream):
    """A stream that hands out its state as it is: the buffer changes with each sample that is read after that."""

    def __init__(self, samples: int = SAMPLES) -> None:
        super().__init__(samples)
        self.next = 0
        self.buffer: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while self.next < len(self.points) or self.buffer:
            if self.next < len(self.points):
                self.buffer.append(self.next)
                self.next += 1
            if len(self.buffer) == 8 or self.next == len(self.points):
                yield self.points[self.buffer.pop(random.randrange(len(self.buffer)))]
        self.next = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next, "buffer": self.buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next, self.buffer = state["next"], list(state["buffer"])


class UnevenShards(IterableDataset[Any]):
    """The second rank has 18 samples, the first one 60."""

    def __init__(self, ids: range = range(0)) -> None:
        self.ids = ids

    def shard(self, num_shards: int, index: int) -> "UnevenShards":
        return UnevenShards(range(60) if index == 0 else range(60, 78))

    def __iter__(self) -> Iterator[Any]:
        points = Points(78, noisy=True)
        return (points[index] for index in self.ids)


class UnevenStatefulShards(StatefulStream):
    """The same with a state, which is that of the start again when a shard has ended; the last batch is a part."""

    def __init__(self, samples: int = 0, first: int = 0) -> None:
        super().__init__(samples)
        self.first = first

    def shard(self, num_shards: int, index: int) -> "UnevenStatefulShards":
        return UnevenStatefulShards(60) if index == 0 else UnevenStatefulShards(17, 60)

    def __iter__(self) -> Iterator[Any]:
        points = Points(77, noisy=True)
        while self.next < len(self.points):
            self.next += 1
            yield points[self.first + self.next - 1]
        self.next = 0


def shuffle_buffer() -> Any:
    """Training stream and validation set."""
    return ShuffleBuffer(), Points(30)


def uneven_shards() -> Any:
    """The same of shards of which one ends long before the other."""
    return UnevenShards(), Points(30)


def uneven_stateful_shards() -> Any:
    """The same of shards with a state."""
    return UnevenStatefulShards(), Points(30)
