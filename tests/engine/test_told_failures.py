"""Plain mistakes in the user's model and data are told by what to change."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from paceline.data.imported import ImportedDataConfig
from paceline.engine.failure import RankFailed, describe, failing_together
from paceline.engine.ranks import Ranks
from paceline.engine.trainer import CheckpointLost, Diverged
from paceline.errors import ConfigError, EnvironmentFault, Problem, TrainingError, UnusableCode
from paceline.models.imported import ImportedModelConfig
from paceline.tasks._classification import Classification
from support.ranks import end_ranks
from support.toys import fit, net, points, toy_config

INPUTS, TARGETS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


class Pairing(nn.Module):
    """Gives more than logits."""

    def forward(self, inputs: torch.Tensor) -> Any:
        return inputs, None


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (Pairing(), (INPUTS, TARGETS), r"model returned a tuple; .* logits of shape \[batch, classes\].*task\.path"),
        (nn.Identity(), (INPUTS, TARGETS + 5), r"model has 3 classes, so targets go from 0 to 2: Target \d"),
        (nn.Identity(), INPUTS, r"the data give a Tensor; .*\(input, class\)"),
        (nn.Identity(), {"x": INPUTS}, r"the data give a dict; .*task\.path"),
        (nn.Identity(), [INPUTS, TARGETS, TARGETS], "samples of 3 parts"),
    ],
)
def test_what_classification_cannot_take(model: nn.Module, batch: Any, message: str) -> None:
    with pytest.raises(UnusableCode, match=message):
        Classification(model)(batch)


def test_a_model_without_trainable_parameters() -> None:
    def frozen() -> nn.Module:
        model: nn.Module = net().requires_grad_(False)
        return model

    with pytest.raises(UnusableCode, match=r"model\.path .*frozen: the model has no trainable parameters"):
        fit(toy_config(model__path=frozen))


@pytest.mark.parametrize(("samples", "cure"), [(0, "add some"), (9, r"global_batch_size to 9 or less")])
def test_too_few_samples_for_a_batch(samples: int, cure: str) -> None:
    config = toy_config(data__path=lambda: points(samples), data__drop_last=True)
    with pytest.raises(TrainingError, match=rf"data\.path .*: {samples} training samples make no .* 16; .*{cure}"):
        fit(config)


def lone() -> Any:
    return TensorDataset(INPUTS)


class Stream(IterableDataset[Any]):
    """Has no samples that could be asked for by their index."""

    def __iter__(self) -> Iterator[Any]:
        return iter(INPUTS)


def streams() -> Any:
    return Stream(), Stream()


def test_builders_that_return_something_else() -> None:
    with pytest.raises(UnusableCode, match=r"data\.path .* must return \(train, validation\), not TensorDataset"):
        ImportedDataConfig(path=lone, global_batch_size=4).build()
    with pytest.raises(UnusableCode, match=r"data\.path .*: the training set is a .*map style"):
        ImportedDataConfig(path=streams, global_batch_size=4).build()
    with pytest.raises(UnusableCode, match="returned str"):
        ImportedModelConfig(path=os.getcwd).build()


@pytest.mark.parametrize(
    "error", [Diverged("why"), CheckpointLost("why"), EnvironmentFault("why"), UnusableCode("why")]
)
def test_errors_of_ours_are_told_by_their_message_alone(error: Exception) -> None:
    failure = describe(error, 1)
    assert (failure.reason, failure.traceback_text) == ("why", "")


def test_a_config_error_keeps_its_code_beside_its_reason() -> None:
    failure = describe(ConfigError([Problem("resume", "is another", "data", hint="start anew")]), 0)
    assert (failure.reason, failure.problem_code, failure.exit_code) == ("data: is another (start anew)", "resume", 2)


def test_errors_of_the_users_code_keep_their_type_and_traceback() -> None:
    class Mine(Exception):
        exit_code = 2

    try:
        raise Mine("boom")
    except Mine as error:
        failure = describe(error, 0)
    assert (failure.reason, failure.exit_code) == ("Mine: boom", 1)
    assert "Traceback" in failure.traceback_text


@pytest.mark.parametrize(
    ("code", "reason"), [(None, r"(status 0)"), (3, "(status 3)"), ("no licence", "the program: no licence")]
)
def test_the_end_of_the_program_is_told(code: Any, reason: str) -> None:
    told = describe(SystemExit(code), 0).reason
    assert told.startswith("SystemExit: the code ended the program")
    assert told.endswith(reason)


def end_the_program_on_one(ranks: Ranks) -> str:
    def body() -> None:
        ranks.sum(torch.ones(1))
        if ranks.rank == 1:
            raise SystemExit
        ranks.sum(torch.ones(1))

    try:
        failing_together(ranks, body)
    except RankFailed as error:
        return f"{error.failure.rank}: {error.failure.reason}"
    return "no failure"


def test_a_rank_that_ends_the_program_ends_the_others_too() -> None:
    told = {ending.value for ending in end_ranks(end_the_program_on_one, 2)}
    assert told == {"1: SystemExit: the code ended the program (status 0)"}


class Unspeakable(RuntimeError):
    """An error of the user's own that cannot even be told."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_a_failure_can_be_stored_everywhere() -> None:
    """The bad byte of a file name, what steers a terminal, a tensor printed in full, and an error without a text."""
    failure = describe(RuntimeError("no \udce9.jpg, \x1b[31m\0, é\n" + "7" * 3_000_000), 0)
    (failure.reason + failure.traceback_text).encode()
    assert failure.reason.startswith("RuntimeError: no \\udce9.jpg, \\x1b[31m\\x00, é\n777")
    assert len(failure.reason) < 5_000
    assert len(failure.traceback_text) < 110_000
    assert "characters left out" in failure.reason
    assert "Unspeakable: (its text cannot be had: ValueError)" in describe(Unspeakable(), 0).reason
