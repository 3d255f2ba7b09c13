"""Checkpoints of `fsdp`: every rank copies and writes its own rows, and the files are those of one process."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors import safe_open

from paceline.engine.build import build_trainer
from paceline.engine.checkpoint_files import read_checkpoint
from paceline.engine.dist_context import DistContext
from paceline.engine.initial_weights import read_weights
from paceline.engine.layout import copied
from paceline.engine.manifest import BrokenCheckpoint, verify
from paceline.engine.rebuilding import evaluated_weights
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256
from support.ranks import STILL_RUNNING, end_ranks, run_ranks
from support.spread import blocks
from support.toys import net_with_dropout_and_norm, toy_config

Tensors = dict[str, dict[str, torch.Tensor]]
ODD_WIDTH = 7
"""Not divisible by the number of ranks, so that the last one has fewer rows than the others, or none."""


def odd() -> torch.nn.Module:
    return blocks(ODD_WIDTH)


def wide() -> torch.nn.Module:
    return blocks(128)


def fsdp_config(ranks: DistContext, **overrides: Any) -> Any:
    defaults: dict[str, Any] = {
        "model__path": odd,
        "optimizer": {"name": "adamw", "lr": 0.01},
        "callbacks": [{"name": "ema"}],
        "scaling__num_workers": ranks.world_size,
        "parallel__strategy": "fsdp" if ranks.world_size > 1 else "ddp",
    }
    return toy_config(**{**defaults, **overrides})


def gathered(trainer: Any) -> Tensors:
    """The whole state on rank 0, without a file."""
    tensors = trainer.state.tensors()
    average = next(each for each in trainer.callbacks if type(each).__name__ == "EMA").state_dict()["average"]
    whole = trainer.state.layout.collect({f"average.{name}": tensor for name, tensor in average.items()})
    return {file: part for file, part in {**tensors, "component.callback.ema": whole}.items() if part}


def require_equal(found: Mapping[str, Mapping[str, torch.Tensor]], expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for file, tensors in found.items():
        assert tensors.keys() == expected[file].keys()
        for name, tensor in tensors.items():
            assert tensor.dtype == expected[file][name].dtype, name
            assert torch.equal(tensor, expected[file][name]), name


def save(ranks: DistContext, folder: Path, **overrides: Any) -> Tensors:
    """Train, and return the final state."""
    trainer = build_trainer(fsdp_config(ranks, **overrides), ranks, MemoryReporter(), folder)
    trainer.fit()
    return gathered(trainer)


def load(ranks: DistContext, folder: Path, **overrides: Any) -> Tensors:
    """Return the state that a run begins with."""
    trainer = build_trainer(fsdp_config(ranks, **overrides), ranks, MemoryReporter(), folder)
    assert trainer.checkpointer.resumed_from is not None
    state = gathered(trainer)
    trainer.close()
    return state


# Each rank's share


def copied_bytes(ranks: DistContext, folder: Path) -> int:
    """Bytes that this rank copies to the CPU for one checkpoint."""
    config = fsdp_config(ranks, model__path=wide, trainer__max_steps=1)
    trainer = build_trainer(config, ranks, MemoryReporter(), folder)
    trainer.open()
    next(trainer.steps())
    sizes = []

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return copied(tensor)

    with patch("paceline.engine.fsdp.copied", counted):
        trainer.save()
    trainer.checkpointer.finish()
    trainer.close()
    return sum(sizes)


def test_a_rank_copies_no_more_than_its_share(tmp_path: Path) -> None:
    shares = run_ranks(copied_bytes, 2, tmp_path)
    (folder,) = tmp_path.glob("step-*")
    files = read_checkpoint(folder).tensors.values()
    whole = sum(tensor.numel() * tensor.element_size() for tensors in files for tensor in tensors.values())
    assert sum(shares) == whole
    assert max(shares) < 0.52 * whole


class Owners:
    """Counts the bytes of copies that are alive at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = copied(tensor)
        size = copy.numel() * copy.element_size()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(copy, self._release, size)
        return copy

    def _release(self, size: int) -> None:
        self.now -= size


def hashed(ranks: DistContext) -> tuple[str, str, int, int]:
    """The hash of the weights from slices and of the whole weights, the most bytes held for it, and all bytes."""
    trainer = build_trainer(fsdp_config(ranks, model__path=wide), ranks, MemoryReporter())
    owners = Owners()
    with patch("paceline.engine.fsdp.copied", owners.copied):
        digest = trainer.state.weights_sha256()
    weights = trainer.state.model_tensors()
    trainer.close()
    size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    return digest, weights_sha256(weights), owners.most, size


def test_the_hash_of_the_weights_holds_one_tensor_at_a_time() -> None:
    digest, expected, most, size = run_ranks(hashed, 2)[0]
    assert digest == expected
    widest = 128 * 128 * 8
    assert widest <= most <= widest + 1024 < size


# The same state on any number of ranks


SAVED: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "adamw": {},
        "buffers": {"model__path": net_with_dropout_and_norm},
        "muon": {"optimizer": {"name": "muon", "lr": 0.01}},
        "bfloat16": {"model__path": lambda: odd().bfloat16(), "trainer__precision": "32-true"},
    },
    4: {"adamw": {}, "pairs": {"parallel__shard_size": 2}},
}


def save_each(ranks: DistContext, folder: Path, runs: dict[str, dict[str, Any]]) -> dict[str, Tensors]:
    """Train one after the other."""
    return {case: save(ranks, folder / case, **overrides) for case, overrides in runs.items()}


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_checkpoint_holds_the_state_to_the_bit(world_size: int, tmp_path: Path) -> None:
    states = run_ranks(save_each, world_size, tmp_path, SAVED[world_size])[0]
    for case, state in states.items():
        require_equal(read_checkpoint(tmp_path / case / "step-12").tensors, state)


def test_a_checkpoint_of_two_ranks_resumes_to_the_bit_on_any_number(tmp_path: Path) -> None:
    state = run_ranks(save, 2, tmp_path)[0]
    for world_size in (2, 4):
        require_equal(run_ranks(load, world_size, tmp_path)[0], state)
    require_equal(load(DistContext.current(), tmp_path), state)


def test_a_sharded_checkpoint_is_read_like_any_other(tmp_path: Path) -> None:
    state = run_ranks(save, 2, tmp_path)[0]
    folder = tmp_path / "step-12"
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
    averages = {name.removeprefix("average."): each for name, each in state["component.callback.ema"].items()}
    for read in (evaluated_weights, read_weights):  # for exports and `load_model`, and for `model.weights`
        require_equal({"model": read(folder)}, {"model": averages})


# Damage and failures


def test_a_flipped_bit_in_the_rows_of_any_rank_is_found(tmp_path: Path) -> None:
    run_ranks(save, 2, tmp_path)
    folder = tmp_path / "step-12"
    for name in ("model", "optimizer", "component.callback.ema"):
        file = folder / f"{name}.safetensors"
        whole = file.read_bytes()
        start = 8 + int.from_bytes(whole[:8], "little")
        widest = max(json.loads(whole[8:start]).values(), key=lambda each: each["data_offsets"][1])
        for place in (widest["data_offsets"][0], widest["data_offsets"][1] - 1):  # rank 0's first byte, rank 1's last
            damaged = bytearray(whole)
            damaged[start + place] ^= 1
            file.write_bytes(damaged)
            with pytest.raises(BrokenCheckpoint) as caught:
                verify(folder)
            assert (caught.value.code, caught.value.fields["file"]) == ("wrong-hash", file.name)
        file.write_bytes(whole)
        with safe_open(file, "pt") as opened:
            assert set(opened.keys()) == set(json.loads(whole[8:start]))
    assert verify(folder) == 12


def write_with_fault(
    ranks: DistContext, folder: Path, faulty: int, kills: bool, step: int = 8
) -> list[tuple[str, dict[str, Any]]]:
    """Train with a checkpoint at steps 4, 8 and 12; on one rank, the files of one of them cannot be written."""
    written = os.pwrite

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        if ranks.rank == faulty and f".step-{step}." in os.readlink(f"/proc/self/fd/{descriptor}"):
            if kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(descriptor, data, offset)

    reporter = MemoryReporter()
    config = fsdp_config(ranks, checkpoint={"every_n_steps": 4, "keep": 3})
    patience = {"dist_context.MAX_ROUND_SECONDS": 0.5, "sharded_writing.CLOSING_SECONDS": 0.5} if kills else {}
    with patch("os.pwrite", pwrite), ExitStack() as shortened:
        for name, seconds in patience.items():
            shortened.enter_context(patch(f"paceline.engine.{name}", seconds))
        build_trainer(config, ranks, reporter, folder).fit()
    return reporter.events


def valid_steps(folder: Path) -> list[int]:
    return sorted(verify(path) for path in folder.glob("step-*"))


@pytest.mark.parametrize("faulty", [0, 1])
def test_a_rank_that_cannot_write_costs_a_checkpoint_but_not_the_run(faulty: int, tmp_path: Path) -> None:
    events = run_ranks(write_with_fault, 2, tmp_path, faulty, False)
    warnings = [[details for kind, details in each if kind == "warning"] for each in events]
    (warning,) = warnings[0]
    assert (warning["code"], warning["step"]) == ("checkpoint-not-written", 8)
    assert not warnings[1]
    assert valid_steps(tmp_path) == [4, 12]
    assert {path.name for path in tmp_path.iterdir()} == {"step-4", "step-12"}


# 12 is the last step: rank 0 then waits for the others to have written
@pytest.mark.parametrize("step", [pytest.param(8, marks=pytest.mark.slow), 12])
def test_a_rank_that_is_killed_while_it_writes_leaves_the_checkpoint_before(step: int, tmp_path: Path) -> None:
    endings = end_ranks(write_with_fault, 2, tmp_path, 1, True, step)
    assert endings[1].error == "died without a word"
    assert endings[0].error is not None
    assert endings[0].error != STILL_RUNNING
    assert valid_steps(tmp_path) == [each for each in (4, 8) if each < step]
    run_ranks(load, 2, tmp_path)


# Where ranks cannot write to one file


def save_apart(ranks: DistContext, folder: Path) -> list[str]:
    """Train on a file system on which only rank 0's part of a file arrives; the codes of the warnings."""
    written = os.pwrite
    lost = written if ranks.is_first else lambda descriptor, data, offset: len(data)
    reporter = MemoryReporter()
    with patch("os.pwrite", lost):
        build_trainer(fsdp_config(ranks), ranks, reporter, folder).fit()
    return [details["code"] for kind, details in reporter.events if kind == "warning"]


def test_the_state_is_gathered_where_ranks_cannot_write_to_one_file(tmp_path: Path) -> None:
    assert run_ranks(save_apart, 2, tmp_path) == [["checkpoints-gathered"], []]
    assert valid_steps(tmp_path) == [6, 12]
    shutil.rmtree(tmp_path / "step-6")
    run_ranks(load, 2, tmp_path)
