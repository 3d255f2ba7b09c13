"""Clusters of several nodes on one machine: requests refused or waited for, and faults of nodes.

Slow: run with `-m slow`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import node_checks, waiting_for_resources
from paceline.cluster.nodes import alive_nodes
from paceline.cluster.waiting_for_resources import ready_to_train
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import load_config
from paceline.errors import EnvironmentFault
from support.cluster.coordinators import Events
from support.cluster.job_cluster import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

CONFIG = """
name: nodes
model: {name: mlp, in_features: 4, num_classes: 2, hidden: [4]}
data: {name: synthetic, shape: [4], num_classes: 2, num_samples: 840, global_batch_size: 420}
scaling: {num_workers: 2, use_gpu: false}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two cores each; this process is connected to the first."""
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    from paceline.cluster.ray_session import connected

    ray.shutdown()  # of the session that other files of this process share, and which come first
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        made.add_node(num_cpus=2)
        with connected(made.address):
            yield made
    finally:
        made.shutdown()


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., ExperimentConfig]:
    """The config with changes, and a storage folder of its own."""

    def make(**changes: Any) -> ExperimentConfig:
        (tmp_path / "nodes.yaml").write_text(CONFIG)
        given = {key if key == "data" else f"scaling.{key}": value for key, value in changes.items()}
        return load_config(tmp_path / "nodes.yaml", {"storage.path": str(tmp_path / "runs"), **given})

    return make


def ready(config: ExperimentConfig, wait_seconds: float = 0.0) -> Events:
    told = Events()
    ready_to_train(config, wait_seconds, told)
    return told


def refused(config: ExperimentConfig, code: str, wait_seconds: float = 0.0) -> dict[str, Any]:
    """The fields of the error that a config is refused with."""
    with pytest.raises(EnvironmentFault) as caught:
        ready(config, wait_seconds)
    assert caught.value.code == code, str(caught.value)
    return caught.value.fields


@contextmanager
def another_node(cluster: Any, **arguments: Any) -> Iterator[Any]:
    node = cluster.add_node(num_cpus=2, **arguments)
    try:
        yield node
    finally:
        cluster.remove_node(node)
        wait_until(lambda: len(alive_nodes()) == 2, 90)


@contextmanager
def joining(cluster: Any, folder: Path, *wrapper: str) -> Iterator[Callable[[], None]]:
    """What starts a node from a shell, perhaps by another command; it goes at the end."""
    started: list[subprocess.Popen[bytes]] = []
    ray = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--address={cluster.address}"]

    def start() -> None:
        with (folder / "node.log").open("w") as log:
            command = [*wrapper, *ray, "--num-cpus=2", "--disable-usage-stats"]
            started.append(subprocess.Popen(command, stdout=log, stderr=log))

    try:
        yield start
    finally:
        for node in started:
            node.terminate()
            node.wait(60)
        wait_until(lambda: len(alive_nodes()) == 2, 90)


def test_what_fits_is_checked_and_leaves_nothing_behind(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    for changes in ({"placement": "strict_spread"}, {"num_workers": 4}):
        told = ready(config_of(**changes))
        assert (told.stages, told.events) == ([], [])
    assert not list((tmp_path / "runs").glob("*"))


def test_more_nodes_than_there_are_is_refused(cluster: Any, config_of: Any) -> None:
    asked = refused(config_of(num_workers=3, placement="strict_spread"), "cluster-too-small")
    assert asked == {"workers": 3, "placement": "strict_spread", "nodes": 2, "most_workers": 2}
    assert refused(config_of(num_workers=1, cpus_per_worker=3), "cluster-too-small")["most_workers"] == 0
    assert refused(config_of(num_workers=3, placement="strict_pack"), "cluster-too-small")["most_workers"] == 2


def test_a_node_that_joins_is_waited_for(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    with joining(cluster, tmp_path) as start:
        told = Events(start)
        ready_to_train(config_of(num_workers=3, placement="strict_spread"), 120, told)
        assert told.stages
        assert len(alive_nodes()) == 3


def test_waiting_ends_with_the_error(cluster: Any, config_of: Any) -> None:
    began = time.monotonic()
    assert refused(config_of(num_workers=5), "cluster-too-small", wait_seconds=3)["most_workers"] == 4
    assert time.monotonic() - began >= 3


def test_a_busy_cluster_is_told_and_waited_for(cluster: Any, config_of: Any) -> None:
    import ray

    taking = ray.util.placement_group([{"CPU": 2}], "STRICT_PACK")
    assert taking.wait(120)
    wait_until(lambda: sum(node.free.cpus for node in alive_nodes()) == 2, 90)
    assert len(ready(config_of(num_workers=4)).stages) == 1
    assert refused(config_of(num_workers=4), "cluster-busy", wait_seconds=2)["most_workers"] == 2
    releasing = Events(lambda: ray.util.remove_placement_group(taking))
    ready_to_train(config_of(num_workers=4), 60, releasing)
    assert releasing.stages


def test_a_node_with_another_torch_is_named(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    for name, version in (("torch", "9.9.9"), ("mlflow", "9.8.7")):
        (tmp_path / "old" / f"{name}-{version}.dist-info").mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (tmp_path / "old" / f"{name}-{version}.dist-info" / "METADATA").write_text(metadata)
    with another_node(cluster, env_vars={"PYTHONPATH": str(tmp_path / "old")}) as node:
        (name,) = refused(config_of(num_workers=6), "software-differs")["nodes"]
        assert node.node_id[:8] in name
        shutil.rmtree(tmp_path / "old" / "torch-9.9.9.dist-info")
        assert ready(config_of(num_workers=6)).warnings == ["package-differs"]


def test_a_node_that_does_not_share_the_storage_is_named(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")
    (tmp_path / "runs").mkdir()
    hide = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {tmp_path}/runs && exec "$@"', "sh")
    with joining(cluster, tmp_path, *hide) as start:
        start()
        wait_until(lambda: len(alive_nodes()) == 3, 90)
        assert refused(config_of(num_workers=6), "storage-not-shared")["storage"] == str(tmp_path / "runs")
        assert not list((tmp_path / "runs").glob("*"))


def test_data_that_a_node_lacks(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    data = {"name": "image_folder", "root": str(tmp_path / "photos")}
    (tmp_path / "photos" / "train").mkdir(parents=True)
    missing = refused(config_of(num_workers=4, data=data), "data-missing")["missing"]
    assert missing == [str(tmp_path / "photos" / "val")]


def test_a_node_that_hangs_is_named(cluster: Any, config_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checks, "ANSWER_SECONDS", 3.0)
    with another_node(cluster) as node:
        ready(config_of(num_workers=6))
        raylet = node.all_processes["raylet"][0].process
        raylet.send_signal(signal.SIGSTOP)
        try:
            (name,) = refused(config_of(num_workers=6), "node-silent")["nodes"]
        finally:
            raylet.send_signal(signal.SIGCONT)
        assert node.node_id[:8] in name


def test_what_the_autoscaler_may_add_is_waited_for(
    cluster: Any, config_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an autoscaler that is only said to be there: the test adds the node."""
    from paceline.cluster.nodes import autoscaler_of

    types = {"worker": {"resources": {"CPU": 2}, "max_workers": 2}}
    monkeypatch.setattr(
        waiting_for_resources, "find_autoscaler", lambda nodes: autoscaler_of({"available_node_types": types}, nodes)
    )
    refused(config_of(num_workers=7), "cluster-too-small")
    with joining(cluster, tmp_path) as start:
        told = Events(start)
        ready_to_train(config_of(num_workers=6), 0.0, told)
        assert told.stages
    wait_until(lambda: sum(node.free.cpus for node in alive_nodes()) == 4, 90)  # nothing is held any more


def test_doctor_looks_at_every_node_and_between_them(cluster: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline", "doctor", "--address", cluster.address, "--json"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    done = subprocess.run(
        [*command, "--storage", f"{tmp_path}/runs"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)
    nodes = {node.name for node in alive_nodes()}
    assert {check["node"] for check in checks} == {"", *nodes}
    for name in nodes:
        own = {check["name"] for check in checks if check["node"] == name}
        assert own == {"software", "gpus", "machine", "disk", "network"}
    assert next(check for check in checks if check["name"] == "shared storage")["ok"] is True
    assert next(check for check in checks if check["name"] == "same software")["ok"] is True
    exchanges = [check["values"] for check in checks if check["name"].startswith("all-reduce")]
    assert exchanges
    assert all(values["processes"] == 2 for values in exchanges)
    assert all(values["bus_bytes_per_second"] == values["algorithm_bytes_per_second"] > 0 for values in exchanges)
    assert not (tmp_path / "runs").exists()
