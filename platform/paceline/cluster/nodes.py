"""The nodes of the connected cluster, and what is taken of them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from paceline._compat.ray import draining_nodes
from paceline.cluster.placement import Room, room_text

NODE_GROUP = "ray.io/node-group"
"""The label that autoscalers give a node, with the name of its type."""
SHOWN_ADDRESSES = 4


@dataclass(frozen=True)
class Node:
    """A node that is alive and stays."""

    id: str
    address: str
    total: Room
    free: Room
    """What nobody has taken at the moment."""
    kind: str = ""
    """Name of its type, where an autoscaler has told it."""
    is_head: bool = False
    name: str = ""
    """For people: the address, with a part of the id where several nodes share an address."""


def alive_nodes() -> list[Node]:
    """The cluster's nodes, the head first. Those that are draining are left out."""
    import ray

    leaving, free = _leaving(), _free()
    nodes = []
    for told in ray.nodes():
        if told["Alive"] and told["NodeID"] not in leaving:
            total = _room(told["Resources"])
            nodes.append(
                Node(
                    id=told["NodeID"],
                    address=told["NodeManagerAddress"],
                    total=total,
                    free=free.get(told["NodeID"], total),
                    kind=told.get("Labels", {}).get(NODE_GROUP, ""),
                    is_head="node:__internal_head__" in told["Resources"],
                )
            )
    return named(sorted(nodes, key=lambda node: (not node.is_head, node.address, node.id)))


def named(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with names that tell them apart."""
    addresses = [node.address for node in nodes]
    return [
        replace(
            node, name=node.address if addresses.count(node.address) == 1 else f"{node.address} (node {node.id[:8]})"
        )
        for node in nodes
    ]


def here() -> str:
    """Id of the node that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def cluster_status() -> Any:
    """Ray's own account of nodes, launches and failures; None where this version of Ray does not tell."""
    with suppress(Exception):  # inner parts of Ray: errors of many classes
        import ray
        from ray.autoscaler.v2.sdk import get_cluster_status

        return get_cluster_status(ray.get_runtime_context().gcs_address)
    return None


def nodes_text(nodes: Sequence[Node], free: bool = False) -> str:
    """Such as `2 nodes with 8 CPU cores each (10.0.0.1, 10.0.0.2)`, alike ones together."""

    def room_of(node: Node) -> Room:
        return node.free if free else node.total

    def size(node: Node) -> tuple[float, float]:
        return room_of(node).gpus, room_of(node).cpus

    texts = []
    for _, alike in groupby(sorted(nodes, key=size, reverse=True), key=size):
        group = list(alike)
        names = ", ".join(node.name for node in group[:SHOWN_ADDRESSES]) + (", ..." if group[SHOWN_ADDRESSES:] else "")
        count = "1 node" if len(group) == 1 else f"{len(group)} nodes"
        texts.append(f"{count} with {room_text(room_of(group[0]), each=len(group) > 1)} ({names})")
    return ", ".join(texts) or "no nodes"


def _free() -> dict[str, Room]:
    status = cluster_status()
    if status is None:
        return {}
    return {
        node.node_id: _room(node.available_resources())
        for node in [*status.active_nodes, *status.idle_nodes]
        if node.resource_usage is not None
    }


def _leaving() -> set[str]:
    return draining_nodes()


def _room(resources: Any) -> Room:
    return Room(float(resources.get("CPU", 0.0)), float(resources.get("GPU", 0.0)))
