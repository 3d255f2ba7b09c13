"""Waits for room on a cluster, and refuses at once what can never fit."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from paceline.cluster.autoscaling import Autoscaler, autoscaler_text, find_autoscaler
from paceline.cluster.nodes import Node, alive_nodes, cluster_status, nodes_text
from paceline.cluster.placement import Request, Room, asked_text, fits, hint_text, most_workers, nodes_to_add, too_small
from paceline.errors import EnvironmentFault

AUTOSCALER_SECONDS = 1800.0
"""How long nodes are waited for that the autoscaler may add, when the command does not say: clouds take minutes to
start one, and Ray Train itself would give up after four."""
POLL_SECONDS = 0.5
REMIND_SECONDS = 30.0
"""How often it is reported again what is waited for."""

Tell = Callable[[str], None]


def make_room(request: Request, wait_seconds: float, where: str, tell: Tell) -> None:
    """Return once the cluster can hold what is about to be asked of Ray. What others have taken of it is reported.

    Args:
        request: what is about to be asked of Ray.
        wait_seconds: how long to wait for nodes to join, and for what others have taken. 0: for an autoscaler alone.
        where: what the cluster is called in messages.
        tell: told of what is waited for.

    Raises:
        EnvironmentFault: the request can never be met, or was not in time.
    """
    nodes = alive_nodes()
    if fits(request, free_rooms(nodes)):
        return
    scaler = find_autoscaler(nodes)
    enough, grows = fits(request, rooms_of(nodes)), can_grow(request, nodes, scaler)
    if not grows and not wait_seconds:
        if not enough:
            raise too_small(request, rooms_of(nodes), refusal(request, nodes, scaler, where))
        tell(f"{busy_text(nodes, where)}: it begins when enough is free; --wait-for-resources SECONDS limits that")
        return
    _wait(request, scaler if grows else None, wait_seconds or AUTOSCALER_SECONDS, where, tell)


def can_grow(request: Request, nodes: Sequence[Node], scaler: Autoscaler | None) -> bool:
    """Whether the autoscaler can add what the nodes lack: for good, or while others take what there is."""
    if scaler is None:
        return False
    enough = fits(request, rooms_of(nodes))
    rooms = free_rooms(nodes) if enough else rooms_of(nodes)
    if nodes_to_add(request, rooms, scaler.types, scaler.limit) is not None:
        return True
    return bool(scaler.unknown) and not enough


def rooms_of(nodes: Sequence[Node]) -> list[Room]:
    """All that each node has."""
    return [node.total for node in nodes]


def free_rooms(nodes: Sequence[Node]) -> list[Room]:
    """What each node has left."""
    return [node.free for node in nodes]


def refusal(request: Request, nodes: Sequence[Node], scaler: Autoscaler | None, where: str) -> str:
    """What is asked for, what there is and may be, and the hint."""
    there = f"{asked_text(request)}; {where} has {nodes_text(nodes)}"
    more = f", and {autoscaler_text(scaler)}" if scaler is not None else ""
    hint = hint_text(request, rooms_of(nodes))
    return f"{there}{more}: {hint}, or wait for nodes to join with --wait-for-resources SECONDS"


def busy_text(nodes: Sequence[Node], where: str) -> str:
    """That there is enough, but others have it."""
    taken = [node for node in nodes if node.free != node.total]
    return f"{where} is busy: others have taken a part of {nodes_text(taken)}, and left {nodes_text(taken, free=True)}"


def _wait(request: Request, scaler: Autoscaler | None, seconds: float, where: str, tell: Tell) -> None:
    end = time.monotonic() + seconds
    told, told_at, failures = "", 0.0, set[str]()
    with _demand(request) if scaler is not None else _watch(request) as is_met:
        while not is_met():
            now = time.monotonic()
            nodes = alive_nodes()
            if now >= end:
                raise _too_late(request, nodes, scaler, seconds, where)
            text = _waiting_text(request, nodes, scaler, where)
            if text != told or now - told_at > REMIND_SECONDS:
                told, told_at = text, now
                tell(f"{text} (for {end - now:.0f} s at the most)")
            if scaler is not None:
                _tell_failures(failures, tell)
            time.sleep(min(POLL_SECONDS, end - now))


def _waiting_text(request: Request, nodes: Sequence[Node], scaler: Autoscaler | None, where: str) -> str:
    if fits(request, rooms_of(nodes)):
        return f"waiting: {busy_text(nodes, where)}"
    if scaler is None:
        return f"waiting for nodes to join: {asked_text(request)}; {where} has {nodes_text(nodes)}"
    added = nodes_to_add(request, rooms_of(nodes), scaler.types)
    if not added:
        return f"waiting for more nodes, {autoscaler_text(scaler)}"
    number = sum(added.values())
    names = " and ".join(f"{count} {name}" for name, count in added.items())
    return f"waiting for {number} node{'' if number == 1 else 's'} more ({names}), {autoscaler_text(scaler)}"


def _too_late(
    request: Request, nodes: Sequence[Node], scaler: Autoscaler | None, seconds: float, where: str
) -> EnvironmentFault:
    waited = f"after {seconds:g} s of waiting, "
    if fits(request, rooms_of(nodes)):
        free = free_rooms(nodes)
        return EnvironmentFault(
            f"{waited}{busy_text(nodes, where)}; {asked_text(request)}: wait longer, or {hint_text(request, free)}",
            "cluster-busy",
            workers=request.workers,
            most_workers=most_workers(request, free),
        )
    return too_small(request, rooms_of(nodes), f"{waited}{refusal(request, nodes, scaler, where)}")


@contextmanager
def _watch(request: Request) -> Iterator[Callable[[], bool]]:
    """Only looks: two commands that wait for the same nodes would otherwise each hold a half of them."""
    yield lambda: fits(request, free_rooms(alive_nodes()))


@contextmanager
def _demand(request: Request) -> Iterator[Callable[[], bool]]:
    """Placement groups like those that Ray Train is going to ask for: the autoscaler adds nodes for what is asked."""
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    bundle = {"CPU": request.cpus, **({"GPU": request.gpus} if request.gpus else {})}
    strategy = request.placement.upper()
    groups = [placement_group([dict(bundle)] * request.workers, strategy) for _ in range(request.groups)]
    try:
        yield lambda: all(placement_group_table(group).get("state") == "CREATED" for group in groups)
    finally:
        for group in groups:
            with suppress(Exception):  # the connection may be what has failed
                remove_placement_group(group)


def _tell_failures(known: set[str], tell: Tell) -> None:
    """Nodes that the autoscaler could not start, each reason once."""
    status: Any = cluster_status()
    for launch in status.failed_launches if status is not None else ():
        text = f"{launch.ray_node_type_name}: {launch.details or 'no reason given'}"
        if text not in known:
            known.add(text)
            tell(f"the autoscaler could not start a node of type {text}")
