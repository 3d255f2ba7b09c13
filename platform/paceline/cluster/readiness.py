"""Whether a cluster is ready for what is about to start: there is room for it, and every node can work."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.cluster.listener import Stages
from paceline.cluster.node_checks import check_nodes
from paceline.cluster.nodes import alive_nodes, here
from paceline.cluster.placement import Request, workers_on
from paceline.cluster.preflight import check_precision, cluster_resources, request_of, storage_of, uses_gpu
from paceline.cluster.waiting_for_resources import make_room
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Imported

THE_CLUSTER = "the cluster"


def ready_to_train(config: ExperimentConfig, wait_seconds: float, listener: Stages) -> None:
    """Return once the cluster can run the config's workers.

    Raises:
        EnvironmentFault: it cannot, or not within `wait_seconds`.
    """
    use_gpu = uses_gpu(config, cluster_resources())
    check_precision(config, use_gpu, THE_CLUSTER)
    ready([request_of(config, use_gpu)], config, wait_seconds, listener)


def ready(requests: Sequence[Request], config: ExperimentConfig, wait_seconds: float, listener: Stages) -> None:
    """Return once there is room for each of the requests, and the nodes that can hold a worker have been asked.

    Raises:
        EnvironmentFault: there is no room, or not in time; or a node cannot work.
    """
    for request in requests:
        make_room(request, wait_seconds, THE_CLUSTER, listener.stage)
    nodes = [node for node in alive_nodes() if any(workers_on(node.total, request) for request in requests)]
    storage = storage_of(config)
    place = str(storage if isinstance(storage, Path) else storage.pinned())
    check_nodes(nodes, here(), place, places_of(config), listener)


def places_of(config: ExperimentConfig) -> list[str]:
    """Files and folders that the data are read from: as the data set tells, or, of the user's own, whatever of its
    arguments is the absolute path of something that is there."""
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
