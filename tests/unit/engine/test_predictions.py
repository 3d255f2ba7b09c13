"""Predictions of a batch by name."""

from typing import Any

import pytest
import torch

from paceline.engine.predictions import per_sample
from paceline.errors import UnusableCode
from paceline.tasks.base import TaskOutput

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
    with pytest.raises(UnusableCode) as caught:
        per_sample(output(predictions), 3)
    assert caught.value.code == code
