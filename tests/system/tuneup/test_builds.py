"""Builds of a tune-up: several comparisons in one fresh process."""

import os
from pathlib import Path

import pytest

from paceline.bench.bench import LocalBench
from paceline.bench.jobs import Job, part_of
from paceline.tuneups.confirmation import BUILD
from paceline.tuneups.folder import TUNEUP
from support.bench.tasks import WHERE, Listed
from support.toys import toy_config


@pytest.mark.usefixtures("separate_processes_are_forked")
def test_all_comparisons_of_a_build_are_in_one_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WHERE, str(tmp_path / "processes"))
    config = toy_config(trainer__precision="32-true", task={"path": f"{Listed.__module__}:{Listed.__name__}"})
    comparisons = [[0, 1, {"seed": 1, "is_technique_first": True}], [0, 0, {"seed": 2, "in_turn": True}]]
    rules = {"window_seconds": 0.05, "min_pairs": 2, "max_pairs": 2, "seconds": 10.0}
    parts = part_of(config), part_of(config.with_overrides({"optimizer.momentum": 0.0}))
    job = Job(BUILD, parts, {"comparisons": comparisons, "rules": rules}, 100.0, in_fresh_processes=True)
    answer = LocalBench(config, TUNEUP).do(job)
    assert answer.problem == ""
    assert [len(each["pairs"]) for each in answer.values["benchmarks"]] == [2, 2]
    listed = (tmp_path / "processes").read_text().split()
    assert len(listed) == 4  # of two comparisons, two trainers each
    assert len(set(listed)) == 1
    assert str(os.getpid()) not in listed
