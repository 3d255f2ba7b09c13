"""What an autoscaler may add, from the config that it runs with."""

from pathlib import Path

import pytest
import yaml

from paceline.cluster import autoscaling
from paceline.cluster.autoscaling import Autoscaler, autoscaler_of, autoscaler_text, config_on_head
from paceline.cluster.nodes import Node, named, nodes_text
from paceline.cluster.placing import NodeType, Room

CONFIG = {
    "head_node_type": "head",
    "max_workers": 5,
    "available_node_types": {
        "head": {"resources": {"CPU": 4}},
        "cpu": {"resources": {"CPU": 8}, "max_workers": 3},
        "gpu": {"resources": {"CPU": 8, "GPU": 4}},
    },
}
HEAD = Node("aa", "10.0.0.1", Room(4, 0), Room(4, 0), is_head=True)


def node(number: int, room: Room, kind: str = "", free: Room | None = None) -> Node:
    return Node(f"{number:08d}", f"10.0.0.{number}", room, free or room, kind)


def test_nodes_that_are_there_count() -> None:
    nodes = [HEAD, node(2, Room(8, 0), "cpu"), node(3, Room(8, 4))]  # the last one does not tell its type
    expected = (NodeType("cpu", Room(8, 0), 2), NodeType("gpu", Room(8, 4), 4))
    scaler = autoscaler_of(CONFIG, nodes)
    assert scaler == Autoscaler(expected, 3)
    text = autoscaler_text(scaler)
    assert text == (
        "the autoscaler may add 3 nodes (cpu: 2 with 8 CPU cores each, gpu: 4 with 8 CPU cores and 4 GPUs each)"
    )


def test_a_config_without_numbers_is_not_taken_for_nothing() -> None:
    told = autoscaler_of({"available_node_types": {"gpu": {"max_workers": 3}}}, [HEAD])
    assert told is not None
    assert "gpu" in told.unknown
    assert autoscaler_of({"available_node_types": {}}, [HEAD]) is None
    unread = autoscaler_of({"unknown": "no right to look"}, [HEAD])
    assert unread is not None
    assert "no right to look" in autoscaler_text(unread)


def test_full_is_said() -> None:
    scaler = autoscaler_of({**CONFIG, "max_workers": 0}, [HEAD])
    assert scaler is not None
    assert autoscaler_text(scaler) == "the autoscaler may add no more nodes"


class Process:
    def __init__(self, *words: str) -> None:
        self.info = {"cmdline": list(words)}


def test_the_config_is_that_of_this_clusters_monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**CONFIG, "auth": {"ssh_private_key": "no business of ours"}}))
    (tmp_path / "other.yaml").write_text("{max_workers: 1}")
    running = [
        Process("monitor.py", f"--autoscaling-config={tmp_path}/other.yaml", "--gcs-address=10.0.0.9:1"),
        Process("monitor.py", "--gcs-address=10.0.0.1:1"),
        Process("monitor.py", f"--autoscaling-config={tmp_path}/own.yaml", "--gcs-address=10.0.0.1:1"),
    ]
    monkeypatch.setattr(psutil, "process_iter", lambda _: iter(running))
    monkeypatch.delenv("RAY_CLUSTER_NAME", raising=False)
    assert config_on_head("10.0.0.1:1") == CONFIG
    assert config_on_head("10.0.0.2:1") is None
    (tmp_path / "own.yaml").unlink()
    assert "cannot be read" in (config_on_head("10.0.0.1:1") or {})["unknown"]


def test_on_kubernetes_it_is_the_clusters_own_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.autoscaler._private.kuberay import node_provider

    container = {"resources": {"limits": {"cpu": "6", "memory": "8Gi", "nvidia.com/gpu": "2"}}}
    group = {"template": {"spec": {"containers": [container]}}, "rayStartParams": {}}
    spec = {
        "enableInTreeAutoscaling": True,
        "headGroupSpec": group,
        "workerGroupSpecs": [{**group, "groupName": "gpus", "minReplicas": 0, "maxReplicas": 4}],
    }

    class Client:
        def __init__(self, namespace: str) -> None:
            assert namespace == "training"

        def get(self, path: str) -> object:
            assert path == "rayclusters/mine"
            return {"metadata": {"name": "mine", "namespace": "training"}, "spec": spec}

    monkeypatch.setattr(node_provider, "KubernetesHttpApiClient", Client)
    monkeypatch.setenv("RAY_CLUSTER_NAME", "mine")
    monkeypatch.setenv("RAY_CLUSTER_NAMESPACE", "training")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    config = autoscaling._of_kubernetes()
    assert config is not None
    scaler = autoscaler_of(config, [HEAD, node(2, Room(6, 2), "gpus")])
    assert scaler is not None
    assert scaler.types == (NodeType("gpus", Room(6, 2), 3),)
    spec["enableInTreeAutoscaling"] = False
    assert autoscaling._of_kubernetes() is None
    spec.clear()
    spec["enableInTreeAutoscaling"] = True
    assert "mine cannot be read" in (autoscaling._of_kubernetes() or {})["unknown"]


def test_nodes_are_named_so_that_they_can_be_told_apart() -> None:
    nodes = named(
        [HEAD, node(2, Room(8, 1)), node(3, Room(8, 1), free=Room(2, 0)), Node("bb", "10.0.0.1", *[Room(1, 0)] * 2)]
    )
    assert [each.name for each in nodes] == ["10.0.0.1 (node aa)", "10.0.0.2", "10.0.0.3", "10.0.0.1 (node bb)"]
    assert nodes_text(nodes).startswith("2 nodes with 8 CPU cores and 1 GPU each (10.0.0.2, 10.0.0.3), 1 node with 4")
    assert "1 node with 2 CPU cores (10.0.0.3)" in nodes_text(nodes, free=True)
