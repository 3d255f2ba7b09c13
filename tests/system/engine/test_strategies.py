"""Weights cut up over ranks, and models cut into stages, train as one process does, whatever the model and the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paceline.engine.dist_context import DistContext
from paceline.errors import UnusableCode
from paceline.tasks.base import TaskOutput
from support.ranks import run_ranks
from support.sentences import MODEL, Sentences
from support.spread import TRAIN, blocks, require_same, training
from support.toys import CLASSES, FEATURES, Points, PointsTask, fit, toy_config

FSDP, PIPELINE = {"parallel__strategy": "fsdp"}, {"parallel__strategy": "pipeline"}
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "one process": (1, {}),
    "ddp": (2, {}),
    "fsdp": (2, FSDP),
    "pipeline": (2, PIPELINE),
}
SPREAD = ["fsdp", "pipeline"]


class Noisy(PointsTask):
    """Draws a random number before it calls its model, and uses it in the loss again; has a buffer of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.register_buffer("mean", torch.full((FEATURES,), 0.5))

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        strength = torch.rand(()) if self.training else torch.ones(())
        output = super().forward(((features - self.mean) * strength, targets, ids))
        return TaskOutput(output.loss_sum * (1 + strength), output.weight, output.metrics)


class Twice(PointsTask):
    """Calls its model twice."""

    def forward(self, batch: Any) -> TaskOutput:
        features, targets, ids = batch
        return super().forward((features + self.model(features).sum(), targets, ids))


class InPlace(nn.Module):
    """Writes over its input."""

    def __init__(self) -> None:
        super().__init__()
        self.activation, self.layer = nn.ReLU(inplace=True), nn.Linear(8, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(self.activation(inputs))


class Shared(nn.Module):
    """Two blocks with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.blocks[2][0].weight = self.blocks[0][0].weight
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def scaled() -> nn.Module:
    """With a parameter that is a single number."""
    model = blocks()
    model[0].register_parameter("scale", nn.Parameter(torch.ones(())))
    return model


def from_numpy() -> nn.Module:
    """Initial weights of numpy's generator."""
    model = blocks()
    model[0].weight.data = torch.from_numpy(np.random.randn(*model[0].weight.shape)).float()
    return model


def by_rank() -> nn.Module:
    """Initial weights that no seed decides."""
    model = blocks()
    model[0].weight.data += torch.distributed.get_rank()
    return model


def frozen() -> nn.Module:
    """Nothing but the head is trained."""
    model = blocks()
    model[:2].requires_grad_(False)
    return model


def in_place() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), InPlace())


def layerwise(name: str) -> dict[str, Any]:
    return {"optimizer": {"name": name, "lr": 0.01, "weight_decay": 0.01}}


PLAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "adamw, clipped": {"optimizer": {"name": "adamw", "lr": 0.01}, "trainer__max_grad_norm": 0.05},
    "checkpointed blocks": {"trainer__activation_checkpointing": "full"},
    "numpy": {"model__path": from_numpy},
    "lars": layerwise("lars"),
    "lamb": layerwise("lamb"),
    "novograd": layerwise("novograd"),
    "muon": layerwise("muon"),
    "schedule-free": layerwise("schedule_free_adamw"),
    "uneven tokens": {
        "model": {**MODEL, "tie_embeddings": False},
        "task": {"name": "language_modeling"},
        "data__path": lambda: (Sentences(29), Sentences(11)),
    },
}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "fsdp": {
        **PLAIN,
        "nvlamb": layerwise("nvlamb"),
        "muon for every matrix": {"optimizer": {"name": "muon", "weight_decay": 0.01, "adamw_match": "none of them"}},
        "shared weights": {"model__path": Shared},
        "frozen": {"model__path": frozen},
        "a rank with fewer validation batches": {"data__path": lambda: (Points(TRAIN), Points(9))},
    },
    "pipeline": {
        **PLAIN,
        "as many micro batches as stages": {"trainer__gradient_accumulation_steps": 1},
        "a task that draws before its model": {"task__path": Noisy},
        "in place": {"model__path": in_place},
    },
}
IN_PAIRS: dict[str, dict[str, Any]] = {
    "fsdp": {"parallel__shard_size": 2},
    "pipeline": {"parallel__pipeline_stages": 2},
}


def train_each(ranks: DistContext, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train one after the other."""
    return [training(ranks, **overrides) for overrides in runs]


@pytest.mark.parametrize("strategy", SPREAD)
def test_two_ranks_train_as_one_process(strategy: str) -> None:
    runs = list(CASES[strategy].values())
    alone = train_each(DistContext.current(), runs)
    first, second = run_ranks(train_each, 2, [{**STRATEGIES[strategy][1], **run} for run in runs])
    for case, one, other, expected in zip(CASES[strategy], first, second, alone, strict=True):
        require_same(one, expected, steps=len(expected["losses"]), case=case)
        if case in ("plain", "frozen"):
            assert one["held"] + other["held"] == expected["held"], case


@pytest.mark.parametrize("strategy", SPREAD)
def test_four_ranks_in_pairs_train_as_one_process(strategy: str) -> None:
    alone = training(DistContext.current(), trainer__max_grad_norm=0.05)
    spread = {**STRATEGIES[strategy][1], **IN_PAIRS[strategy]}
    ranks = run_ranks(training, 4, **spread, trainer__max_grad_norm=0.05)
    require_same(ranks[0], alone, steps=6)
    assert sum(rank["held"] for rank in ranks) == alone["held"] * 2


class Watched(nn.Module):
    """Notes the formats of the inputs and the weights of its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, FEATURES)) for _ in "ab")
        self.head = nn.Linear(FEATURES, CLASSES)
        self.seen: set[tuple[torch.dtype, torch.dtype]] = set()
        for block in self.blocks:
            block[0].register_forward_pre_hook(lambda norm, inputs: self.seen.add((inputs[0].dtype, norm.weight.dtype)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


def formats(ranks: DistContext, gather_dtype: str) -> dict[str, Any]:
    """Formats in the blocks and of the stored weights of a short training, and its losses."""
    config = toy_config(
        model__path=Watched,
        parallel={"strategy": "fsdp", "gather_dtype": gather_dtype},
        scaling__num_workers=2,
        trainer__precision="bf16-mixed",
    )
    trainer, _, reporter = fit(config, ranks)
    model = trainer.state.task.model
    stored = {parameter.dtype for parameter in model.parameters()}
    losses = [values["train/loss"] for _, values in reporter.points if "train/loss" in values]
    return {"blocks": model.seen, "stored": stored, "losses": losses}


def test_weights_are_gathered_in_the_format_of_mixed_precision() -> None:
    full, mixed = run_ranks(formats, 2, "full")[0], run_ranks(formats, 2, "mixed")[0]

    assert {weights for _, weights in full["blocks"]} == {torch.float32}
    assert mixed["blocks"] == {(torch.bfloat16, torch.bfloat16)}
    assert full["stored"] == mixed["stored"] == {torch.float32}
    assert mixed["losses"] == pytest.approx(full["losses"], rel=0.02)
    assert mixed["losses"][-1] < 0.9 * mixed["losses"][0]


RESNET: dict[str, Any] = {
    "model": {"name": "resnet18", "num_classes": 3},
    "task": {"name": "classification"},
    "data": {
        "name": "synthetic",
        "shape": [3, 32, 32],
        "num_classes": 3,
        "num_samples": 8,
        "num_validation_samples": 5,
    },
    "data__global_batch_size": 8,
    "optimizer__lr": 0.001,
    "trainer__max_steps": 1,
}


def test_a_traced_model_with_batch_normalisation_in_two_stages() -> None:
    """A pipeline has the micro batches of one process."""
    alone = training(DistContext.current(), **RESNET)
    spread = run_ranks(training, 2, **RESNET, **PIPELINE)[0]
    assert spread["losses"] == pytest.approx(alone["losses"], abs=1e-9)
    assert spread["val"] == pytest.approx(alone["val"], rel=1e-7)  # two samples for a variance enlarge any rounding
    assert torch.allclose(spread["weights"], alone["weights"], atol=1e-8, rtol=0)


# Checkpoints


OPTIMIZER = {"optimizer": {"name": "adamw", "lr": 0.01}, "optimizer__weight_decay_exclude": "norms_and_biases"}


def train(strategy: str, checkpoints: Path, **overrides: Any) -> dict[str, Any]:
    """Train with a strategy; the result of rank 0."""
    world_size, own = STRATEGIES[strategy]
    if world_size == 1:
        return training(DistContext.current(), checkpoints, **own, **OPTIMIZER, **overrides)
    return run_ranks(training, world_size, checkpoints, **own, **OPTIMIZER, **overrides)[0]


def test_a_checkpoint_of_one_strategy_resumes_under_another(tmp_path: Path) -> None:
    whole = train("one process", tmp_path / "whole", trainer__epochs=5)
    losses = []
    for epochs, strategy in enumerate(["one process", "fsdp", "pipeline", "ddp", "pipeline"], 1):
        part = train(strategy, tmp_path / "parts", trainer__epochs=epochs)
        assert part["resumed"] == ([3 * (epochs - 1)] if epochs > 1 else [])
        losses += part["losses"]
    assert losses == pytest.approx(whole["losses"], abs=1e-9)
    assert torch.allclose(part["weights"], whole["weights"], atol=1e-9, rtol=0)
    back = train("fsdp", tmp_path / "parts", trainer__epochs=6)
    assert len(back["losses"]) == 3


# Refusals


TIED = {"model": {**MODEL, "tie_embeddings": True}}
REFUSED: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a task that calls its model twice": ({"task__path": Twice, **PIPELINE}, "pipeline-model-calls", {}),
    "a single number": ({"model__path": scaled, **FSDP}, "scalar-parameter", {"parameter": "model.0.scale"}),
    "unlike starts": ({"model__path": by_rank, **FSDP}, "different-initial-weights", {}),
    "unlike starts in a pipeline": ({"model__path": by_rank, **PIPELINE}, "different-initial-weights", {}),
    "frozen in a pipeline": ({"model__path": frozen, **PIPELINE}, "too-many-stages", {"most": 1, "asked": 2}),
    "tied embeddings in a pipeline": ({**TIED, **PIPELINE}, "pipeline-shared-weights", {"stages": [0, 1]}),
}


def refusal(ranks: DistContext, **overrides: Any) -> tuple[str, dict[str, Any], str]:
    """Why a run is refused; an empty code of a rank that lost its peer."""
    try:
        training(ranks, **overrides)
    except UnusableCode as error:
        return error.code, dict(error.fields), error.message
    except RuntimeError:
        return "", {}, ""
    return "trained", {}, ""


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_spread_is_refused(case: str, golden: Any) -> None:
    overrides, code, fields = REFUSED[case]
    refusals = [each for each in run_ranks(refusal, 2, **overrides) if each[0]]
    assert refusals
    for found, details, _ in refusals:
        assert found == code
        assert details.items() >= fields.items()
    golden(refusals[0][2])
