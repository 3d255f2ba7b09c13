"""Checkpoints that a trial pins and another one adopts: whole, kept, linked, and never in place of nothing."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from paceline.engine.checkpoint_files import Snapshot, prune, write_checkpoint
from paceline.engine.manifest import numbered, verify
from paceline.sweeps.search import trainable as exchange
from paceline.sweeps.search.trainable import adopt, is_same, pin
from support.cluster.coordinators import no_space


def checkpoint(trial: Path, step: int, weight: float = 1.0) -> Path:
    """A checkpoint of a trial."""
    tensors = {"model": {"weight": torch.full((3,), weight)}}
    return write_checkpoint(trial / "checkpoints", Snapshot(step, tensors, {"position": {"step": step}}))


def pinned(trial: Path, step: int, weight: float = 1.0) -> Path:
    """A pinned checkpoint of a trial."""
    found = pin(checkpoint(trial, step, weight), trial / "pinned")
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return [path.name for _, path in numbered(folder)]


def test_pin_is_linked_where_it_can_be_and_outlives_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint(tmp_path, 5)

    def shares_files(pinned: Path | None) -> bool:
        assert pinned is not None
        assert verify(pinned) == 5
        return all(os.path.samefile(path, pinned / path.name) for path in original.iterdir())

    found = pin(original, tmp_path / "pinned")
    assert found == tmp_path / "pinned" / "step-5"
    assert shares_files(found)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_space)
        assert not shares_files(pin(original, tmp_path / "copied"))
    checkpoint(tmp_path, 6)
    prune(tmp_path / "checkpoints", keep=1)
    assert names(tmp_path / "checkpoints") == ["step-6"]
    assert verify(found) == 5


def test_half_made_pin_and_one_of_another_checkpoint_are_replaced(tmp_path: Path) -> None:
    half = tmp_path / "pinned" / "step-5"
    half.mkdir(parents=True)
    (half / "state.json").write_text("{")
    shutil.copytree(half, half.with_name(".step-5.linking"))
    for trial, weight in (("a", 1.0), ("b", 2.0)):
        original = checkpoint(tmp_path / trial, 5, weight)
        assert pin(original, half.parent) == half
        assert verify(half) == 5
        assert is_same(half, original)
        assert os.listdir(half.parent) == ["step-5"]


def test_checkpoint_that_goes_is_not_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pin(tmp_path / "checkpoints" / "step-5", tmp_path / "pinned") is None
    original = checkpoint(tmp_path, 5)

    def too_late(source: str, target: str) -> None:
        shutil.rmtree(original, ignore_errors=True)
        shutil.copy2(source, target)

    monkeypatch.setattr(exchange, "link_or_copy", too_late)
    assert pin(original, tmp_path / "pinned") is None
    assert os.listdir(tmp_path / "pinned") == []


def test_full_disk_leaves_no_pin_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint(tmp_path, 5)
    monkeypatch.setattr(exchange, "link_or_copy", no_space)
    with pytest.raises(OSError, match="No space left"):
        pin(original, tmp_path / "pinned")
    assert os.listdir(tmp_path / "pinned") == []


def test_only_the_newest_pins_stay(tmp_path: Path) -> None:
    for step in (100, 200, 300, 150):  # it went back to the checkpoint of another one
        pin(checkpoint(tmp_path, step), tmp_path / "pinned", keep=2)
    assert sorted(names(tmp_path / "pinned")) == ["step-150", "step-300"]


def test_adopted_checkpoint_replaces_the_trials_own(tmp_path: Path) -> None:
    best = pinned(tmp_path / "best", 5, 2.0)
    for step in (4, 5, 9):
        checkpoint(tmp_path / "worst", step)
    for trial in ("worst", "new"):
        own = tmp_path / trial / "checkpoints"
        assert adopt(best, own)
        assert names(own) == ["step-5"]
        assert verify(own / "step-5") == verify(best) == 5
        assert is_same(own / "step-5", best)
    (own / "step-5" / "answered.json").write_text("{}")
    assert adopt(best, own)  # again, which changes nothing
    assert (own / "step-5" / "answered.json").exists()


def test_trials_own_older_pin_takes_nothing_from_it(tmp_path: Path) -> None:
    own = pinned(tmp_path, 5)
    checkpoint(tmp_path, 9)
    assert adopt(own, tmp_path / "checkpoints")
    assert names(tmp_path / "checkpoints") == ["step-9", "step-5"]
    shutil.rmtree(tmp_path / "checkpoints")
    assert adopt(own, tmp_path / "checkpoints")
    assert names(tmp_path / "checkpoints") == ["step-5"]


def test_pin_that_is_gone_leaves_the_trials_own(tmp_path: Path) -> None:
    checkpoint(tmp_path / "worst", 5)
    assert not adopt(tmp_path / "best" / "pinned" / "step-5", tmp_path / "worst" / "checkpoints")
    assert names(tmp_path / "worst" / "checkpoints") == ["step-5"]
