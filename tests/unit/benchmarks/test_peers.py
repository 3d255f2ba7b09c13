"""The counts of peers.py: lines of code, points in MLflow, and trials after a kill."""

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "jobs" / "benchmarks"
TRIAL, OTHER = (64, 0.05), (64, 0.1)


@pytest.fixture
def peers(load: Any) -> Any:
    return load("peers")


def note(step: int, time: float, rank: int = 0, lr: float = OTHER[1]) -> dict[str, Any]:
    return {"time": time, "batch_size": 64, "lr": lr, "step": step, "rank": rank}


def test_lines_are_those_of_the_user(peers: Any) -> None:
    text = '"""Two\nlines."""\n\n# comment\nimport os\n\nuse(os)  # measured\nif os:\n    # comment\n    run()\n'
    assert peers.count_lines(text, is_python=True) == 3
    assert peers.count_lines("a: 1\n\n# comment\nb: 2  # measured\nc: 3\n", is_python=False) == 2


def test_points_are_duplicated_within_a_run_and_missing_in_a_trial(peers: Any) -> None:
    run, expected = peers.RunPoints, {TRIAL: 4, OTHER: 3}
    whole = [run(TRIAL, [1, 2, 3, 4]), run(OTHER, [1, 2, 3]), run(None, [])]
    assert peers.count_points(whole, expected) == {"duplicated": 0, "missing": 0}
    logged_again = [run(TRIAL, [1, 2, 3, 2, 3, 3, 4]), run(OTHER, [1, 2, 3])]
    assert peers.count_points(logged_again, expected) == {"duplicated": 3, "missing": 0}
    in_two_runs = [run(TRIAL, [1, 2]), run(TRIAL, [2, 4])]
    assert peers.count_points(in_two_runs, expected) == {"duplicated": 0, "missing": 1 + 3}


def test_a_resumed_trial_is_neither_lost_nor_from_scratch(peers: Any) -> None:
    expected = {TRIAL: 2, OTHER: 3}
    first = [note(step, 1.0, lr=TRIAL[1]) for step in (1, 2)]
    resumed = [*first, *(note(step, 2.0) for step in (1, 2, 2, 3))]
    assert peers.count_losses(resumed, expected) == {"lost": 0, "from scratch": 0, "repeated": 1}
    restarted = [*first, *(note(step, 2.0) for step in (1, 2, 1, 2, 3))]
    assert peers.count_losses(restarted, expected) == {"lost": 0, "from scratch": 1, "repeated": 2}
    lost = [*first, note(1, 2.0), note(3, 2.0, rank=1)]
    assert peers.count_losses(lost, expected) == {"lost": 1, "from scratch": 0, "repeated": 0}


def test_the_next_step_is_that_of_the_same_trial(peers: Any) -> None:
    steps = [note(1, 5.0, 1), note(2, 6.0, 1), note(2, 6.5), note(2, 9.0, 1, TRIAL[1]), note(2, 26.0, 1)]
    assert peers.seconds_to_next_step(steps, (OTHER, 2)) == 20.0
    assert peers.spans(steps) == {OTHER: 21.0, TRIAL: 0.0}


def test_an_incomplete_sweep_without_a_kill_is_a_failure(peers: Any) -> None:
    counts = {"lost": 0, "from scratch": 0, "repeated": 0, "duplicated": 0, "missing": 0}
    whole = {**counts, "first step": 40.0, "sweep": 60.0, "trial runs": 8, "other runs": 1}
    killed = {**counts, "repeated": 9, "duplicated": 9, "next step": 20.0}
    found = {name: [{"lines": 9, "whole": whole, "killed": killed}] for name in ("ray", "paceline")}
    found["ray"][0]["whole"] = {**whole, "missing": 1}
    part = peers.report(found, {}, 8)
    assert [row[4] for row in part.rows] == ["8 + 1", "8 + 1"]
    assert list(part.failures) == ["ray"]


def test_a_trial_has_the_steps_of_three_epochs(peers: Any) -> None:
    assert [peers.num_steps(size) for size in (64, 128, 256, 512)] == [189, 96, 48, 24]


@pytest.mark.parametrize("name", ["lightning", "accelerate", "ray", "paceline"])
def test_each_script_notes_its_steps(peers: Any, name: str) -> None:
    scripts = [BENCHMARKS / "peers" / file for file in peers.ARMS[name].files]
    assert any("note_step(" in line and "# measured" in line for file in scripts for line in file.open())
