"""A finished run that is trained further: the bits of one that was longer from the start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.engine.dist_context import DistContext
from support.engine.killed_ranks import Part, kill_part, train_part
from support.ranks import run_ranks
from support.toys import points, toy_config

STEPS_PER_EPOCH = 7


def config(epochs: int, world_size: int = 1, **overrides: Any) -> Any:
    return toy_config(
        data__path=lambda: points(103, 31, noisy=True),
        scaling__num_workers=world_size,
        trainer__epochs=epochs,
        callbacks=[{"name": "ema", "decay": 0.9}],
        checkpoint={"every_n_steps": 3},
        **overrides,
    )


def lengths(part: Part) -> list[dict[str, Any]]:
    return [details for kind, details in part.events if kind == "length"]


def extended(folder: Path, last: int, **overrides: Any) -> Part:
    """A run of two epochs, and one of three that extends it."""
    here = DistContext.current()
    first = train_part(here, config(2, **overrides), folder / "first")
    shutil.copytree(folder / "first" / f"step-{first.end}", folder / "longer" / f"step-{first.end}")
    longer = train_part(here, config(last, **overrides), folder / "longer", extended_from_step=first.end)
    assert longer.start == first.end
    return longer


def test_two_ranks_end_with_the_bits_of_a_longer_run_also_when_one_is_killed(tmp_path: Path) -> None:
    whole = run_ranks(train_part, 2, config(7, 2), tmp_path / "whole")
    run_ranks(train_part, 2, config(2, 2), tmp_path / "first")
    last = 2 * STEPS_PER_EPOCH
    shutil.copytree(tmp_path / "first" / f"step-{last}", tmp_path / "longer" / f"step-{last}")
    kill_part(config(7, 2), tmp_path / "longer", last + 8, extended_from_step=last)
    resumed = run_ranks(train_part, 2, config(7, 2), tmp_path / "longer", extended_from_step=last)
    assert last < resumed[0].start < last + 8
    assert {part.sha256 for part in resumed} == {whole[0].sha256}
    assert resumed[0].metrics["val/loss"] == whole[0].metrics["val/loss"]  # of the averaged weights
    assert not lengths(resumed[0])  # it was told by the launch that was killed


def test_a_constant_schedule_is_said_to_give_the_longer_run(tmp_path: Path) -> None:
    longer = extended(tmp_path, 3)
    (change,) = lengths(longer)
    assert (change["step"], change["total_steps_before"], change["total_steps"]) == (14, 14, 21)
    assert change["is_same_schedule"]
    assert change["lr_before"] == change["lr"] == 0.1
    assert longer.sha256 == train_part(DistContext.current(), config(3), tmp_path / "whole").sha256


@pytest.mark.parametrize("schedule", ["cosine", "linear", "warmup_stable_decay"])
def test_a_schedule_that_depends_on_the_length_is_said_to_differ(tmp_path: Path, schedule: str) -> None:
    longer = extended(tmp_path, 3, lr_scheduler={"name": schedule, "warmup_steps": 2})
    (change,) = lengths(longer)
    assert not change["is_same_schedule"]
    assert change["lr_before"] < change["lr"]
    values = longer.metrics
    assert values["lr"] < change["lr"]  # the new length's decay


def test_a_run_that_was_stopped_early_is_trained_further_with_new_patience(tmp_path: Path) -> None:
    stopping = {"name": "early_stopping", "monitor": "val/loss", "patience": 3, "min_delta": 10.0}
    options = {"callbacks": [stopping], "trainer__evaluate_every_n_steps": 2, "trainer__evaluate_every_n_epochs": 0}
    here = DistContext.current()
    stopped = toy_config(**options)
    first = train_part(here, stopped, tmp_path / "run")
    assert first.end == 8
    assert train_part(here, stopped, tmp_path / "run").end == 8  # as long as nobody extends it
    further = train_part(here, stopped, tmp_path / "run", extended_from_step=8)
    assert (further.start, further.end) == (8, 12)
    (change,) = lengths(further)
    assert change["was_stopped_early"]
    longer = toy_config(trainer__epochs=9, **options)
    shutil.rmtree(tmp_path / "run" / "step-12")
    assert train_part(here, longer, tmp_path / "run", extended_from_step=8).end == 14
