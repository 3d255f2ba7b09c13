"""Checkpoints: whole or set aside, never a bit off, and no reason to end a run."""

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.manifest import MANIFEST, BrokenCheckpoint, verify, write_manifest
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256
from paceline.engine.unrecorded import UNRECORDED
from support.refusals import refused
from support.toys import built, fit, toy_config


def steps_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_checkpoints_appear_when_asked_for_and_old_ones_go(tmp_path: Path) -> None:
    _, outcome, reporter = fit(toy_config(checkpoint={"every_n_steps": 2, "keep": 2}), checkpoints=tmp_path)
    assert steps_in(tmp_path) == {"step-10", "step-12"}
    assert outcome.checkpoint == str(tmp_path / "step-12")
    assert [details["step"] for kind, details in reporter.events if kind == "checkpoint"] == [2, 4, 6, 8, 10, 12]


def test_manifest_lists_every_file_and_nothing_is_pickled(tmp_path: Path) -> None:
    fit(toy_config(), checkpoints=tmp_path)
    assert steps_in(tmp_path) == {"step-6", "step-12"}  # by default one an epoch
    folder = tmp_path / "step-12"
    manifest = json.loads((folder / MANIFEST).read_text())
    assert set(manifest["files"]) == steps_in(folder) - {MANIFEST}
    assert UNRECORDED not in manifest["files"]
    assert all(name.endswith((".safetensors", ".json")) for name in manifest["files"])
    assert manifest["files"]["state.json"]["size_bytes"] == (folder / "state.json").stat().st_size
    assert verify(folder) == 12


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = [
    (flip_a_byte, "model.safetensors", "wrong-hash"),
    (flip_a_byte, "optimizer.safetensors", "wrong-hash"),
    (flip_a_byte, "state.json", "wrong-hash"),
    (truncate, "model.safetensors", "wrong-size"),
    (truncate, MANIFEST, "unreadable-file"),
    (Path.unlink, "optimizer.safetensors", "unreadable-file"),
    (Path.unlink, MANIFEST, "unreadable-file"),
]


@pytest.mark.parametrize(("damage", "name", "code"), DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(
    tmp_path: Path, damage: Callable[[Path], None], name: str, code: str, golden: Any
) -> None:
    _, whole, _ = fit(toy_config(), checkpoints=tmp_path)
    shutil.copytree(tmp_path / "step-12", tmp_path / ".step-9.writing")  # a half-written one is none
    damage(tmp_path / "step-12" / name)
    refusal = refused(BrokenCheckpoint, verify, tmp_path / "step-12")
    assert (refusal.code, refusal.fields["file"]) == (code, name)
    if name == "model.safetensors":
        golden(re.sub(r"\d+ bytes", "n bytes", str(refusal)))
    trainer, outcome, reporter = fit(toy_config(), checkpoints=tmp_path)
    assert len(trainer.state.task.seen) == 6
    assert outcome.weights_sha256 == whole.weights_sha256
    assert "step-12.broken" in steps_in(tmp_path)
    (warning,) = [details for kind, details in reporter.events if kind == "warning"]
    assert (warning["code"], warning["checkpoint"]) == ("broken-checkpoint", "step-12")
    assert name in warning["message"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"files": {}}, "incomplete-manifest"),
        ({"files": 5}, "unreadable-file"),
        ({"step": "x"}, "unreadable-file"),
        ({"step": 1e999}, "unreadable-file"),
    ],
)
def test_a_manifest_that_is_none_makes_a_broken_checkpoint(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    fit(toy_config(), checkpoints=tmp_path)
    file = tmp_path / "step-12" / "MANIFEST.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert refused(BrokenCheckpoint, verify, tmp_path / "step-12").code == code


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def forge(folder: Path, change: Callable[[Path], None]) -> None:
    """Change a checkpoint, and write the manifest of it again."""
    change(folder)
    write_manifest(folder, int(folder.name.removeprefix("step-")))


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("model.safetensors", "wrong-format"),
        ("optimizer.safetensors", "wrong-format"),
        ("component.mine.safetensors", "wrong-format"),
        ("state.json", "wrong-format"),
        (UNRECORDED, "wrong-format"),
    ],
)
def test_a_pickle_with_a_forged_manifest_is_set_aside_and_never_read(tmp_path: Path, name: str, code: str) -> None:
    """The manifest vouches for the bytes; whoever can write them can write a manifest, too."""
    runs = tmp_path / "checkpoints"
    _, whole, _ = fit(toy_config(), checkpoints=runs)
    payload = pickle.dumps(Payload(tmp_path / "unpickled"))
    forge(runs / "step-12", lambda folder: (folder / name).write_bytes(payload) and None)
    refusal = refused(BrokenCheckpoint, verify, runs / "step-12")
    assert (refusal.code, refusal.fields["file"]) == (code, name)
    trainer, outcome, reporter = fit(toy_config(), checkpoints=runs)
    assert len(trainer.state.task.seen) == 6
    assert outcome.weights_sha256 == whole.weights_sha256
    assert "step-12.broken" in steps_in(runs)
    assert [details["code"] for kind, details in reporter.events if kind == "warning"] == ["broken-checkpoint"]
    assert not (tmp_path / "unpickled").exists()
    pickle.loads(payload)
    assert (tmp_path / "unpickled").exists(), "the payload is harmless"


def put_tensors_beside(folder: Path) -> None:
    (folder / "component.mine.safetensors").write_bytes(b"anything")


def name_a_file_elsewhere(folder: Path) -> None:
    file = folder / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["files"]["../step-6/state.json"] = manifest["files"]["state.json"]
    file.write_text(json.dumps(manifest))


def take_the_state_of_another_step(folder: Path) -> None:
    state = json.loads((folder / "state.json").read_text())
    state["position"]["step"] = 11
    (folder / "state.json").write_text(json.dumps(state))
    write_manifest(folder, 12)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (put_tensors_beside, "incomplete-manifest"),
        (name_a_file_elsewhere, "unreadable-file"),
        (take_the_state_of_another_step, "wrong-format"),
    ],
)
def test_what_the_manifest_does_not_vouch_for_is_not_read(
    tmp_path: Path, damage: Callable[[Path], None], code: str
) -> None:
    fit(toy_config(), checkpoints=tmp_path)
    damage(tmp_path / "step-12")
    assert refused(BrokenCheckpoint, verify, tmp_path / "step-12").code == code


def test_metrics_are_safe_before_a_checkpoint_counts(tmp_path: Path) -> None:
    class Watching(MemoryReporter):
        def recorded(self, timeout_seconds: float) -> bool:
            committed.append((self._step, steps_in(tmp_path) if tmp_path.exists() else set()))
            return True

    committed: list[tuple[int, set[str]]] = []
    fit(toy_config(), checkpoints=tmp_path, reporter=Watching())
    assert len(committed) == 2
    assert "step-6" not in committed[0][1]
    assert "step-12" not in committed[1][1]


UNSAFE = [[{"key": "train/loss", "value": 0.5, "step": 5, "timestamp_ms": 1}]]


def test_metrics_that_are_not_safe_are_kept_in_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    *_, reporter = fit(toy_config(), checkpoints=folder, reporter=MemoryReporter(unsafe=UNSAFE, stop_at_step=6))
    assert [details["code"] for kind, details in reporter.events if kind == "warning"] == ["unrecorded-metrics"]
    assert UNRECORDED in json.loads((folder / "step-6" / "MANIFEST.json").read_text())["files"]
    assert verify(folder / "step-6") == 6
    again = MemoryReporter()
    built(toy_config(), folder, again)
    assert again.unsafe == UNSAFE
    assert again.points == []

    shutil.copytree(folder, tmp_path / "fork" / "checkpoints")
    other = MemoryReporter()
    trainer = built(toy_config(), tmp_path / "fork" / "checkpoints", other)
    assert trainer.state.position.step == 6
    assert other.unsafe == []  # they are another run's


def test_weights_hash_sees_names_shapes_and_bits_but_no_wrapper() -> None:
    torch.manual_seed(0)
    state = {"a.weight": torch.randn(2, 3), "b.bias": torch.randn(4)}
    digest = weights_sha256(state)
    assert weights_sha256(dict(reversed(state.items()))) == digest
    assert weights_sha256({f"module._orig_mod.{name}": tensor for name, tensor in state.items()}) == digest
    assert weights_sha256({**state, "a.weight": state["a.weight"].reshape(3, 2)}) != digest
    assert weights_sha256({"a.weight": state["a.weight"], "c.bias": state["b.bias"]}) != digest
    changed = state["b.bias"].clone()
    changed.view(torch.int32)[0] ^= 1
    assert weights_sha256({**state, "b.bias": changed}) != digest
