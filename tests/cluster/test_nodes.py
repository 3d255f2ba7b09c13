"""Clusters of several nodes on one machine: what is refused, waited for, and found out about nodes. Slow."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import node_checks, room
from paceline.cluster.listener import SilentListener
from paceline.cluster.nodes import alive_nodes
from paceline.cluster.readiness import ready_to_train
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import load_config
from paceline.errors import EnvironmentFault

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

CONFIG = """
name: nodes
model: {name: mlp, in_features: 4, num_classes: 2, hidden: [4]}
data: {name: synthetic, shape: [4], num_classes: 2, num_samples: 840, global_batch_size: 420}
scaling: {num_workers: 2, use_gpu: false}
"""


class Told(SilentListener):
    """Keeps what it is told, and does something when it is told the first stage."""

    def __init__(self, at_first: Callable[[], object] = lambda: None) -> None:
        self.stages: list[str] = []
        self.warnings: list[str] = []
        self._at_first = at_first

    def stage(self, text: str) -> None:
        self.stages.append(text)
        if len(self.stages) == 1:
            self._at_first()

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        self.warnings.append(str(details["message"]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with two cores each; this process is connected to the first."""
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    from ray.cluster_utils import Cluster

    from paceline.cluster.session import connected

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


def ready(config: ExperimentConfig, wait_seconds: float = 0.0) -> Told:
    told = Told()
    ready_to_train(config, wait_seconds, told)
    return told


@contextmanager
def another_node(cluster: Any, **arguments: Any) -> Iterator[Any]:
    node = cluster.add_node(num_cpus=2, **arguments)
    try:
        yield node
    finally:
        cluster.remove_node(node)
        until(lambda: len(alive_nodes()) == 2)


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
        until(lambda: len(alive_nodes()) == 2)


def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come to be"
        time.sleep(0.1)


def test_what_fits_is_checked_and_leaves_nothing_behind(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    ready(config_of(placement="strict_spread"))
    began = time.monotonic()
    told = ready(config_of(num_workers=4))
    assert time.monotonic() - began < 10, "the second time the nodes have a process for it"
    assert (told.stages, told.warnings) == ([], [])
    assert not list((tmp_path / "runs").glob("*"))


def test_more_nodes_than_there_are_is_refused_at_once(cluster: Any, config_of: Any) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentFault) as caught:
        ready(config_of(num_workers=3, placement="strict_spread"))
    assert time.monotonic() - began < 30
    text = str(caught.value)
    assert "3 workers with 1 CPU core each, each on a node of its own (scaling.placement strict_spread)" in text
    assert "2 nodes with 2 CPU cores each" in text
    assert "lower scaling.num_workers to 2 or set scaling.placement=pack" in text
    with pytest.raises(EnvironmentFault, match=r"no node can hold a worker, so lower scaling.cpus_per_worker"):
        ready(config_of(num_workers=1, cpus_per_worker=3))
    with pytest.raises(EnvironmentFault, match=r"all on one node .*: lower scaling.num_workers to 2 or set"):
        ready(config_of(num_workers=3, placement="strict_pack"))


def test_a_node_that_joins_is_waited_for(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    with joining(cluster, tmp_path) as start:
        told = Told(start)
        ready_to_train(config_of(num_workers=3, placement="strict_spread"), 120, told)
        assert told.stages[0].startswith("waiting for nodes to join: scaling asks for 3 workers")
        assert len(alive_nodes()) == 3


def test_waiting_ends_with_the_error(cluster: Any, config_of: Any) -> None:
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=r"after 3 s of waiting, scaling asks for 5 workers.*lower .* to 4"):
        ready(config_of(num_workers=5), wait_seconds=3)
    assert 3 <= time.monotonic() - began < 30


def test_what_others_have_taken_is_told_and_waited_for(cluster: Any, config_of: Any) -> None:
    import ray

    taking = ray.util.placement_group([{"CPU": 2}], "STRICT_PACK")
    assert taking.wait(30)
    until(lambda: sum(node.free.cpus for node in alive_nodes()) == 2)
    told = ready(config_of(num_workers=4))
    assert len(told.stages) == 1
    assert "the cluster is busy" in told.stages[0]
    assert "--wait SECONDS" in told.stages[0]
    with pytest.raises(EnvironmentFault, match=r"after 2 s of waiting, the cluster is busy.*num_workers to 2"):
        ready(config_of(num_workers=4), wait_seconds=2)
    releasing = threading.Timer(2, ray.util.remove_placement_group, [taking])
    releasing.start()
    told = ready(config_of(num_workers=4), wait_seconds=60)
    assert told.stages[0].startswith("waiting: the cluster is busy")


def test_a_node_with_another_torch_is_named(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    for name, version in (("torch", "9.9.9"), ("mlflow", "9.8.7")):
        (tmp_path / "old" / f"{name}-{version}.dist-info").mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (tmp_path / "old" / f"{name}-{version}.dist-info" / "METADATA").write_text(metadata)
    with another_node(cluster, env_vars={"PYTHONPATH": str(tmp_path / "old")}) as node:
        with pytest.raises(EnvironmentFault) as caught:
            ready(config_of(num_workers=6))
        row = next(line for line in str(caught.value).splitlines() if "9.9.9" in line)
        assert node.node_id[:8] in row
        shutil.rmtree(tmp_path / "old" / "torch-9.9.9.dist-info")
        (warning,) = ready(config_of(num_workers=6)).warnings
        assert "mlflow is" in warning
        assert "9.8.7 on" in warning


def test_a_node_that_does_not_share_the_storage_is_named(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")
    (tmp_path / "runs").mkdir()
    hide = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {tmp_path}/runs && exec "$@"', "sh")
    with joining(cluster, tmp_path, *hide) as start:
        start()
        until(lambda: len(alive_nodes()) == 3)
        with pytest.raises(EnvironmentFault, match=r"not the same place on all nodes: .*another folder") as caught:
            ready(config_of(num_workers=6))
        assert str(caught.value).count("another folder") == 1
        assert not list((tmp_path / "runs").glob("*"))


def test_data_that_a_node_lacks(cluster: Any, config_of: Any, tmp_path: Path) -> None:
    data = {"name": "image_folder", "root": str(tmp_path / "photos")}
    (tmp_path / "photos" / "train").mkdir(parents=True)
    with pytest.raises(EnvironmentFault, match=r"data: .*/photos/val is not there on .* and "):
        ready(config_of(num_workers=4, data=data))


def test_a_node_that_hangs_is_named(cluster: Any, config_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_checks, "ANSWER_SECONDS", 3.0)
    with another_node(cluster) as node:
        ready(config_of(num_workers=6))
        raylet = node.all_processes["raylet"][0].process
        raylet.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(EnvironmentFault) as caught:
                ready(config_of(num_workers=6))
        finally:
            raylet.send_signal(signal.SIGCONT)
        assert f"(node {node.node_id[:8]}): no answer within 3 s" in str(caught.value)
        assert "1 node cannot run anything" in str(caught.value)


def test_what_the_autoscaler_may_add_is_waited_for(
    cluster: Any, config_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an autoscaler that is only said to be there: the test adds the node."""
    from paceline.cluster.autoscaling import autoscaler_of

    types = {"worker": {"resources": {"CPU": 2}, "max_workers": 2}}
    monkeypatch.setattr(room, "find_autoscaler", lambda nodes: autoscaler_of({"available_node_types": types}, nodes))
    with pytest.raises(EnvironmentFault, match=r"the autoscaler may add 1 node \(worker: 1 with 2 CPU cores\)"):
        ready(config_of(num_workers=7))
    with joining(cluster, tmp_path) as start:
        told = Told(start)
        ready_to_train(config_of(num_workers=6), 0.0, told)
        assert told.stages[0].startswith("waiting for 1 node more (1 worker), the autoscaler may add 1 node")
    until(lambda: sum(node.free.cpus for node in alive_nodes()) == 4)  # nothing is held any more


def test_doctor_looks_at_every_node_and_between_them(cluster: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli", "doctor", "--address", cluster.address, "--json"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--storage", f"{tmp_path}/runs"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    took = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads(done.stdout)
    nodes = {node.name for node in alive_nodes()}
    assert {check["node"] for check in checks} == {"", *nodes}
    for name in nodes:
        own = {check["name"]: check["detail"] for check in checks if check["node"] == name}
        assert own.keys() == {"software", "gpus", "machine", "disk", "network"}
        assert "Ray 2." in own["software"]
        assert "GiB free in" in own["disk"]
        assert "CPU cores" in own["machine"]
    assert next(check for check in checks if check["name"] == "shared storage")["ok"] is True
    assert next(check for check in checks if check["name"] == "same software")["ok"] is True
    exchanges = [check["values"] for check in checks if check["name"].startswith("all-reduce")]
    assert exchanges
    assert all(values["processes"] == 2 for values in exchanges)
    assert all(values["bus_bytes_per_second"] == values["algorithm_bytes_per_second"] > 0 for values in exchanges)
    assert not (tmp_path / "runs").exists()
    assert took < 120
