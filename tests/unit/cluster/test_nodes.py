"""What an autoscaler may add, from the config that it runs with."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml

from paceline.cluster import nodes
from paceline.cluster.nodes import (
    Autoscaler,
    Node,
    autoscaler_of,
    autoscaler_text,
    config_on_head,
    named,
    nodes_text,
)
from paceline.cluster.placement import NodeType, Room
from support.golden import Golden

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


def test_nodes_that_are_there_count_towards_the_limits(golden: Golden) -> None:
    nodes = [HEAD, node(2, Room(8, 0), "cpu"), node(3, Room(8, 4))]  # the last one does not tell its type
    expected = (NodeType("cpu", Room(8, 0), 2), NodeType("gpu", Room(8, 4), 4))
    scaler = autoscaler_of(CONFIG, nodes)
    assert scaler == Autoscaler(expected, 3)
    golden(autoscaler_text(scaler), "some")
    full = autoscaler_of({**CONFIG, "max_workers": 0}, [HEAD])
    assert full is not None
    assert full.limit == 0
    golden(autoscaler_text(full), "none")


def test_a_config_without_numbers_is_unknown_and_not_empty() -> None:
    scaler = autoscaler_of({"available_node_types": {"gpu": {"max_workers": 3}}}, [HEAD])
    assert scaler is not None
    assert "gpu" in scaler.unknown
    assert autoscaler_of({"available_node_types": {}}, [HEAD]) is None
    unreadable = autoscaler_of({"unknown": "no right to look"}, [HEAD])
    assert unreadable is not None
    assert "no right to look" in unreadable.unknown


def test_the_config_is_that_of_this_clusters_monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({**CONFIG, "auth": {"ssh_private_key": "no business of ours"}}))
    (tmp_path / "other.yaml").write_text("{max_workers: 1}")
    commands = [
        ["monitor.py", f"--autoscaling-config={tmp_path}/other.yaml", "--gcs-address=10.0.0.9:1"],
        ["monitor.py", "--gcs-address=10.0.0.1:1"],
        ["monitor.py", f"--autoscaling-config={tmp_path}/own.yaml", "--gcs-address=10.0.0.1:1"],
    ]
    running = [SimpleNamespace(info={"cmdline": words}) for words in commands]
    monkeypatch.setattr(psutil, "process_iter", lambda _: iter(running))
    monkeypatch.delenv("RAY_CLUSTER_NAME", raising=False)
    assert config_on_head("10.0.0.1:1") == CONFIG
    assert config_on_head("10.0.0.2:1") is None
    (tmp_path / "own.yaml").unlink()
    assert (config_on_head("10.0.0.1:1") or {}).keys() == {"unknown"}


def test_on_kubernetes_it_is_the_clusters_own_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    entries: dict[tuple[str, str], Any] = {("mine", "training"): {**CONFIG, "provider": "no business of ours"}}
    monkeypatch.setattr(nodes, "kuberay_autoscaling_config", lambda *names: entries[names])
    monkeypatch.setattr(psutil, "process_iter", lambda _: iter(()))
    monkeypatch.setenv("RAY_CLUSTER_NAME", "mine")
    monkeypatch.setenv("RAY_CLUSTER_NAMESPACE", "training")
    assert config_on_head("10.0.0.1:1") is None  # not on Kubernetes
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert config_on_head("10.0.0.1:1") == CONFIG
    entries["mine", "training"] = None
    assert config_on_head("10.0.0.1:1") is None
    entries.clear()  # no right to look
    assert (config_on_head("10.0.0.1:1") or {}).keys() == {"unknown"}


def test_nodes_are_named_so_that_they_can_be_told_apart(golden: Golden) -> None:
    nodes = named(
        [HEAD, node(2, Room(8, 1)), node(3, Room(8, 1), free=Room(2, 0)), Node("bb", "10.0.0.1", *[Room(1, 0)] * 2)]
    )
    assert [each.name for each in nodes] == ["10.0.0.1 (node aa)", "10.0.0.2", "10.0.0.3", "10.0.0.1 (node bb)"]
    golden(nodes_text(nodes), "in all")
    golden(nodes_text(nodes, free=True), "free")
