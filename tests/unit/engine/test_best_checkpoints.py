"""`checkpoint.monitor`: the best checkpoints are saved, kept and remembered over a resume."""

from pathlib import Path
from typing import Any

import pytest

from paceline.engine.reporter import MemoryReporter
from paceline.tasks.base import TaskOutput
from support.toys import PointsTask, fit, toy_config

VALUES = [5.0, 3.0, 4.0, 1.0, 2.0, 2.0]
"""Of the evaluations after the steps 2, 4, ..., 12."""


class Scripted(PointsTask):
    """Its validation loss follows a script, by the number of training steps."""

    def forward(self, batch: Any) -> TaskOutput:
        output = super().forward(batch)
        if not self.training:
            done = len(self.seen) + self.offset
            output.loss_sum = output.loss_sum * 0 + VALUES[done // 2 - 1] * output.weight
        return output

    offset = 0


def kept(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))


def config(**overrides: Any) -> Any:
    own = {"task__path": Scripted, "trainer__evaluate_every_n_steps": 2, "checkpoint__keep": 1}
    return toy_config(**{**own, "checkpoint__monitor": "val/loss", **overrides})


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [({}, [8, 12]), ({"checkpoint__keep_best": 2}, [8, 10, 12]), ({"checkpoint__mode": "max"}, [2, 12])],
)
def test_the_best_are_kept(overrides: dict[str, Any], steps: list[int], tmp_path: Path) -> None:
    fit(config(**overrides), checkpoints=tmp_path)
    assert kept(tmp_path) == steps


def test_the_best_is_remembered_over_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(config(), None, tmp_path, MemoryReporter(stop_at_step=9))
    assert kept(tmp_path) == [8, 9]
    monkeypatch.setattr(Scripted, "offset", 9)
    fit(config(), checkpoints=tmp_path)
    assert kept(tmp_path) == [8, 12]
