"""Runs on two ranks of which one is killed: resumed, they end with the bits of the undisturbed run.

The undisturbed runs of all scenes take turns in one group of processes, and so do the resumed ones.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.dist_context import DistContext
from support.adascale import ADASCALE
from support.engine.killed_ranks import Part, WritingTask, kill_part, train_part
from support.engine.several import Pair, PairTask
from support.ranks import run_ranks
from support.streams import (
    SAMPLES,
    shuffle_buffer,
    stateful_stream,
    stream,
    uneven_shards,
    uneven_stateful_shards,
)
from support.toys import net, net_with_dropout_and_norm, points, toy_config

STREAM = {"data__global_batch_size": 12, "data__micro_batch_size": 2, "trainer__epochs": None, "trainer__max_steps": 12}
MICRO_BATCHES = 3
"""Of each rank in a step of a stream, but for the last one of an epoch."""
FULL_STEPS = SAMPLES // 12
"""Steps of an epoch of a stream before the last one."""
STAGES = [{"samples": 0, "global_batch_size": 8}, {"samples": 50, "global_batch_size": 24}]
"""The change is at step 7, between the checkpoint and the kill."""
BUCKETS: dict[str, Any] = {
    "model__path": partial(net, 64),
    "trainer__precision": "32-true",
    "parallel__bucket_cap_mb": 0.001,
}
"""Two weights that are worth compressing, in several buckets."""
SPREAD: dict[str, Any] = {
    "model__path": net_with_dropout_and_norm,
    "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay_exclude": "norms_and_biases"},
    "trainer__gradient_accumulation_steps": 2,
}
SCENES: dict[str, dict[str, Any]] = {
    "stream": {**STREAM, "data__path": stream},
    "stream with loader processes": {**STREAM, "data__path": stream, "data__num_workers": 2},
    "stream with a state": {**STREAM, "data__path": stateful_stream},
    "stream with a state and loader processes": {**STREAM, "data__path": stateful_stream, "data__num_workers": 2},
    "buffer in a state": {**STREAM, "data__path": shuffle_buffer},
    "buffer in a state and loader processes": {**STREAM, "data__path": shuffle_buffer, "data__num_workers": 1},
    "uneven shards": {**STREAM, "data__path": uneven_shards},
    "uneven shards with a state": {**STREAM, "data__path": uneven_stateful_shards},
    "batch size schedule": {"data__global_batch_size": None, "data__batch_size_schedule": STAGES},
    "ema": {"callbacks": [{"name": "ema", "decay": 0.9}], "trainer__epochs": 3},
    "early stopping": {
        # nothing improves by 10, so that the run ends at the fourth evaluation
        "callbacks": [{"name": "early_stopping", "monitor": "val/loss", "patience": 3, "min_delta": 10.0}],
        "trainer__evaluate_every_n_steps": 3,
        "trainer__evaluate_every_n_epochs": 0,
        "trainer__epochs": 5,
    },
    "muon": {"optimizer": {"name": "muon", "lr": 0.02, "weight_decay": 0.01}},
    "adascale": {**ADASCALE, **BUCKETS},
    "bf16 hook": {"parallel__comm_hook": "bf16", **BUCKETS},
    "powersgd": {"parallel__comm_hook": "powersgd", "parallel__powersgd_start_step": 2, **BUCKETS},
    "fsdp": {"parallel__strategy": "fsdp", **SPREAD},
    "pipeline": {"parallel__strategy": "pipeline", **SPREAD},
    "several optimizers": {"task__path": PairTask, "model__path": Pair, "lr_scheduler": {"name": "linear"}},
    "imported optimizer": {"optimizer": {"path": "torch.optim:RAdam", "lr": 0.01, "args": {"betas": [0.8, 0.99]}}},
}
KILLED_AT = 8
LAST = {"early stopping": 12, "ema": 21, "batch size schedule": 14}
"""The step at which a scene ends, where it is not the 12th."""


def config(scene: str) -> Any:
    return toy_config(
        **{
            "data__path": lambda: points(103 if scene in LAST else 96, 31, noisy=True),
            "task__path": WritingTask,
            "scaling__num_workers": 2,
            "checkpoint": {"every_n_steps": 3},
            **SCENES[scene],
        }
    )


def all_scenes(ranks: DistContext, folder: Path, launch: str) -> dict[str, Part]:
    return {scene: train_part(ranks, config(scene), folder / scene / "checkpoints", launch) for scene in SCENES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


def ready(folder: Path) -> Path:
    for scene in SCENES:
        (folder / scene).mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[dict[str, Part]]:
    """The undisturbed runs, by rank."""
    return run_ranks(all_scenes, 2, ready(folder / "whole"), "whole")


@pytest.fixture(scope="module")
def resumed(folder: Path) -> list[dict[str, Part]]:
    """The runs after their kills, by rank."""
    parts = ready(folder / "parts")
    for scene in SCENES:
        kill_part(config(scene), parts / scene / "checkpoints", KILLED_AT, file="killed")
    return run_ranks(all_scenes, 2, parts, "resumed")


@pytest.mark.parametrize("scene", SCENES)
def test_a_killed_run_ends_with_the_bits_of_the_undisturbed_one(
    scene: str, whole: list[dict[str, Part]], resumed: list[dict[str, Part]]
) -> None:
    assert 0 < resumed[0][scene].start < KILLED_AT
    assert [each[scene].end for each in (*whole, *resumed)] == [LAST.get(scene, 12)] * 4
    assert [each[scene].sha256 for each in resumed] == [each[scene].sha256 for each in whole]
    assert "parallel__strategy" in SCENES[scene] or whole[0][scene].sha256 == whole[1][scene].sha256
    assert resumed[0][scene].metrics["val/loss"] == whole[0][scene].metrics["val/loss"]


@pytest.mark.parametrize("scene", [scene for scene in SCENES if "stream" in scene])
def test_a_stream_gives_each_sample_once(
    scene: str, folder: Path, whole: list[dict[str, Part]], resumed: list[dict[str, Part]]
) -> None:
    first_epoch: list[int] = []
    for rank in range(2):
        undisturbed = (folder / "whole" / scene / f"whole-{rank}").read_text().splitlines()
        parts = folder / "parts" / scene
        done = resumed[0][scene].start * MICRO_BATCHES
        before = (parts / f"killed-{rank}").read_text().splitlines()
        assert len(before) > done  # those after the checkpoint are seen again
        assert before[:done] + (parts / f"resumed-{rank}").read_text().splitlines() == undisturbed
        first_epoch += map(int, " ".join(undisturbed[: FULL_STEPS * MICRO_BATCHES]).split())
    assert len(set(first_epoch)) == len(first_epoch) == FULL_STEPS * 12
