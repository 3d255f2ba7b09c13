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


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("unpickled"),)


def in_file(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def flip_a_bit(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def in_manifest(**changes: Any) -> Callable[[Path], None]:
    return in_file(MANIFEST, lambda data: json.dumps({**json.loads(data), **changes}).encode())


def name_a_file_elsewhere(folder: Path) -> None:
    files = json.loads((folder / MANIFEST).read_text())["files"]
    in_manifest(files={**files, "../step-6/state.json": files["state.json"]})(folder)


def pickled(name: str) -> Callable[[Path], None]:
    """The manifest vouches for the bytes; whoever can write them can write a manifest, too."""

    def damage(folder: Path) -> None:
        (folder / name).write_bytes(pickle.dumps(Payload()))
        write_manifest(folder, 12)

    return damage


def take_the_state_of_another_step(folder: Path) -> None:
    in_file("state.json", lambda data: data.replace(b'"step": 12', b'"step": 11'))(folder)
    write_manifest(folder, 12)


DAMAGES: dict[str, tuple[Callable[[Path], None], str | None, str]] = {
    "weights changed": (in_file("model.safetensors", flip_a_bit), "model.safetensors", "wrong-hash"),
    "optimizer changed": (in_file("optimizer.safetensors", flip_a_bit), "optimizer.safetensors", "wrong-hash"),
    "state changed": (in_file("state.json", flip_a_bit), "state.json", "wrong-hash"),
    "weights short": (in_file("model.safetensors", lambda data: data[:-1]), "model.safetensors", "wrong-size"),
    "manifest short": (in_file(MANIFEST, lambda data: data[:-1]), MANIFEST, "unreadable-file"),
    "no optimizer": (
        lambda folder: (folder / "optimizer.safetensors").unlink(),
        "optimizer.safetensors",
        "unreadable-file",
    ),
    "no manifest": (lambda folder: (folder / MANIFEST).unlink(), MANIFEST, "unreadable-file"),
    "no files named": (in_manifest(files={}), None, "incomplete-manifest"),
    "files a number": (in_manifest(files=5), MANIFEST, "unreadable-file"),
    "step a text": (in_manifest(step="x"), MANIFEST, "unreadable-file"),
    "step infinite": (in_manifest(step=1e999), MANIFEST, "unreadable-file"),
    "a file elsewhere": (name_a_file_elsewhere, MANIFEST, "unreadable-file"),
    "unnamed tensors": (lambda folder: (folder / "component.mine.safetensors").touch(), None, "incomplete-manifest"),
    "another step": (take_the_state_of_another_step, "state.json", "wrong-format"),
    **{
        f"pickle as {name}": (pickled(name), name, "wrong-format")
        for name in (
            "model.safetensors",
            "optimizer.safetensors",
            "component.mine.safetensors",
            "state.json",
            UNRECORDED,
        )
    },
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The checkpoints of a finished run, and the hash of its weights."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, fit(toy_config(), checkpoints=folder)[1].weights_sha256


def test_what_killed_saves_have_left_is_removed_by_the_next_save(finished: tuple[Path, str], tmp_path: Path) -> None:
    runs = shutil.copytree(finished[0], tmp_path / "checkpoints")
    for step in (3, 9, 999):
        shutil.copytree(runs / "step-12", runs / f".step-{step}.writing")
    fit(toy_config(trainer__epochs=toy_config().trainer.epochs + 1), checkpoints=runs)
    assert not list(runs.glob(".step-*"))


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(
    case: str, finished: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Any
) -> None:
    damage, name, code = DAMAGES[case]
    runs = shutil.copytree(finished[0], tmp_path / "checkpoints")
    shutil.copytree(runs / "step-12", runs / ".step-9.writing")  # a half-written one is none
    monkeypatch.chdir(tmp_path)
    damage(runs / "step-12")
    refusal = refused(BrokenCheckpoint, verify, runs / "step-12")
    assert (refusal.code, refusal.fields.get("file")) == (code, name)
    if case.startswith("weights"):
        golden(re.sub(r"\d+ bytes", "n bytes", str(refusal)))
    trainer, outcome, reporter = fit(toy_config(), checkpoints=runs)
    assert len(trainer.state.task.seen) == 6
    assert outcome.weights_sha256 == finished[1]
    assert "step-12.broken" in steps_in(runs)
    (warning,) = [details for kind, details in reporter.events if kind == "warning"]
    assert (warning["code"], warning["checkpoint"]) == ("broken-checkpoint", "step-12")
    assert (name or "") in warning["message"]
    assert not Path("unpickled").exists()


def test_the_pickles_above_would_leave_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Payload()))
    assert Path("unpickled").exists()


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
