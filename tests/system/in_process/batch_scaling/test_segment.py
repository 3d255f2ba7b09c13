"""The end of a stretch of training: real trainings whose stretch has a target, an end or a deadline."""

from pathlib import Path
from typing import Any

import pytest

from paceline.batch_scaling.segment import TRAIN_SEGMENT
from paceline.bench.bench import LocalBench
from paceline.bench.jobs import Job, part_of
from support.bench.study import STUDY
from support.toys import toy_config

EVERY = 4


def evaluations(folder: Path, **segment: Any) -> list[tuple[int, float]]:
    """Samples and loss of each evaluation of a toy whose last callback is a segment."""
    args = {"metric": "val/loss", "mode": "min", "target": 0.0, **segment}
    config = toy_config(
        callbacks=[{"path": "paceline.batch_scaling.segment:Segment", "args": args}],
        trainer__evaluate_every_n_steps=EVERY,
        trainer__epochs=3,
        scaling__num_workers=0,
    )
    answer = LocalBench(config, STUDY).do(Job(TRAIN_SEGMENT, (part_of(config),), folder=str(folder)))
    assert not answer.problem
    return [(samples, metrics["val/loss"]) for samples, metrics in answer.values["evaluations"]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    """The evaluations of an undisturbed training; the loss falls."""
    found = evaluations(tmp_path_factory.mktemp("whole"))
    assert len(found) > 4
    assert found[0][1] > found[2][1] > found[-1][1]
    return found


def test_a_stretch_that_misses_a_deadline_ends_there(tmp_path: Path, whole: list[tuple[int, float]]) -> None:
    (due, _), best = whole[2], min(loss for _, loss in whole)
    assert evaluations(tmp_path, deadlines=[[due, best / 2]]) == whole[:3]
    between = whole[1][0] + 1
    assert evaluations(tmp_path, deadlines=[[between, best / 2]]) == whole[:3], "with the first evaluation after it"


def test_a_deadline_that_is_met_does_not_end_it(tmp_path: Path, whole: list[tuple[int, float]]) -> None:
    assert evaluations(tmp_path, deadlines=[[samples, loss] for samples, loss in whole]) == whole


def test_what_was_reached_before_and_lost_again_does_not_meet_a_deadline(
    tmp_path: Path, whole: list[tuple[int, float]]
) -> None:
    (_, first), (due, later) = whole[0], whole[2]
    # the loss falls: what is to stay high has been high
    ended = evaluations(tmp_path, mode="max", target=2 * first, deadlines=[[due, (first + later) / 2]])
    assert ended == whole[:3]


def test_the_earlier_of_two_deadlines_may_end_it(tmp_path: Path, whole: list[tuple[int, float]]) -> None:
    (first, loss), (second, _) = whole[0], whole[3]
    assert evaluations(tmp_path, deadlines=[[second, loss], [first, loss / 2]]) == whole[:1]


def test_it_ends_at_its_target_and_at_its_end(tmp_path: Path, whole: list[tuple[int, float]]) -> None:
    assert evaluations(tmp_path, target=whole[0][1]) == whole[:1]
    assert evaluations(tmp_path, until_samples=whole[1][0]) == whole[:2]
