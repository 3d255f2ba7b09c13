"""Jobs that a bench in this process does in fresh ones, which may die or hang."""

import os
import time
from math import inf
from pathlib import Path

import pytest

from paceline.bench.bench import LocalBench
from paceline.bench.jobs import TOO_SLOW, TRAIN, Answer, Job, part_of
from support.bench.study import STUDY
from support.bench.tasks import WHERE, Dying, Hanging, Listed
from support.toys import PointsTask, toy_config


def trained(task: type[PointsTask], limit_seconds: float) -> Answer:
    config = toy_config(trainer__precision="32-true", task={"path": f"{task.__module__}:{task.__name__}"})
    bench = LocalBench(config, STUDY)
    return bench.do(Job(TRAIN, (part_of(config),), limit_seconds=limit_seconds, in_fresh_processes=True))


def test_each_job_is_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WHERE, str(tmp_path / "processes"))
    for _ in range(2):
        answer = trained(Listed, inf)
        assert answer.problem == ""
        assert answer.values["samples"] > 0
    listed = (tmp_path / "processes").read_text().split()
    assert len(set(listed)) == 2
    assert str(os.getpid()) not in listed


@pytest.mark.usefixtures("separate_processes_are_forked")
@pytest.mark.parametrize(("task", "limit_seconds", "kind"), [(Dying, 100.0, "lost"), (Hanging, 3.0, TOO_SLOW)])
def test_one_that_dies_or_hangs_is_given_up(task: type[PointsTask], limit_seconds: float, kind: str) -> None:
    begun = time.monotonic()
    answer = trained(task, limit_seconds)
    assert (answer.kind, answer.values) == (kind, {})
    assert answer.problem
    assert time.monotonic() - begun < 60
