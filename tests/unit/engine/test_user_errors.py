"""Plain mistakes in the user's model and data are errors with a code, and failures can be stored everywhere."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from paceline.data.imported import ImportedDataConfig
from paceline.engine.collation import collated
from paceline.engine.failure import describe
from paceline.engine.outcome import CheckpointLost, Diverged
from paceline.errors import ConfigError, EnvironmentFault, PacelineError, Problem, UnusableCode
from paceline.models.imported import ImportedModelConfig
from paceline.tasks._classification import Classification
from paceline.tasks._language_modeling import LanguageModeling
from support.refusals import refused
from support.toys import Points, PointsTask, fit, net, points, toy_config

INPUTS, TARGETS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


class Pairing(nn.Module):
    """Gives more than logits."""

    def forward(self, inputs: torch.Tensor) -> Any:
        return inputs, None


@pytest.mark.parametrize("task", [Classification, LanguageModeling])
@pytest.mark.parametrize(
    ("model", "batch", "code"),
    [
        (Pairing(), (INPUTS, TARGETS), "wrong-output"),
        (nn.Identity(), INPUTS, "wrong-batch"),
        (nn.Identity(), {"x": INPUTS}, "wrong-batch"),
        (nn.Identity(), [INPUTS, TARGETS, TARGETS], "wrong-batch"),
    ],
    ids=["tuple of outputs", "tensor", "mapping", "three parts"],
)
def test_a_task_refuses_other_batches_and_outputs(
    task: Any, model: nn.Module, batch: Any, code: str, golden: Any
) -> None:
    refusal = refused(UnusableCode, task(model), batch)
    assert refusal.code == code
    assert ("model_loss" in str(refusal)) == isinstance(batch, dict)
    golden(str(refusal))


class Returning(PointsTask):
    """Returns what `make` makes of the usual output."""

    make: Any = None

    def forward(self, batch: Any) -> Any:
        return type(self).make(super().forward(batch))


def returning(make: Any) -> Any:
    return type("Mine", (Returning,), {"make": staticmethod(make)})


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda output: output.loss_sum, "not-a-task-output"),
        (lambda output: output.loss_sum.item(), "not-a-task-output"),
        (lambda output: replace(output, loss_sum=output.loss_sum.item()), "loss-not-a-tensor"),
        (lambda output: replace(output, loss_sum=output.loss_sum.expand(3)), "output-not-scalar"),
        (lambda output: replace(output, weight=torch.ones(3)), "output-not-scalar"),
        (lambda output: replace(output, weight=None), "weight-not-a-number"),
        (lambda output: replace(output, loss_sum=output.loss_sum.detach()), "loss-without-gradient"),
    ],
    ids=["tensor", "number", "loss without gradient", "losses", "weights", "no weight", "detached loss"],
)
def test_a_task_that_returns_something_else(make: Any, code: str, golden: Any) -> None:
    refusal = refused(UnusableCode, fit, toy_config(task__path=returning(make)))
    assert refusal.code == code
    golden(str(refusal))


def test_numbers_will_do_for_weight_and_metrics() -> None:
    def as_numbers(output: Any) -> Any:
        metrics = {name: value.item() for name, value in output.metrics.items()}
        return replace(output, loss_sum=output.loss_sum.reshape(1), weight=float(output.weight), metrics=metrics)

    expected, found = fit(toy_config())[1], fit(toy_config(task__path=returning(as_numbers)))[1]
    assert found.weights_sha256 == expected.weights_sha256
    assert found.metrics["val/accuracy"] == expected.metrics["val/accuracy"]


@pytest.mark.parametrize(
    ("changes", "code", "fields"),
    [
        ({"model__path": lambda: net().requires_grad_(False)}, "nothing-to-train", {}),
        ({"data__path": lambda: points(0)}, "too-few-samples", {"samples": 0, "global_batch_size": 16}),
        ({"data__path": lambda: points(9)}, "too-few-samples", {"samples": 9, "global_batch_size": 16}),
    ],
)
def test_nothing_to_train_or_to_train_on(changes: Any, code: str, fields: dict[str, int], golden: Any) -> None:
    refusal = refused(PacelineError, fit, toy_config(**changes, data__drop_last=True))
    assert (refusal.code, refusal.fields) == (code, fields)
    golden(str(refusal))


class Stream(IterableDataset[Any]):
    """Has no samples that could be asked for by their index."""

    def __iter__(self) -> Iterator[Any]:
        return iter(INPUTS)


@pytest.mark.parametrize(
    ("config", "code"),
    [
        (ImportedDataConfig(path=lambda: TensorDataset(INPUTS), global_batch_size=4), "not-two-sets"),
        (ImportedDataConfig(path=lambda: (Stream(), Stream()), global_batch_size=4), "not-map-style"),
        (ImportedModelConfig(path=os.getcwd), "not-a-module"),
    ],
    ids=["lone", "streams", "getcwd"],
)
def test_builders_that_return_something_else(config: Any, code: str, golden: Any) -> None:
    refusal = refused(UnusableCode, config.build)
    assert refusal.code == code
    golden(re.sub("0x[0-9a-f]+", "0x", str(refusal)))


class Growing(Dataset[Any]):
    """Samples of which the last ones are larger than the first."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2 + index // 12), 0, index


class GrowingStream(IterableDataset[Any]):
    """The same, one after the other."""

    def __iter__(self) -> Iterator[Any]:
        return (Growing()[index] for index in range(16))


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        (Growing, {}),
        (Growing, {"data__cache": "memory"}),
        (GrowingStream, {"trainer__epochs": None, "trainer__max_steps": 1, "data__micro_batch_size": 16}),
    ],
    ids=["loaded", "cached", "stream"],
)
def test_samples_that_do_not_make_a_batch_are_told_apart(data: Any, changes: Any, golden: Any) -> None:
    config = toy_config(data__path=lambda: (data(), Points(16)), **changes)
    with pytest.raises(RuntimeError) as caught:
        fit(config)
    failure = describe(caught.value, 0)
    first, _, note = failure.reason.partition("\n")
    assert first.startswith("RuntimeError: ")
    assert note in failure.traceback_text
    golden(note)


def test_an_object_that_makes_no_batch_is_named(golden: Any) -> None:
    with pytest.raises(TypeError) as caught:
        collated(default_collate, [object(), object()])
    (note,) = caught.value.__notes__
    golden(note)


def test_an_error_of_the_users_own_collation_is_left_as_it_is() -> None:
    def broken(samples: list[Any]) -> Any:
        raise ValueError(len(samples))

    with pytest.raises(ValueError, match="2") as caught:
        collated(broken, [1, 2])
    assert not hasattr(caught.value, "__notes__")


# Failures


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Diverged("the loss is nan", "loss-not-finite"), "diverged"),
        (MemoryError(), "oom"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
        (RuntimeError("shapes differ"), "error"),
        (SystemExit(1), "error"),
    ],
)
def test_kinds_of_failures(error: BaseException, kind: str) -> None:
    assert describe(error, 0).kind == kind


@pytest.mark.parametrize("error", [Diverged, CheckpointLost, EnvironmentFault, UnusableCode])
def test_errors_of_ours_fail_with_their_message_alone(error: Any) -> None:
    failure = describe(error("why", "some-code"), 1)
    assert (failure.rank, failure.reason, failure.traceback_text) == (1, "why", "")


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


@pytest.mark.parametrize("code", [None, 3, "no licence"])
def test_the_end_of_the_program_is_a_failure(code: Any, golden: Any) -> None:
    golden(describe(SystemExit(code), 0).reason)


class Unspeakable(RuntimeError):
    """An error of the user's own that has no text."""

    def __str__(self) -> str:
        raise ValueError


def test_a_failure_can_be_stored_everywhere() -> None:
    """The bad byte of a file name, what steers a terminal, a tensor printed in full, and an error without a text."""
    failure = describe(RuntimeError("no \udce9.jpg, \x1b[31m\0, é\n" + "7" * 3_000_000), 0)
    (failure.reason + failure.traceback_text).encode()
    assert failure.reason.startswith("RuntimeError: no \\udce9.jpg, \\x1b[31m\\x00, é\n777")
    assert len(failure.reason) < 5_000
    assert len(failure.traceback_text) < 110_000
    assert describe(Unspeakable(), 0).reason.startswith("Unspeakable: ")
