"""A job's request compared with the cluster over its dashboard, so that what can never run is not sent."""

from contextlib import suppress
from typing import Any

from paceline.cluster.job_plan import JobPlan
from paceline.cluster.nodes import NODE_GROUP, Node, named
from paceline.cluster.placement import Room, fits, too_small
from paceline.cluster.preflight import Resources, request_of, uses_gpu
from paceline.cluster.waiting_for_resources import refusal, rooms_of

NODES = "/api/v0/nodes?detail=1&limit=10000"
STATUS = "/api/cluster_status"


def refuse_impossible(client: Any, plan: JobPlan, url: str) -> None:
    """Refuse a job whose workers the cluster's nodes can never hold.

    The job itself looks again, at more. It is sent where this does not know enough: the cluster may have an autoscaler,
    the job is to wait for nodes, or the trials of its sweep differ in `scaling`.

    Args:
        client: as `connect` makes it.

    Raises:
        EnvironmentFault: the cluster is too small, and nothing adds nodes to it.
    """
    config = plan.config
    axes = config.sweep.space if plan.kind == "sweep" and config.sweep is not None else ()
    if not config.scaling.num_workers or plan.waits_for_nodes or any(axis.startswith("scaling") for axis in axes):
        return
    nodes: list[Node] = []
    with suppress(Exception):  # another version of Ray, say: whatever it is, the job is not refused for it
        nodes = nodes_without_autoscaler(client.read(NODES), client.read(STATUS))
    rooms = rooms_of(nodes)
    there = Resources(sum(room.cpus for room in rooms), sum(room.gpus for room in rooms))
    request = request_of(config, uses_gpu(config, there))
    if nodes and not fits(request, rooms):
        raise too_small(request, rooms, refusal(request, nodes, None, f"the cluster at {url}"))


def nodes_without_autoscaler(listed: Any, status: Any) -> list[Node]:
    """The cluster's nodes, from what the dashboard answers; none where an autoscaler may add some.

    Ray's monitor reports each node as a type of its own, named after its id, exactly when there is nothing to scale.
    """
    entries = listed["data"]["result"]["result"]
    alive = [entry for entry in entries if entry["state"] == "ALIVE"]
    types = {_plain(name) for name in status["data"]["clusterStatus"]["autoscalerReport"]["activeNodes"]}
    if types != {_plain(f"node_{entry['node_id']}") for entry in alive}:
        return []
    return named(sorted(map(_node, alive), key=lambda node: (not node.is_head, node.address, node.id)))


def _node(entry: Any) -> Node:
    resources = entry["resources_total"]
    room = Room(float(resources.get("CPU", 0.0)), float(resources.get("GPU", 0.0)))
    kind = str(entry["labels"].get(NODE_GROUP, ""))
    return Node(entry["node_id"], entry["node_ip"], room, room, kind, bool(entry["is_head_node"]))


def _plain(name: str) -> str:
    """A name as it is, and as the dashboard writes keys: `node_5fab` becomes `node5Fab`."""
    return name.replace("_", "").lower()
