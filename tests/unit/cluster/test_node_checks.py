"""Questions to a node before workers go there, and faults in its answers."""

import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import ray
import torch

from paceline.cluster import node_checks, node_probe
from paceline.cluster.node_checks import (
    answers_in,
    data_fault,
    dependencies,
    differences,
    silence_fault,
    software_fault,
)
from paceline.cluster.node_probe import Answers, Questions, answer, written_name
from paceline.cluster.nodes import Node
from paceline.cluster.placement import Room
from paceline.cluster.waiting_for_resources import places_of
from paceline.config.loading import load_config
from paceline.errors import EnvironmentFault
from support.golden import Golden
from support.refusals import refused

ROOM = Room(2, 0)
ONE, TWO = (Node(name, f"10.0.0.{name}", ROOM, ROOM, name=f"10.0.0.{name}") for name in "12")
VERSIONS = {"ray": "2.60.0", "torch": "2.15.0", "mlflow": "3.17.2"}
OWN = Answers("3.11", VERSIONS, "CUDA 13.0")


@pytest.mark.parametrize(
    "other",
    [
        Answers("3.12", VERSIONS),
        Answers("3.11", {**VERSIONS, "torch": "2.14.1"}),
        Answers("3.11", {**VERSIONS, "ray": "2.59.0"}),
        Answers("3.11", {**VERSIONS, "torch": "missing"}),
    ],
)
def test_a_node_with_other_software_is_shown_beside_this_process(other: Answers) -> None:
    heading, *table, _ = software_fault(OWN, {ONE: OWN, TWO: other}).splitlines()
    rows = [line.split() for line in table]
    assert "1 node of 2" in heading
    assert rows[0] == ["python", "ray", "torch"]
    assert rows[1][-3:] == [OWN.python, *list(VERSIONS.values())[:2]]
    assert rows[2] == ["10.0.0.2", other.python, other.versions["ray"], other.versions["torch"]]
    assert len(rows) == 3


def test_other_packages_may_differ_but_are_reported(golden: Golden) -> None:
    other = Answers("3.11", {**VERSIONS, "mlflow": "3.16.0"}, "cpu")
    assert software_fault(OWN, {ONE: OWN, TWO: other}) == ""
    differing = differences(OWN, {ONE: OWN, TWO: other})
    assert len(differing) == 2
    golden("\n".join(differing))
    assert differences(OWN, {ONE: OWN}) == []


def test_silent_nodes_and_missing_data_are_named(golden: Golden) -> None:
    golden(silence_fault({ONE: "", TWO: "The node is dead"}, 30), "silent")
    golden(data_fault({ONE: OWN, TWO: Answers("3.11", missing=("/data/train",))}), "data")
    assert data_fault({ONE: OWN}) == ""
    refusal = refused(EnvironmentFault, answers_in, {ONE: OWN, TWO: TimeoutError()})
    assert (refusal.code, refusal.fields["nodes"]) == ("node-silent", ["10.0.0.2"])


def test_asking_for_the_time_limit_joins_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(ray, "init", lambda *_, **__: calls.append("it connects to a cluster"))
    assert node_checks.answer_seconds() == node_checks.ANSWER_SECONDS
    assert calls == []


def test_this_process_answers_for_itself() -> None:
    told = answer(Questions(dependencies()))
    assert told.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert {"torch", "ray", "mlflow", "safetensors"} <= told.versions.keys()
    assert "pytest" not in told.versions
    assert told.versions["ray"] == version("ray")
    assert told.build == (f"CUDA {torch.version.cuda}" if torch.version.cuda else "cpu")


def test_a_shared_folder_gets_a_file_of_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token")
    assert answer(Questions((), str(tmp_path), "token"), "n1").storage_fault == ""
    assert (tmp_path / written_name("token", "n1")).read_text() == "token"


def test_a_folder_that_is_not_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    monkeypatch.setattr(node_probe, "SIGHT_SECONDS", 0.02)
    gone = answer(Questions((), f"{tmp_path}/none", "token")).storage_fault
    empty = answer(Questions((), str(tmp_path), "token")).storage_fault
    (tmp_path / "token").write_text("another one's")
    assert answer(Questions((), str(tmp_path), "token")).storage_fault == empty != gone
    golden(f"{gone}\n{empty}")
    assert [file.name for file in tmp_path.iterdir()] == ["token"]  # nothing of ours is written where it is in doubt


def test_the_file_goes_whatever_happens(tmp_path: Path) -> None:
    storage = tmp_path / "runs"

    def fail() -> None:
        with node_checks.file_in(str(storage)) as token:
            assert (storage / token).read_text() == token
            (storage / written_name(token, "n1")).write_text(token)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not storage.exists()


def test_places_of_the_data(tmp_path: Path) -> None:
    def places(data: str) -> list[str]:
        (tmp_path / "config.yaml").write_text(f"{{name: x, model: {{name: cnn}}, data: {data}}}")
        return places_of(load_config(tmp_path / "config.yaml"))

    assert places("{name: mnist5k}") == []
    assert places("{name: image_folder, root: /data/photos}") == ["/data/photos/train", "/data/photos/val"]
    assert places("{name: MNIST, root: /data/digits}") == []
    assert places("{name: MNIST, root: /data/digits, download: false}") == ["/data/digits"]
    (tmp_path / "own.py").write_text("def data(**args): ...")
    own = f"{{path: 'own:data', args: {{a: {tmp_path}, b: {{c: [/no/such/place, 'text', {tmp_path}/own.py]}}}}}}"
    assert places(own) == [str(tmp_path), f"{tmp_path}/own.py"]
    (tmp_path / "config.yaml").write_text(
        "{name: x, task: {name: language_modeling}, model: {name: gpt}, data: {name: text_file, file: /data/t.txt}}"
    )
    assert places_of(load_config(tmp_path / "config.yaml")) == ["/data/t.txt"]
