"""Checkpoints: whole or set aside, never a bit off, and no reason to end a run."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.manifest import MANIFEST, BrokenCheckpoint, verify
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256
from paceline.engine.unrecorded import UNRECORDED
from support.toys import fit, toy_config


def steps_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_checkpoints_appear_when_asked_for_and_old_ones_go(tmp_path: Path) -> None:
    _, outcome, reporter = fit(toy_config(checkpoint={"every_n_steps": 2, "keep": 2}), checkpoints=tmp_path)
    assert steps_in(tmp_path) == {"step-10", "step-12"}
    assert outcome.checkpoint == str(tmp_path / "step-12")
    assert [details["step"] for kind, details in reporter.events if kind == "checkpoint"] == [2, 4, 6, 8, 10, 12]


def test_by_default_one_an_epoch(tmp_path: Path) -> None:
    fit(toy_config(), checkpoints=tmp_path)
    assert steps_in(tmp_path) == {"step-6", "step-12"}


def test_manifest_lists_every_file_and_nothing_is_pickled(tmp_path: Path) -> None:
    fit(toy_config(), checkpoints=tmp_path)
    folder = tmp_path / "step-12"
    manifest = json.loads((folder / MANIFEST).read_text())
    assert set(manifest["files"]) == steps_in(folder) - {MANIFEST}
    assert all(name.endswith((".safetensors", ".json")) for name in manifest["files"])
    assert manifest["files"]["state.json"]["size_bytes"] == (folder / "state.json").stat().st_size
    assert verify(folder) == 12


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", MANIFEST])
@pytest.mark.parametrize("damage", [flip_a_byte, truncate, remove])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(
    tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    if (damage, name) == (flip_a_byte, MANIFEST):
        pytest.skip("flipping the last bracket is tested as truncation; a byte of white space harms nothing")
    _, whole, _ = fit(toy_config(), checkpoints=tmp_path / "whole")
    folder = tmp_path / "run"
    shutil.copytree(tmp_path / "whole", folder)
    damage(folder / "step-12" / name)
    trainer, outcome, reporter = fit(toy_config(), checkpoints=folder)
    assert len(trainer.state.task.seen) == 6
    assert outcome.weights_sha256 == whole.weights_sha256
    assert "step-12.broken" in steps_in(folder)
    (warning,) = [details for kind, details in reporter.events if kind == "warning"]
    assert (warning["code"], warning["checkpoint"]) == ("broken-checkpoint", "step-12")
    assert name in warning["message"]


def test_verify_names_the_file_and_its_fault(tmp_path: Path, golden: Any) -> None:
    fit(toy_config(), checkpoints=tmp_path)
    flip_a_byte(tmp_path / "step-12" / "model.safetensors")
    truncate(tmp_path / "step-6" / "model.safetensors")
    for step, code in ((12, "wrong-hash"), (6, "wrong-size")):
        with pytest.raises(BrokenCheckpoint) as caught:
            verify(tmp_path / f"step-{step}")
        assert (caught.value.code, caught.value.fields) == (code, {"file": "model.safetensors"})
        golden(re.sub(r"\d+ bytes", "n bytes", str(caught.value)), code)


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
    with pytest.raises(BrokenCheckpoint) as caught:
        verify(tmp_path / "step-12")
    assert caught.value.code == code


def test_a_half_written_checkpoint_is_no_checkpoint(tmp_path: Path) -> None:
    fit(toy_config(trainer__epochs=1), checkpoints=tmp_path)
    shutil.copytree(tmp_path / "step-6", tmp_path / ".step-9.writing")
    trainer = build_trainer(toy_config(), Ranks.current(), MemoryReporter(), tmp_path)
    assert trainer.state.position.step == 6


def test_everything_comes_back(tmp_path: Path) -> None:
    config = toy_config(optimizer={"name": "adamw"}, trainer__precision="32-true")
    trainer, _, _ = fit(config, checkpoints=tmp_path)
    again = build_trainer(config, Ranks.current(), MemoryReporter(), tmp_path)
    assert again.state.position == trainer.state.position
    assert again.state.metrics == trainer.state.metrics
    mine, theirs = again.optimizer.state_dict()["state"], trainer.optimizer.state_dict()["state"]
    for index, entry in theirs.items():
        for key, value in entry.items():
            assert (mine[index][key] == value).all()


def test_metrics_are_safe_before_a_checkpoint_counts(tmp_path: Path) -> None:
    class Watching(MemoryReporter):
        def recorded(self, timeout_seconds: float) -> bool:
            committed.append((self._step, steps_in(tmp_path) if tmp_path.exists() else set()))
            return True

    committed: list[tuple[int, set[str]]] = []
    trainer = build_trainer(toy_config(), Ranks.current(), Watching(), tmp_path)
    trainer.fit()
    assert len(committed) == 2
    assert "step-6" not in committed[0][1]
    assert "step-12" not in committed[1][1]


UNSAFE = [[{"key": "train/loss", "value": 0.5, "step": 5, "timestamp_ms": 1}]]


def test_metrics_that_are_not_safe_are_kept_in_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    reporter = MemoryReporter(unsafe=UNSAFE, stop_at_step=6)
    build_trainer(toy_config(), Ranks.current(), reporter, folder).fit()
    assert [details["code"] for kind, details in reporter.events if kind == "warning"] == ["unrecorded-metrics"]
    assert UNRECORDED in json.loads((folder / "step-6" / "MANIFEST.json").read_text())["files"]
    assert verify(folder / "step-6") == 6
    again = MemoryReporter()
    build_trainer(toy_config(), Ranks.current(), again, folder)
    assert again.unsafe == UNSAFE
    assert again.points == []

    shutil.copytree(folder, tmp_path / "fork" / "checkpoints")
    other = MemoryReporter()
    trainer = build_trainer(toy_config(), Ranks.current(), other, tmp_path / "fork" / "checkpoints")
    assert trainer.state.position.step == 6
    assert other.unsafe == []  # they are another run's


def test_a_checkpoint_whose_metrics_are_safe_has_no_such_file(tmp_path: Path) -> None:
    fit(toy_config(), checkpoints=tmp_path)
    assert not list(tmp_path.rglob(UNRECORDED))


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
