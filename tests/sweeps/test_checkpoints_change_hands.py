"""Checkpoints that are pinned and adopted: whole, kept, linked, and never in place of nothing."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.checkpoint import Snapshot, newest_valid, prune, write_checkpoint
from paceline.engine.manifest import numbered, verify
from paceline.sweeps.search import checkpoints as hands
from paceline.sweeps.search.checkpoints import adopt, is_same, pin


def checkpoint(trial: Path, step: int, weight: float = 1.0) -> Path:
    """A checkpoint of a trial."""
    tensors = {"model": {"weight": torch.full((3,), weight)}}
    return write_checkpoint(trial / "checkpoints", Snapshot(step, tensors, {"position": {"step": step}}))


def names(folder: Path) -> list[str]:
    return [path.name for _, path in numbered(folder)]


def newest(trial: Path) -> Path | None:
    def broken(path: Path, reason: str) -> None:
        pytest.fail(f"{path}: {reason}")

    return newest_valid(trial / "checkpoints", broken)


def test_what_is_pinned_outlives_pruning(tmp_path: Path) -> None:
    pinned = pin(checkpoint(tmp_path, 5), tmp_path / "pinned")
    checkpoint(tmp_path, 6)
    prune(tmp_path / "checkpoints", keep=1)

    assert names(tmp_path / "checkpoints") == ["step-6"]
    assert pinned == tmp_path / "pinned" / "step-5"
    assert verify(pinned) == 5


def test_files_are_linked_where_they_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint(tmp_path, 5)
    pinned = pin(original, tmp_path / "pinned")
    assert pinned is not None
    assert all(os.path.samefile(path, pinned / path.name) for path in original.iterdir())

    def no_links(*args: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    copied = pin(original, tmp_path / "copied")
    assert copied is not None
    assert verify(copied) == 5
    assert not any(os.path.samefile(path, copied / path.name) for path in original.iterdir())


def test_a_half_made_pin_is_made_again(tmp_path: Path) -> None:
    original = checkpoint(tmp_path, 5)
    half = tmp_path / "pinned" / "step-5"
    half.mkdir(parents=True)
    (half / "state.json").write_text("{")
    shutil.copytree(half, half.with_name(".step-5.linking"))

    assert pin(original, half.parent) == half
    assert verify(half) == 5
    assert os.listdir(half.parent) == ["step-5"]


def test_another_checkpoint_of_the_same_step_is_pinned_over_it(tmp_path: Path) -> None:
    pin(checkpoint(tmp_path / "a", 5, 1.0), tmp_path / "pinned")
    other = checkpoint(tmp_path / "b", 5, 2.0)
    pinned = pin(other, tmp_path / "pinned")
    assert pinned is not None
    assert is_same(pinned, other)


def test_a_checkpoint_that_is_gone(tmp_path: Path) -> None:
    assert pin(tmp_path / "checkpoints" / "step-5", tmp_path / "pinned") is None


def test_a_checkpoint_that_goes_while_it_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint(tmp_path, 5)

    def too_late(source: str, target: str) -> None:
        shutil.rmtree(original, ignore_errors=True)
        shutil.copy2(source, target)

    monkeypatch.setattr(hands, "link_or_copy", too_late)
    assert pin(original, tmp_path / "pinned") is None
    assert os.listdir(tmp_path / "pinned") == []


def test_a_full_disk_is_told_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = checkpoint(tmp_path, 5)

    def no_room(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(hands, "link_or_copy", no_room)
    with pytest.raises(OSError, match="No space left"):
        pin(original, tmp_path / "pinned")
    assert os.listdir(tmp_path / "pinned") == []


def test_only_the_newest_pins_stay(tmp_path: Path) -> None:
    for step in (100, 200, 300, 150):  # it went back to the state of another one
        pin(checkpoint(tmp_path, step), tmp_path / "pinned", keep=2)
    assert sorted(names(tmp_path / "pinned")) == ["step-150", "step-300"]


def test_adopting_takes_the_place_of_what_is_there(tmp_path: Path) -> None:
    pinned = pin(checkpoint(tmp_path / "best", 5, 2.0), tmp_path / "best" / "pinned")
    assert pinned is not None
    for step in (4, 5, 9):
        checkpoint(tmp_path / "worst", step)

    assert adopt(pinned, tmp_path / "worst" / "checkpoints")

    found = newest(tmp_path / "worst")
    assert found is not None
    assert is_same(found, pinned)
    assert names(tmp_path / "worst" / "checkpoints") == ["step-5"]
    assert verify(pinned) == 5


def test_adopting_into_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    pinned = pin(checkpoint(tmp_path / "best", 5), tmp_path / "best" / "pinned")
    assert pinned is not None
    assert adopt(pinned, tmp_path / "new" / "checkpoints")
    assert names(tmp_path / "new" / "checkpoints") == ["step-5"]


def test_adopting_the_same_one_does_nothing(tmp_path: Path) -> None:
    pinned = pin(checkpoint(tmp_path / "best", 5), tmp_path / "best" / "pinned")
    assert pinned is not None
    adopt(pinned, tmp_path / "worst" / "checkpoints")
    mark = tmp_path / "worst" / "checkpoints" / "step-5" / "answered.json"
    mark.write_text("{}")

    assert adopt(pinned, tmp_path / "worst" / "checkpoints")
    assert mark.exists()


def test_its_own_older_pin_takes_nothing_from_a_trial(tmp_path: Path) -> None:
    pinned = pin(checkpoint(tmp_path, 5), tmp_path / "pinned")
    assert pinned is not None
    checkpoint(tmp_path, 9)
    assert adopt(pinned, tmp_path / "checkpoints")
    assert names(tmp_path / "checkpoints") == ["step-9", "step-5"]

    shutil.rmtree(tmp_path / "checkpoints")
    assert adopt(pinned, tmp_path / "checkpoints")
    assert names(tmp_path / "checkpoints") == ["step-5"]


def test_a_pin_that_is_gone_leaves_what_is_there(tmp_path: Path) -> None:
    checkpoint(tmp_path / "worst", 5)
    assert not adopt(tmp_path / "best" / "pinned" / "step-5", tmp_path / "worst" / "checkpoints")
    assert newest(tmp_path / "worst") is not None
