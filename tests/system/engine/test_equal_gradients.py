"""Two ranks compute what one process does, whatever the weights of samples and tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.order import DataOrder
from paceline.engine.reporter import MemoryReporter
from paceline.models.gpt import GPTConfig
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.engine.confusion import Confusion
from support.ranks import run_ranks
from support.sentences import MODEL, Sentences
from support.toys import CLASSES, FEATURES, Points, fit, net, net_with_dropout_and_norm, toy_config

TRAIN, VALIDATION = 103, 31
"""Neither divides by anything: the last global batch of an epoch is short, and so is a rank's share of it."""
ACCUMULATE = "trainer__gradient_accumulation_steps"


class Weighted(Task):
    """Its weights are uneven over ranks and micro batches."""

    weight_is_samples = False

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        weights = (ids % 7).double() ** 2
        losses = F.cross_entropy(self.model(features), targets, reduction="none")
        return TaskOutput((losses * weights).sum(), weights.sum())


class Branches(nn.Module):
    """Uses one of two layers at each call in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(FEATURES, CLASSES) for _ in range(2)])
        self.calls = 0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        result: torch.Tensor = self.layers[self.calls % 2](features)
        return result


LANGUAGE_MODEL: dict[str, Any] = {
    "model": MODEL,
    "task": {"name": "language_modeling"},
    "data__path": lambda: (Sentences(16 + 13), Sentences(11)),
    "data__micro_batch_size": 2,
}
"""The second step of an epoch has 13 samples: 7 and 6 for the ranks, in micro batches of 2 and a rest."""
CASES: dict[str, dict[str, Any]] = {
    "one micro batch": {},
    "accumulated": {ACCUMULATE: 4},
    "clipped": {"trainer__max_grad_norm": 0.1, "trainer__epochs": 1},
    "float32": {"trainer__precision": "32-true", "trainer__max_steps": 10},
    "weighted": {"task__path": Weighted, ACCUMULATE: 2, "trainer__max_steps": 5},
    "a layer without a gradient": {"model__path": Branches, "parallel__find_unused_parameters": True},
    "a rank without a sample": {"data__path": lambda: (Points(17), Points(1)), "trainer__epochs": 1},
    "sums of any shape": {"task__path": Confusion, "trainer__epochs": 1},
    "sums of a rank without a sample": {"task__path": Confusion, "data__path": lambda: (Points(32), Points(1))},
    "language model": LANGUAGE_MODEL,
    "language model, checkpointed and clipped": {
        **LANGUAGE_MODEL,
        "trainer__activation_checkpointing": "full",
        "trainer__max_grad_norm": 0.1,
    },
}


def training(ranks: DistContext, overrides: dict[str, Any]) -> dict[str, Any]:
    """Train; all that can be compared."""
    defaults = {"data__path": lambda: (Points(TRAIN), Points(VALIDATION)), "scaling__num_workers": ranks.world_size}
    trainer, outcome, reporter = fit(toy_config(**{**defaults, **overrides}), ranks)
    return {
        "losses": reporter.values("train/loss"),
        "val/loss": reporter.values("val/loss"),
        "val/accuracy": reporter.values("val/accuracy"),
        "val/f1": reporter.values("val/f1"),
        "norms": reporter.values("grad_norm"),
        "seen": getattr(trainer.state.task, "seen", []),
        "sha": outcome.weights_sha256,
        "weights": torch.cat([parameter.detach().flatten() for parameter in trainer.step.parameters]),
    }


def train_each(ranks: DistContext, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [training(ranks, overrides) for overrides in cases]


def test_two_ranks_equal_one_process() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = train_each(DistContext.current(), list(CASES.values()))
    finally:
        torch.set_num_threads(threads)
    first, second = run_ranks(train_each, 2, list(CASES.values()))
    steps = {"one micro batch": 14, "clipped": 7, "float32": 10, "weighted": 5, "language model": 4}
    for case, one, other, expected in zip(CASES, first, second, alone, strict=True):
        assert one["sha"] == other["sha"], case
        assert len(one["losses"]) == len(expected["losses"]) == steps.get(case, len(expected["losses"])), case
        tolerance = 1e-5 if case == "float32" else 1e-11
        for key in ("losses", "val/loss", "val/accuracy", "val/f1", "norms"):
            assert one[key] == pytest.approx(expected[key], abs=tolerance), f"{key} {case}"
        assert torch.allclose(one["weights"], expected["weights"], atol=tolerance, rtol=0), case
    clipped = alone[list(CASES).index("clipped")]["norms"]
    assert len(clipped) == 7
    assert max(clipped) > 0.1


def test_same_samples_at_each_step_and_none_twice() -> None:
    overrides = {ACCUMULATE: 2, "trainer__epochs": 1}
    alone = training(DistContext.current(), overrides)["seen"]
    first, second = (result["seen"] for result in run_ranks(training, 2, overrides))
    assert Counter(sum(first + second, [])) == Counter(range(TRAIN)) == Counter(sum(alone, []))
    steps_alone = [set(sum(alone[i : i + 2], [])) for i in range(0, len(alone), 2)]
    steps_two = [set(sum(first[i : i + 2] + second[i : i + 2], [])) for i in range(0, len(first), 2)]
    assert steps_two == steps_alone


def gradient_of_a_step(ranks: DistContext, overrides: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """The gradient of the epoch's last, uneven optimizer step, and how often ranks exchanged gradients."""
    config = toy_config(**overrides, trainer__max_steps=2, optimizer__lr=1e-300, scaling__num_workers=ranks.world_size)
    trainer = build_trainer(config, ranks, MemoryReporter())
    exchanges: list[int] = []
    if ranks.world_size > 1:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations by identity
            exchanges.append(bucket.index())
            return allreduce_hook(state, bucket)

        trainer.model.register_comm_hook(None, hook)
    trainer.fit()
    return torch.cat([parameter.grad.flatten() for parameter in trainer.step.parameters]), len(exchanges)


def ids_of_the_step(micro_batch_size: int) -> torch.Tensor:
    ids = DataOrder(samples=29, global_batch_size=16, micro_batch_size=micro_batch_size, seed=0).step_ids(0, 1)
    assert len(ids) == 13
    return ids


def gradient_of_points() -> torch.Tensor:
    """The gradient of the same 13 samples in one go, by the textbook."""
    torch.manual_seed(0)
    model, dataset = net().double(), Points(29)
    samples = [dataset[i] for i in ids_of_the_step(16).tolist()]
    logits = model(torch.stack([features for features, _, _ in samples]))
    F.cross_entropy(logits, torch.tensor([target for _, target, _ in samples])).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]


def gradient_of_sentences() -> torch.Tensor:
    torch.manual_seed(0)
    model, sentences, ids = GPTConfig.model_validate(MODEL).build().double(), Sentences(29), ids_of_the_step(2)
    F.cross_entropy(model(sentences.tokens[ids]).flatten(0, 1), sentences.targets[ids].flatten()).backward()  # type: ignore[no-untyped-call]
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]


TAILS: dict[str, tuple[dict[str, Any], Callable[[], torch.Tensor]]] = {
    "points": ({"data__path": lambda: (Points(16 + 13), Points(4)), ACCUMULATE: 4}, gradient_of_points),
    "tokens": (LANGUAGE_MODEL, gradient_of_sentences),
}


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("tail", TAILS)
def test_accumulation_over_an_uneven_tail_is_exact(tail: str, world_size: int) -> None:
    """And exchanges gradients once a step: the model fits into one bucket."""
    overrides, by_the_textbook = TAILS[tail]
    expected = by_the_textbook()
    assert expected.abs().max() > 1e-3
    for gradient, exchanges in run_ranks(gradient_of_a_step, world_size, overrides):
        assert torch.allclose(gradient, expected, atol=1e-12, rtol=0)
        assert exchanges == (2 if world_size > 1 else 0)


def test_the_tokens_of_the_tail_are_uneven() -> None:
    counted = []
    for rank in range(2):
        order = DataOrder(samples=29, global_batch_size=16, micro_batch_size=2, rank=rank, world_size=2)
        parts = order.step_micro_batches(0, 1)
        counted.append([int((Sentences(29).targets[part.ids] != -100).sum()) for part in parts])
    assert sum(counted[0]) != sum(counted[1])
    assert len({*counted[0], *counted[1]}) > 4


def evaluated_with_norm(ranks: DistContext) -> tuple[float, dict[str, torch.Tensor]]:
    """The validation loss of two ranks, and rank 0's weights and buffers."""
    config = toy_config(
        model__path=net_with_dropout_and_norm,
        data__path=lambda: (Points(TRAIN), Points(VALIDATION)),
        scaling__num_workers=ranks.world_size,
    )
    trainer, outcome, _ = fit(config, ranks)
    return outcome.metrics["val/loss"], trainer.state.task.model.state_dict()


def test_evaluation_is_that_of_the_saved_weights_with_batch_norm_too() -> None:
    loss, state = run_ranks(evaluated_with_norm, 2)[0]
    model, dataset = net_with_dropout_and_norm().double(), Points(VALIDATION)
    model.load_state_dict(state)
    logits = model.eval()(torch.stack([dataset[i][0] for i in range(VALIDATION)]))
    targets = torch.tensor([dataset[i][1] for i in range(VALIDATION)])
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, targets).item(), abs=1e-12)
