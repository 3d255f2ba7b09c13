"""Placement of worker groups on nodes: arithmetic that tells if they fit, and how many nodes are lacking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.errors import EnvironmentFault

_ROUNDING = 1e-9
"""0.3 / 0.1 is a little less than 3."""


@dataclass(frozen=True)
class Room:
    """What a node has for workers."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Request:
    """Groups of workers that are to be there at the same time; each worker takes what it needs of one node."""

    workers: int
    """Of a group."""
    cpus: float
    """Cores of a worker."""
    gpus: float
    """GPUs of a worker; 0: it trains on CPU."""
    placement: str
    """As `scaling.placement`: `strict_pack` is all workers of a group on one node, `strict_spread` one node each."""
    groups: int = 1
    key: str = "scaling.num_workers"
    """What says how many workers there are to be."""

    @property
    def total(self) -> Room:
        """What all workers take together."""
        number = self.workers * self.groups
        return Room(number * self.cpus, number * self.gpus)


@dataclass(frozen=True)
class NodeType:
    """A kind of node that an autoscaler may add."""

    name: str
    room: Room
    more: int
    """How many of them it may add to those that are there."""


def workers_on(room: Room, request: Request) -> int:
    """Return how many workers one node can hold."""
    limits = [_times(room.cpus, request.cpus)] if request.cpus else []
    if request.gpus:
        # a part of a GPU is taken of one GPU: two workers with 0.6 each take two
        shared = int(room.gpus + _ROUNDING) * _times(1.0, request.gpus)
        limits.append(shared if request.gpus < 1 else _times(room.gpus, request.gpus))
    return min(limits)


def fits(request: Request, rooms: Sequence[Room]) -> bool:
    """Return whether nodes with such rooms can hold all groups at the same time."""
    return _lacking(request, rooms) <= 0


def groups_that_fit(request: Request, rooms: Sequence[Room]) -> int:
    """Return how many groups there is room for at the same time."""
    most = sum(workers_on(room, request) for room in rooms) // request.workers
    return _largest(most, lambda groups: fits(replace(request, groups=groups), rooms))


def most_workers(request: Request, rooms: Sequence[Room]) -> int:
    """The largest group that would fit as often as is asked for; 0 where not even one worker does."""
    return _largest(request.workers, lambda workers: fits(replace(request, workers=workers), rooms))


def nodes_to_add(
    request: Request, rooms: Sequence[Room], types: Sequence[NodeType], limit: int | None = None
) -> dict[str, int] | None:
    """The fewest nodes that make it fit, by the name of their type; None where no choice of them does.

    Args:
        request: what is asked for.
        rooms: of the nodes that are there.
        types: what may be added.
        limit: how many may be added in all; None: as the types say.
    """
    lacking = _lacking(request, rooms)
    left = sum(each.more for each in types) if limit is None else limit
    added: dict[str, int] = {}
    # every node is worth a number of places, whatever else is there: the largest first makes the fewest
    for each in sorted(types, key=lambda each: _worth(request, each.room), reverse=True):
        worth = _worth(request, each.room)
        if lacking <= 0 or not worth:
            break
        number = min(each.more, left, -(-lacking // worth))
        if number > 0:
            added[each.name] = number
            lacking -= number * worth
            left -= number
    return added if lacking <= 0 else None


def _worth(request: Request, room: Room) -> int:
    """Return how many places a node offers, of those that `_places` counts."""
    workers = workers_on(room, request)
    if request.placement == "strict_pack":
        return workers // request.workers
    return min(workers, request.groups) if request.placement == "strict_spread" else workers


def _places(request: Request) -> int:
    """Groups with `strict_pack`, of which a node holds whole ones; workers otherwise."""
    return request.groups if request.placement == "strict_pack" else request.groups * request.workers


def _lacking(request: Request, rooms: Sequence[Room]) -> int:
    return _places(request) - sum(_worth(request, room) for room in rooms)


def _times(has: float, each: float) -> int:
    return int(has / each + _ROUNDING)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, where all below it do too; 0 for none."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        low, most = (middle, most) if fits(middle) else (low, middle - 1)
    return low


def asked_text(request: Request) -> str:
    """Such as `scaling asks for 3 workers with 1 CPU core each, one node each (scaling.placement strict_spread)`."""
    workers = "1 worker" if request.workers == 1 else f"{request.workers} workers"
    text = f"{workers} with {room_text(Room(request.cpus, request.gpus))}{' each' if request.workers > 1 else ''}"
    how = {"strict_pack": ", all on one node", "strict_spread": ", each on a node of its own"}.get(request.placement)
    if how and request.workers > 1:
        text += f"{how} (scaling.placement {request.placement})"
    return f"scaling asks for {text}" if request.groups == 1 else f"{request.groups} trials at a time ask for {text}"


def too_small(request: Request, rooms: Sequence[Room], message: str) -> EnvironmentFault:
    """The error that nodes can never hold a request."""
    return EnvironmentFault(
        message,
        "cluster-too-small",
        workers=request.workers,
        placement=request.placement,
        nodes=len(rooms),
        most_workers=most_workers(request, rooms),
    )


def hint_text(request: Request, rooms: Sequence[Room]) -> str:
    """Return what to change so that such nodes can hold it."""
    if not any(workers_on(room, request) for room in rooms):
        names = ["scaling.cpus_per_worker", *(["scaling.gpus_per_worker"] if request.gpus else [])]
        no_gpu = ", or set scaling.use_gpu=false" if request.gpus else ""
        return f"no node can hold a worker, so lower {' or '.join(names)}{no_gpu}"
    hints = []
    if request.groups > 1 and (most := groups_that_fit(request, rooms)):
        hints.append(f"lower sweep.slots to {most}")
    if most := most_workers(request, rooms):
        hints.append(f"lower {request.key} to {most}")
    if request.placement != "pack" and fits(replace(request, placement="pack"), rooms):
        hints.append("set scaling.placement=pack")
    return " or ".join(hints) or "lower sweep.slots"


def room_text(room: Room, each: bool = False) -> str:
    """Such as `8 CPU cores and 2 GPUs`."""
    cores = "1 CPU core" if room.cpus == 1 else f"{room.cpus:g} CPU cores"
    gpus = f" and {room.gpus:g} GPU{'' if room.gpus == 1 else 's'}" if room.gpus else ""
    return f"{cores}{gpus}{' each' if each else ''}"
