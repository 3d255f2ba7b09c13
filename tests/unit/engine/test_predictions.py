"""Predictions of a batch by name."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.order import MicroBatch
from paceline.engine.predictions import per_sample, write_predictions
from paceline.errors import EnvironmentFault, UnusableCode
from paceline.tasks.base import TaskOutput
from support.refusals import refused

SCORES = torch.ones(3, 2)


def output(predictions: Any) -> TaskOutput:
    return TaskOutput(torch.ones(()), 3, predictions=predictions, targets=torch.zeros(3))


def test_what_is_none_is_left_out() -> None:
    assert list(per_sample(output({"scores": SCORES, "boxes": None}), 3)) == ["predictions.scores", "targets"]


@pytest.mark.parametrize(
    ("predictions", "code"),
    [
        (None, "no-predictions"),
        ({}, "no-predictions"),
        ([None], "no-predictions"),
        (SCORES.to_sparse(), "predictions-not-dense"),
        (SCORES.to("meta"), "predictions-not-dense"),
        (torch.nested.nested_tensor(list(SCORES), layout=torch.jagged), "predictions-not-dense"),
        (torch.nested.nested_tensor(list(SCORES)), "predictions-not-dense"),
        ({"a.b": SCORES, "a": {"b": SCORES}}, "predictions-same-name"),
        (SCORES.sum(), "predictions-not-per-sample"),
    ],
)
def test_predictions_that_no_file_holds_are_refused(predictions: Any, code: str) -> None:
    assert refused(UnusableCode, per_sample, output(predictions), 3).code == code


def test_a_place_that_cannot_be_written_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    micro_batch = MicroBatch(torch.arange(3), 3, True)
    refusal = refused(EnvironmentFault, write_predictions, [(micro_batch, output(SCORES))], tmp_path / "gone", 0, print)
    assert refusal.code == "output-not-usable"
