"""Placement of worker groups on nodes: calculates whether they fit, and how many nodes are lacking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline.errors import EnvironmentFault

_ROUNDING = 1e-9
"""0.3 / 0.1 is a little less than 3."""


@dataclass(frozen=True)
class Room:
    """Resources of a node for workers."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Request:
    """Groups of workers that are to be there at the same time; each worker takes what it needs of one node."""

    workers: int
    """Number of workers of a group."""
    cpus: float
    """Number of CPU cores of a worker."""
    gpus: float
    """Number of GPUs of a worker; 0 if it trains on CPU."""
    placement: str
    """As `scaling.placement`: `strict_pack` is all workers of a group on one node, `strict_spread` one node each."""
    groups: int = 1
    key: str = "scaling.num_workers"
    """Config field that sets the number of workers."""

    @property
    def total(self) -> Room:
        """Resources that all workers take together."""
        number = self.workers * self.groups
        return Room(number * self.cpus, number * self.gpus)


@dataclass(frozen=True)
class NodeType:
    """A kind of node that an autoscaler may add."""

    name: str
    room: Room
    more: int
    """Number of nodes of this type that it may still add."""


def workers_on(room: Room, request: Request) -> int:
    """Return the number of workers that one node can hold."""
    limits = [_times(room.cpus, request.cpus)] if request.cpus else []
    if request.gpus:
        # a part of a GPU is taken of one GPU: two workers with 0.6 each take two
        shared = int(room.gpus + _ROUNDING) * _times(1.0, request.gpus)
        limits.append(shared if request.gpus < 1 else _times(room.gpus, request.gpus))
    return min(limits)


def fits(request: Request, rooms: Sequence[Room]) -> bool:
    """Return True if nodes with such resources can hold all groups at the same time."""
    return _lacking(request, rooms) <= 0


def groups_that_fit(request: Request, rooms: Sequence[Room]) -> int:
    """Return the number of groups that fit at the same time."""
    most = sum(workers_on(room, request) for room in rooms) // request.workers
    return _largest(most, lambda groups: fits(replace(request, groups=groups), rooms))


def most_workers(request: Request, rooms: Sequence[Room]) -> int:
    """Return the size of the largest group that fits as often as is asked for; 0 if not even one worker fits."""
    return _largest(request.workers, lambda workers: fits(replace(request, workers=workers), rooms))


def nodes_to_add(
    request: Request, rooms: Sequence[Room], types: Sequence[NodeType], limit: int | None = None
) -> dict[str, int] | None:
    """Return the fewest nodes that make the request fit, by the name of their type; None if no choice of them does.

    Args:
        request: the groups to be placed.
        rooms: resources of the present nodes.
        types: nodes that may be added.
        limit: maximum number of nodes to add in all; None: only the types limit it.
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
    """Return the number of places that a node offers, as `_places` counts them."""
    workers = workers_on(room, request)
    if request.placement == "strict_pack":
        return workers // request.workers
    return min(workers, request.groups) if request.placement == "strict_spread" else workers


def _places(request: Request) -> int:
    """Return the number of places that are needed: with `strict_pack` one per group, of which a node holds whole ones;
    otherwise one per worker."""
    return request.groups if request.placement == "strict_pack" else request.groups * request.workers


def _lacking(request: Request, rooms: Sequence[Room]) -> int:
    return _places(request) - sum(_worth(request, room) for room in rooms)


def _times(has: float, each: float) -> int:
    return int(has / each + _ROUNDING)


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `most` that fits, where all below it do too; 0 for none."""
    low = 0
    while low < most:
        middle = (low + most + 1) // 2
        low, most = (middle, most) if fits(middle) else (low, middle - 1)
    return low


def asked_text(request: Request) -> str:
    """Return a request as text, such as `scaling asks for 3 workers with 1 CPU core each, one node each
    (scaling.placement strict_spread)`."""
    workers = "1 worker" if request.workers == 1 else f"{request.workers} workers"
    text = f"{workers} with {room_text(Room(request.cpus, request.gpus))}{' each' if request.workers > 1 else ''}"
    how = {"strict_pack": ", all on one node", "strict_spread": ", each on a node of its own"}.get(request.placement)
    if how and request.workers > 1:
        text += f"{how} (scaling.placement {request.placement})"
    return f"scaling asks for {text}" if request.groups == 1 else f"{request.groups} trials at a time ask for {text}"


def too_small(request: Request, rooms: Sequence[Room], message: str) -> EnvironmentFault:
    """Return the error that nodes can never hold a request."""
    return EnvironmentFault(
        message,
        "cluster-too-small",
        workers=request.workers,
        placement=request.placement,
        nodes=len(rooms),
        most_workers=most_workers(request, rooms),
    )


def hint_text(request: Request, rooms: Sequence[Room]) -> str:
    """Return the hint: the changes with which such nodes can hold the request."""
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
    """Return resources as text, such as `8 CPU cores and 2 GPUs`."""
    cores = "1 CPU core" if room.cpus == 1 else f"{room.cpus:g} CPU cores"
    gpus = f" and {room.gpus:g} GPU{'' if room.gpus == 1 else 's'}" if room.gpus else ""
    return f"{cores}{gpus}{' each' if each else ''}"
