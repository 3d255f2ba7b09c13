"""Nodes of a cluster, their free resources, and the nodes that an autoscaler may add."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from paceline._compat.ray import draining_nodes, kuberay_autoscaling_config, reported_cluster_config
from paceline.cluster.placement import NodeType, Room, room_text

NODE_GROUP = "ray.io/node-group"
"""Label that autoscalers give a node, with the name of its type."""
SHOWN_ADDRESSES = 4
HEAD = "node:__internal_head__"
"""Resource of the head node alone."""
ANSWER_SECONDS = 30.0
DEFAULT_MOST = 2
"""Ray's own limit where a config names none."""
_KEPT = ("available_node_types", "head_node_type", "max_workers")
"""Keys that are kept of an autoscaler's config."""
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Node:
    """A node that is alive and stays."""

    id: str
    address: str
    total: Room
    free: Room
    """Resources that are free at the moment."""
    kind: str = ""
    """Name of its type, where an autoscaler reports it."""
    is_head: bool = False
    name: str = ""
    """Name for messages: the address, with a part of the id where several nodes share an address."""


def alive_nodes() -> list[Node]:
    """Return the cluster's nodes, the head first. Those that are draining are left out."""
    import ray

    leaving, free = draining_nodes(), _free()
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
                    is_head=HEAD in told["Resources"],
                )
            )
    return named(sorted(nodes, key=lambda node: (not node.is_head, node.address, node.id)))


def named(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with distinct names."""
    addresses = [node.address for node in nodes]
    return [
        replace(
            node, name=node.address if addresses.count(node.address) == 1 else f"{node.address} (node {node.id[:8]})"
        )
        for node in nodes
    ]


def rooms_of(nodes: Sequence[Node]) -> list[Room]:
    """Return the total resources of each node."""
    return [node.total for node in nodes]


def free_rooms(nodes: Sequence[Node]) -> list[Room]:
    """Return the free resources of each node."""
    return [node.free for node in nodes]


def here() -> str:
    """Return the id of the node that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def cluster_status() -> Any:
    """Return Ray's own status of nodes, launches and failures; None if this version of Ray does not report it."""
    with suppress(Exception):  # inner parts of Ray: errors of many classes
        import ray
        from ray.autoscaler.v2.sdk import get_cluster_status

        return get_cluster_status(ray.get_runtime_context().gcs_address)
    return None


def nodes_text(nodes: Sequence[Node], free: bool = False) -> str:
    """Return nodes as text, alike ones together, such as `2 nodes with 8 CPU cores each (10.0.0.1, 10.0.0.2)`."""

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


def _room(resources: Any) -> Room:
    return Room(float(resources.get("CPU", 0.0)), float(resources.get("GPU", 0.0)))


@dataclass(frozen=True)
class Autoscaler:
    """Autoscaler of the cluster, with the nodes that it may still add."""

    types: tuple[NodeType, ...] = ()
    limit: int | None = None
    """Number of nodes that it may add in all; None: only the types limit it."""
    unknown: str = ""
    """Reason why it does not report the nodes that it may add; empty if it does."""


def find_autoscaler(nodes: Sequence[Node]) -> Autoscaler | None:
    """Return the cluster's autoscaler; None if it has none. Takes a moment: the head node is asked.

    Args:
        nodes: those that have joined already.
    """
    config = _reported() or _asked_of_head()
    return None if config is None else autoscaler_of(config, nodes)


def autoscaler_of(config: Mapping[str, Any], nodes: Sequence[Node]) -> Autoscaler | None:
    """Return the nodes that are left to add, by a config with the keys of Ray's `cluster.yaml`."""
    if reason := config.get("unknown"):
        return Autoscaler(unknown=str(reason))
    limit = config.get("max_workers")
    known = {name: each for name, each in (config.get("available_node_types") or {}).items() if each.get("resources")}
    lacking = [name for name in config.get("available_node_types") or {} if name not in known]
    types, left = [], [node for node in nodes if not node.is_head]
    workers = len(left)
    for name, each in known.items():
        room = _room(each["resources"])
        own = [node for node in left if node.kind == name or (not node.kind and node.total == room)]
        left = [node for node in left if node not in own]
        most = int(each.get("max_workers", DEFAULT_MOST if limit is None else limit))
        if name != config.get("head_node_type"):
            types.append(NodeType(name, room, max(0, most - len(own))))
    unknown = f"it has no resources for {', '.join(lacking)}" if lacking else ""
    if not types and not unknown:
        return None
    return Autoscaler(tuple(types), None if limit is None else max(0, int(limit) - workers), unknown)


def autoscaler_text(scaler: Autoscaler) -> str:
    """Return the text about an autoscaler, such as `the autoscaler may add 4 nodes (gpu: 4 with 8 CPU cores and 1 GPU
    each)`."""
    if scaler.unknown:
        return f"the autoscaler does not tell what it may add ({scaler.unknown})"
    more = sum(each.more for each in scaler.types)
    more = more if scaler.limit is None else min(more, scaler.limit)
    if not more:
        return "the autoscaler may add no more nodes"
    kinds = ", ".join(f"{each.name}: {each.more} with {room_text(each.room, each.more > 1)}" for each in scaler.types)
    return f"the autoscaler may add {more} node{'' if more == 1 else 's'} ({kinds})"


def _reported() -> dict[str, Any] | None:
    """Return the configuration that the cluster's manager has reported to Ray; few do."""
    reported = reported_cluster_config()
    return _in_yamls_words(reported) if reported is not None and reported.node_group_configs else None


def _in_yamls_words(told: Any) -> dict[str, Any]:
    """Return a cluster config of Ray's protocol with the keys of `cluster.yaml`; a maximum of -1 means unlimited."""
    types = {}
    for group in told.node_group_configs:
        most = sys.maxsize if group.max_count < 0 else group.max_count
        types[group.name] = {"resources": dict(group.resources), "max_workers": most}
    return {"available_node_types": types}


def _asked_of_head() -> dict[str, Any] | None:
    import ray

    task = ray.remote(num_cpus=0, resources={HEAD: 0.001}, max_retries=0)(config_on_head)
    try:
        found: dict[str, Any] | None = ray.get(
            task.remote(ray.get_runtime_context().gcs_address), timeout=ANSWER_SECONDS
        )
    except ray.exceptions.RayError:
        return None
    return found


def config_on_head(gcs_address: str) -> dict[str, Any] | None:
    """Return the autoscaler's config, on the head node: from its command line or, on Kubernetes, from the cluster's own
    entry.

    Args:
        gcs_address: of this cluster; on one machine there may be several.
    """
    return _of_monitor(gcs_address) or _of_kubernetes()


def _of_monitor(gcs_address: str) -> dict[str, Any] | None:
    import psutil
    import yaml

    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        values = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
        file = values.get("autoscaling-config")
        if file is None or values.get("gcs-address") != gcs_address:
            continue
        try:
            config = yaml.safe_load(Path(file).expanduser().read_text())
        except (OSError, yaml.YAMLError) as error:
            return {"unknown": f"{file} on the head node cannot be read: {type(error).__name__}"}
        return {key: config[key] for key in _KEPT if key in config}
    return None


def _of_kubernetes() -> dict[str, Any] | None:
    cluster = os.environ.get("RAY_CLUSTER_NAME")
    if not cluster or "KUBERNETES_SERVICE_HOST" not in os.environ:
        return None
    try:
        namespace = os.environ.get("RAY_CLUSTER_NAMESPACE") or _NAMESPACE.read_text().strip()
        config = kuberay_autoscaling_config(cluster, namespace)
    except Exception as error:  # no right to look, or another version: errors of many classes
        return {"unknown": f"the RayCluster {cluster} cannot be read: {type(error).__name__}"}
    return None if config is None else {key: config[key] for key in _KEPT if key in config}


def nodes_without_autoscaler(listed: Any, status: Any) -> list[Node]:
    """Return the cluster's nodes, from the answers of the dashboard; none if an autoscaler may add some.

    Ray's monitor reports each node as a type of its own, named after its id, exactly when there is nothing to scale.
    """
    entries = listed["data"]["result"]["result"]
    alive = [entry for entry in entries if entry["state"] == "ALIVE"]
    types = {_plain(name) for name in status["data"]["clusterStatus"]["autoscalerReport"]["activeNodes"]}
    if types != {_plain(f"node_{entry['node_id']}") for entry in alive}:
        return []
    return named(sorted(map(_node, alive), key=lambda node: (not node.is_head, node.address, node.id)))


def _node(entry: Any) -> Node:
    room = _room(entry["resources_total"])
    kind = str(entry["labels"].get(NODE_GROUP, ""))
    return Node(entry["node_id"], entry["node_ip"], room, room, kind, bool(entry["is_head_node"]))


def _plain(name: str) -> str:
    """Return a name in a form that equals the dashboard's keys: it writes `node_5fab` as `node5Fab`."""
    return name.replace("_", "").lower()
