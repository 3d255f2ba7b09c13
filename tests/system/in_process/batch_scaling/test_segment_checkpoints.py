"""Checkpoints of a stretch of training: branches begin at them, and a study is told where one is missing."""

import errno
from pathlib import Path
from typing import Any

import pytest

from paceline.batch_scaling.segment import TRAIN_SEGMENT
from paceline.bench.bench import LocalBench
from paceline.bench.jobs import Answer, Job, part_of
from paceline.engine import checkpoint_files
from support.bench.study import STUDY
from support.toys import toy_config

SAVED = 8


def train(folder: Path, save_at_steps: list[int], **options: Any) -> Answer:
    """Train a toy as a job of a study does, with a checkpoint on its way."""
    segment = {"path": "paceline.batch_scaling.segment:Segment", "args": {"save_at_steps": save_at_steps}}
    config = toy_config(
        callbacks=[segment],
        trainer__evaluate_every_n_steps=SAVED,
        trainer__epochs=2,
        checkpoint__keep=10,
        scaling__num_workers=0,
    )
    job = Job(TRAIN_SEGMENT, (part_of(config),), {"checkpoints": "own", **options}, folder=str(folder))
    return LocalBench(config, STUDY).do(job)


def test_a_branch_begins_at_the_checkpoint_and_shares_its_files(tmp_path: Path) -> None:
    own = train(tmp_path, [SAVED])
    assert not own.problem
    branch = train(tmp_path, [], checkpoints="branch", resume_from=f"own/step-{SAVED}")
    assert not branch.problem
    ((start, _),) = own.values["saved"]
    later = [each for each in own.values["evaluations"] if each[0] > start]
    assert branch.values["evaluations"] == later != []
    for file in (tmp_path / "own" / f"step-{SAVED}").iterdir():
        assert file.samefile(tmp_path / "branch" / file.parent.name / file.name)


def test_a_checkpoint_that_is_not_as_it_was_fails_the_branch(tmp_path: Path) -> None:
    assert not train(tmp_path, [SAVED]).problem
    file = tmp_path / "own" / f"step-{SAVED}" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    answer = train(tmp_path, [], checkpoints="branch", resume_from=f"own/step-{SAVED}")
    assert answer.code == "checkpoint-damaged"


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, "full_disk"), (errno.EIO, "error")])
def test_a_checkpoint_on_the_way_that_could_not_be_saved_fails_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: str
) -> None:
    write = checkpoint_files.write_checkpoint

    def write_later_ones(folder: Path, snapshot: Any, *more: Any) -> Path:
        if snapshot.step == SAVED:
            raise OSError(number, "as it is")
        return write(folder, snapshot, *more)

    monkeypatch.setattr(checkpoint_files, "write_checkpoint", write_later_ones)
    answer = train(tmp_path, [SAVED])
    assert (answer.kind, answer.code) == (kind, "checkpoint-lost")
    assert f"step-{SAVED}" in answer.problem
