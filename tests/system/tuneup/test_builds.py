"""Builds of a tune-up in this process: each in a fresh one, which may die or hang."""

import os
import time
from pathlib import Path

import pytest

from paceline.bench.bench import LocalBench
from paceline.bench.jobs import Answer, Job, part_of
from paceline.cluster.worker_spec import WorkerSpec
from support.toys import PointsTask, toy_config
from support.tuneup.build_tasks import WHERE, Dying, Hanging, Listed

RULES = {"window_seconds": 0.05, "min_pairs": 2, "max_pairs": 2, "seconds": 10.0}


def built(task: type[PointsTask], limit_seconds: float = 100.0) -> Answer:
    config = toy_config(trainer__precision="32-true", task={"path": f"{task.__module__}:{task.__name__}"})
    faster = config.with_overrides({"optimizer.momentum": 0.0})
    comparisons = [[0, 1, {"seed": 1, "is_technique_first": True}], [0, 0, {"seed": 2, "in_turn": True}]]
    parts = part_of(config), part_of(faster)
    bench = LocalBench(WorkerSpec.of(config, None), config)
    return bench.do(Job("build", parts, {"comparisons": comparisons, "rules": RULES}, limit_seconds))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(WHERE, str(tmp_path / "processes"))
    return tmp_path / "processes"


def test_each_build_is_in_a_process_of_its_own(processes: Path) -> None:
    first, second = built(Listed), built(Listed)
    for answer in (first, second):
        assert answer.problem == ""
        assert [len(each["pairs"]) for each in answer.values["benchmarks"]] == [2, 2]
    listed = processes.read_text().split()
    assert len(listed) == 8  # of two comparisons each, two trainers
    assert len(set(listed)) == 2
    assert str(os.getpid()) not in listed


@pytest.mark.parametrize(("task", "limit_seconds", "kind"), [(Dying, 100.0, "lost"), (Hanging, 3.0, "lost")])
def test_one_that_dies_or_hangs_is_lost(task: type[PointsTask], limit_seconds: float, kind: str) -> None:
    begun = time.monotonic()
    answer = built(task, limit_seconds)
    assert (answer.kind, answer.values) == (kind, {})
    assert answer.problem
    assert time.monotonic() - begun < 60
