"""Waits until a cluster has room and its nodes can work, and refuses at once what can never fit."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.cluster.listener import Stages
from paceline.cluster.node_checks import check_nodes
from paceline.cluster.nodes import (
    Autoscaler,
    Node,
    alive_nodes,
    autoscaler_text,
    cluster_status,
    find_autoscaler,
    free_rooms,
    here,
    nodes_text,
    rooms_of,
)
from paceline.cluster.placement import (
    Request,
    asked_text,
    fits,
    hint_text,
    most_workers,
    nodes_to_add,
    too_small,
    workers_on,
)
from paceline.cluster.preflight import check_precision, check_resources, cluster_resources, request_of, uses_gpu
from paceline.cluster.ray_session import is_private
from paceline.cluster.run_folder import storage_of
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Imported
from paceline.errors import EnvironmentFault

AUTOSCALER_SECONDS = 1800.0
"""Seconds to wait for nodes that the autoscaler may add, if the command does not set them: clouds take minutes to start
one, and Ray Train itself would give up after four."""
POLL_SECONDS = 0.5
REMIND_SECONDS = 30.0
"""Seconds after which the reason for waiting is reported again."""
THE_CLUSTER = "the cluster"


Tell = Callable[[str], None]


def make_room(request: Request, wait_seconds: float, tell: Tell) -> None:
    """Wait until the cluster can hold a request that Ray is about to get. Resources that others have are reported.

    Args:
        wait_seconds: seconds to wait for nodes to join, and for resources of others. 0: wait for an autoscaler alone.
        tell: takes the reason for waiting.

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
            raise too_small(request, rooms_of(nodes), refusal(request, nodes, scaler))
        tell(f"{busy_text(nodes)}: it begins when enough is free; --wait-for-resources SECONDS limits that")
        return
    _wait(request, scaler if grows else None, wait_seconds or AUTOSCALER_SECONDS, tell)


def require_free(config: ExperimentConfig) -> None:
    """Check that the cluster can hold the workers of a config now, without waiting for anybody.

    Raises:
        EnvironmentFault: it cannot.
    """
    nodes = alive_nodes()
    request = request_of(config, uses_gpu(config, cluster_resources()))
    if not fits(request, free_rooms(nodes)):
        raise too_small(request, free_rooms(nodes), f"{asked_text(request)}; {nodes_text(nodes, free=True)} are free")


def can_grow(request: Request, nodes: Sequence[Node], scaler: Autoscaler | None) -> bool:
    """Return True if the autoscaler can add the nodes that are lacking, permanently or while others use the present
    ones."""
    if scaler is None:
        return False
    enough = fits(request, rooms_of(nodes))
    rooms = free_rooms(nodes) if enough else rooms_of(nodes)
    if nodes_to_add(request, rooms, scaler.types, scaler.limit) is not None:
        return True
    return bool(scaler.unknown) and not enough


def refusal(request: Request, nodes: Sequence[Node], scaler: Autoscaler | None, where: str = THE_CLUSTER) -> str:
    """Return the message with the request, the present nodes, those that may be added, and the hint."""
    there = f"{asked_text(request)}; {where} has {nodes_text(nodes)}"
    more = f", and {autoscaler_text(scaler)}" if scaler is not None else ""
    hint = hint_text(request, rooms_of(nodes))
    return f"{there}{more}: {hint}, or wait for nodes to join with --wait-for-resources SECONDS"


def busy_text(nodes: Sequence[Node]) -> str:
    """Return the message that the resources are sufficient, but others have taken them."""
    taken = [node for node in nodes if node.free != node.total]
    left = nodes_text(taken, free=True)
    return f"{THE_CLUSTER} is busy: others have taken a part of {nodes_text(taken)}, and left {left}"


def _wait(request: Request, scaler: Autoscaler | None, seconds: float, tell: Tell) -> None:
    end = time.monotonic() + seconds
    told, shown_at, failures = "", 0.0, set[str]()
    with _demand(request) if scaler is not None else _watch(request) as is_met:
        while not is_met():
            now = time.monotonic()
            nodes = alive_nodes()
            if now >= end:
                raise _too_late(request, nodes, scaler, seconds)
            text = _waiting_text(request, nodes, scaler)
            if text != told or now - shown_at > REMIND_SECONDS:
                told, shown_at = text, now
                tell(f"{text} (for {end - now:.0f} s at the most)")
            if scaler is not None:
                _report_failures(failures, tell)
            time.sleep(min(POLL_SECONDS, end - now))


def _waiting_text(request: Request, nodes: Sequence[Node], scaler: Autoscaler | None) -> str:
    if fits(request, rooms_of(nodes)):
        return f"waiting: {busy_text(nodes)}"
    if scaler is None:
        return f"waiting for nodes to join: {asked_text(request)}; {THE_CLUSTER} has {nodes_text(nodes)}"
    added = nodes_to_add(request, rooms_of(nodes), scaler.types)
    if not added:
        return f"waiting for more nodes, {autoscaler_text(scaler)}"
    number = sum(added.values())
    names = " and ".join(f"{count} {name}" for name, count in added.items())
    return f"waiting for {number} node{'' if number == 1 else 's'} more ({names}), {autoscaler_text(scaler)}"


def _too_late(request: Request, nodes: Sequence[Node], scaler: Autoscaler | None, seconds: float) -> EnvironmentFault:
    waited = f"after {seconds:g} s of waiting, "
    if fits(request, rooms_of(nodes)):
        free = free_rooms(nodes)
        return EnvironmentFault(
            f"{waited}{busy_text(nodes)}; {asked_text(request)}: wait longer, or {hint_text(request, free)}",
            "cluster-busy",
            workers=request.workers,
            most_workers=most_workers(request, free),
        )
    return too_small(request, rooms_of(nodes), f"{waited}{refusal(request, nodes, scaler)}")


@contextmanager
def _watch(request: Request) -> Iterator[Callable[[], bool]]:
    """Yield a check that reserves nothing: two commands that wait for the same nodes would otherwise each hold half of
    them."""
    yield lambda: fits(request, free_rooms(alive_nodes()))


@contextmanager
def _demand(request: Request) -> Iterator[Callable[[], bool]]:
    """Create placement groups like those that Ray Train will ask for: the autoscaler adds nodes for what is asked."""
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


def _report_failures(known: set[str], tell: Tell) -> None:
    """Report nodes that the autoscaler could not start, each reason once."""
    status: Any = cluster_status()
    for launch in status.failed_launches if status is not None else ():
        text = f"{launch.ray_node_type_name}: {launch.details or 'no reason given'}"
        if text not in known:
            known.add(text)
            tell(f"the autoscaler could not start a node of type {text}")


def ready_to_train(config: ExperimentConfig, wait_seconds: float, listener: Stages) -> bool:
    """Wait until Ray can run the config's workers, and return True if they get GPUs.

    Raises:
        EnvironmentFault: it cannot, or not within `wait_seconds`.
    """
    if is_private():
        return check_resources(config, cluster_resources(), "this machine")
    use_gpu = uses_gpu(config, cluster_resources())
    check_precision(config, use_gpu, THE_CLUSTER)
    ready([request_of(config, use_gpu)], config, wait_seconds, listener)
    return use_gpu


def ready(requests: Sequence[Request], config: ExperimentConfig, wait_seconds: float, listener: Stages) -> None:
    """Wait until there is room for each of the requests, and check the nodes that can hold a worker.

    Raises:
        EnvironmentFault: there is no room, or not in time; or a node cannot work.
    """
    for request in requests:
        make_room(request, wait_seconds, listener.stage)
    nodes = [node for node in alive_nodes() if any(workers_on(node.total, request) for request in requests)]
    storage = storage_of(config)
    place = str(storage if isinstance(storage, Path) else storage.pinned())
    check_nodes(nodes, here(), place, places_of(config), listener)


def places_of(config: ExperimentConfig) -> list[str]:
    """Return the files and folders that the data are read from: those that the data set reports or, for a custom one,
    each argument that is the absolute path of an existing file or folder."""
    if isinstance(config.data, Imported):
        return [text for text in _texts(config.data.args) if Path(text).is_absolute() and _is_there(text)]
    return config.data.places()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long for a name, say
        return False
