"""Accumulation is exact for a language model whose ignored tokens are uneven; and the usual bugs are seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from paceline.config import ExperimentConfig
from paceline.engine import trainer as trainer_module
from paceline.engine.build import build_trainer
from paceline.engine.order import DataOrder
from paceline.engine.passes import StepDone
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.models.gpt import GPTConfig
from paceline.tasks._language_modeling import LanguageModeling
from paceline.tasks.base import TaskOutput
from support.ranks import end_ranks, run_ranks
from support.sentences import MODEL, Sentences
from support.toys import fit, toy_config

SAMPLES, GLOBAL_BATCH = 16 + 13, 16
"""The second and last step of an epoch has 13 samples: 7 and 6 for the ranks, in micro batches of 2 and a rest."""


def config_for(ranks: Ranks, **overrides: Any) -> ExperimentConfig:
    """Accumulation 4 on two ranks; in one process the same micro batches."""
    return toy_config(
        model=MODEL,
        task={"name": "language_modeling"},
        data__path=lambda: (Sentences(SAMPLES), Sentences(11)),
        data__global_batch_size=GLOBAL_BATCH,
        data__micro_batch_size=2,
        scaling__num_workers=ranks.world_size,
        **overrides,
    )


# The gradient


def gradient_of_a_step(ranks: Ranks, plant: str | None = None) -> torch.Tensor:
    """The gradient of the epoch's last, uneven optimizer step."""
    _PLANTS[plant]()
    trainer = build_trainer(config_for(ranks, trainer__max_steps=2, optimizer__lr=1e-300), ranks, MemoryReporter())
    trainer.fit()
    return torch.cat([parameter.grad.flatten() for parameter in trainer.parameters])


def one_big_batch() -> torch.Tensor:
    """The gradient of the same 13 samples in one go, by the textbook."""
    torch.manual_seed(0)
    model, sentences = GPTConfig.model_validate(MODEL).build().double(), Sentences(SAMPLES)
    ids = DataOrder(samples=SAMPLES, global_batch_size=GLOBAL_BATCH, micro_batch_size=2, seed=0).step_ids(0, 1)
    assert len(ids) == 13
    logits = model(sentences.tokens[ids])
    F.cross_entropy(logits.flatten(0, 1), sentences.targets[ids].flatten()).backward()  # type: ignore[no-untyped-call]
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]


def counted(rank: int) -> list[int]:
    """Tokens that count in each micro batch of a rank at that step."""
    order = DataOrder(samples=SAMPLES, global_batch_size=GLOBAL_BATCH, micro_batch_size=2, rank=rank, world_size=2)
    targets = Sentences(SAMPLES).targets
    return [int((targets[part.ids] != -100).sum()) for part in order.step_micro_batches(0, 1)]


def test_ranks_and_micro_batches_are_uneven() -> None:
    first, second = counted(0), counted(1)
    assert (len(first), len(second)) == (4, 3)
    assert sum(first) != sum(second)
    assert len({*first, *second}) > 4


@pytest.mark.parametrize("world_size", [1, 2])
def test_accumulation_over_uneven_tokens_is_exact(world_size: int) -> None:
    expected = one_big_batch()
    assert expected.abs().max() > 1e-3
    for gradient in run_ranks(gradient_of_a_step, world_size):
        assert torch.allclose(gradient, expected, atol=1e-12, rtol=0)


def _replace_output(change: Any) -> None:
    forward = LanguageModeling.forward

    def changed(self: LanguageModeling, batch: Any) -> TaskOutput:
        return change(forward(self, batch), batch)  # type: ignore[no-any-return]

    LanguageModeling.forward = changed  # type: ignore[method-assign]


def _plant_mean_over_micro_batches() -> None:
    # what `cross_entropy` gives by default, averaged over the micro batches
    _replace_output(lambda out, batch: TaskOutput(out.loss_sum / out.weight.clamp(min=1), torch.ones(())))


def _plant_mean_over_samples() -> None:
    LanguageModeling.weight_is_samples = True


def _plant_ignored_tokens_counted() -> None:
    _replace_output(lambda out, batch: TaskOutput(out.loss_sum, torch.tensor(batch[1].numel())))


def _plant_each_rank_by_its_own_tokens() -> None:
    divide = trainer_module.divide_by_weight

    def alone(done: StepDone, parameters: Any, layout: Any, ranks: Ranks) -> None:
        done = done._replace(weights=[2 * weight for weight in done.weights])
        divide(done, parameters, layout, Ranks(0, 1, ranks.device))

    trainer_module.divide_by_weight = alone


_PLANTS = {
    None: lambda: None,
    "mean over micro batches": _plant_mean_over_micro_batches,
    "mean over samples": _plant_mean_over_samples,
    "ignored tokens counted": _plant_ignored_tokens_counted,
    "each rank by its own tokens": _plant_each_rank_by_its_own_tokens,
}


@pytest.mark.parametrize("plant", [plant for plant in _PLANTS if plant])
def test_planted_bugs_are_seen(plant: str) -> None:
    """Each gives a gradient, and another one than that of the big batch."""
    for ending in end_ranks(gradient_of_a_step, 2, plant):
        assert ending.error is None, ending.error
        assert torch.isfinite(ending.value).all()
        assert (ending.value - one_big_batch()).abs().max() > 1e-5


# The training


def training(ranks: Ranks, overrides: dict[str, Any]) -> dict[str, Any]:
    """Train for two epochs, and tell all that can be compared."""
    trainer, outcome, reporter = fit(config_for(ranks, **overrides), ranks)
    return {
        "train/loss": reporter.values("train/loss"),
        "val/loss": reporter.values("val/loss"),
        "val/accuracy": reporter.values("val/accuracy"),
        "weights": torch.cat([parameter.detach().flatten() for parameter in trainer.parameters]),
        "sha": outcome.weights_sha256,
    }


@pytest.mark.parametrize(
    "overrides", [{}, {"trainer__activation_checkpointing": "full"}, {"trainer__max_grad_norm": 0.1}]
)
def test_two_ranks_equal_one_process_in_float64(overrides: dict[str, Any]) -> None:
    (alone,) = run_ranks(training, 1, overrides)
    first, second = run_ranks(training, 2, overrides)
    assert len(first["train/loss"]) == 4
    for key in ("train/loss", "val/loss", "val/accuracy"):
        assert first[key] == pytest.approx(alone[key], abs=1e-12), key
    assert torch.allclose(first["weights"], alone["weights"], atol=1e-12, rtol=0)
    assert first["sha"] == second["sha"]
