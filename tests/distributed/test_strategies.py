"""What all strategies have in common: any model and task, and checkpoints that any of them can go on from."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.ranks import Ranks
from paceline.errors import UnusableCode
from support.ranks import run_ranks
from support.sentences import MODEL, Sentences
from support.spread import training
from support.toys import net_with_dropout_and_norm

SPREAD: dict[str, tuple[int, dict[str, Any]]] = {
    "fsdp": (2, {"parallel__strategy": "fsdp"}),
    "pipeline": (2, {"parallel__strategy": "pipeline"}),
}
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {"one process": (1, {}), "ddp": (2, {}), **SPREAD}


def train(strategy: str, checkpoints: Path | None = None, **overrides: Any) -> dict[str, Any]:
    """Train with a strategy; what rank 0 tells."""
    world_size, own = STRATEGIES[strategy]
    if world_size == 1:
        return training(Ranks.current(), checkpoints, **own, **overrides)
    return run_ranks(training, world_size, checkpoints, **own, **overrides)[0]


OPTIMIZER = {"optimizer": {"name": "adamw", "lr": 0.01}, "optimizer__weight_decay_exclude": "norms_and_biases"}


def test_a_checkpoint_of_one_strategy_resumes_under_another(tmp_path: Path) -> None:
    whole = train("one process", **OPTIMIZER, trainer__epochs=5)
    losses = []
    for epochs, strategy in enumerate(["one process", "fsdp", "pipeline", "ddp", "pipeline"], 1):
        part = train(strategy, tmp_path, **OPTIMIZER, trainer__epochs=epochs)
        assert part["resumed"] == ([3 * (epochs - 1)] if epochs > 1 else [])
        losses += part["losses"]
    assert losses == pytest.approx(whole["losses"], abs=1e-9)
    assert torch.allclose(part["weights"], whole["weights"], atol=1e-9, rtol=0)
    back = train("fsdp", tmp_path, **OPTIMIZER, trainer__epochs=6)
    assert len(back["losses"]) == 3


@pytest.mark.parametrize("strategy", SPREAD)
def test_a_stopped_run_goes_on_to_the_same_bits(strategy: str, tmp_path: Path) -> None:
    overrides = {**OPTIMIZER, "model__path": net_with_dropout_and_norm}
    whole = train(strategy, tmp_path / "whole", **overrides)
    train(strategy, tmp_path / "cut", **overrides, trainer__epochs=1)
    rest = train(strategy, tmp_path / "cut", **overrides)
    assert rest["resumed"] == [3]
    assert rest["sha"] == whole["sha"]
    assert rest["losses"] == whole["losses"][3:]


LAYERWISE = ["lars", "lamb", "novograd"]


@pytest.mark.parametrize(("optimizer", "strategy"), [*product(LAYERWISE, SPREAD), ("nvlamb", "fsdp")])
def test_optimizers_that_look_at_whole_layers(optimizer: str, strategy: str) -> None:
    overrides = {"optimizer": {"name": optimizer, "lr": 0.01, "weight_decay": 0.01}, "trainer__max_steps": 3}
    alone = train("one process", **overrides)
    spread = train(strategy, **overrides)
    assert spread["losses"] == pytest.approx(alone["losses"], abs=1e-9)
    assert torch.allclose(spread["weights"], alone["weights"], atol=1e-9, rtol=0)


def language_model(strategy: str, **overrides: Any) -> dict[str, Any]:
    """Train the model whose loss is divided by the tokens that count."""
    return train(
        strategy,
        model={**MODEL, "tie_embeddings": False},
        task={"name": "language_modeling"},
        data__path=lambda: (Sentences(29), Sentences(11)),
        **overrides,
    )


@pytest.mark.parametrize("strategy", SPREAD)
def test_the_tokens_that_count_are_those_of_all_ranks(strategy: str) -> None:
    alone, spread = language_model("one process"), language_model(strategy)
    assert spread["losses"] == pytest.approx(alone["losses"], abs=1e-9)
    assert spread["val"] == pytest.approx(alone["val"], abs=1e-9)
    assert torch.allclose(spread["weights"], alone["weights"], atol=1e-9, rtol=0)


def resnet(strategy: str) -> dict[str, Any]:
    """Train a traced model with batch normalisation: a pipeline has the micro batches of one process."""
    return train(
        strategy,
        model={"name": "resnet18", "num_classes": 3},
        task={"name": "classification"},
        data={
            "name": "synthetic",
            "shape": [3, 32, 32],
            "num_classes": 3,
            "num_samples": 14,
            "num_validation_samples": 5,
        },
        data__global_batch_size=8,
        optimizer__lr=0.001,
        trainer__max_steps=2,
    )


def test_a_traced_model_with_batch_normalisation_in_two_stages() -> None:
    alone, spread = resnet("one process"), resnet("pipeline")
    assert spread["losses"] == pytest.approx(alone["losses"], abs=1e-9)
    assert spread["val"] == pytest.approx(alone["val"], rel=1e-7)  # two samples for a variance enlarge any rounding
    assert torch.allclose(spread["weights"], alone["weights"], atol=1e-8, rtol=0)


def test_stages_that_share_weights_are_refused() -> None:
    def tied(ranks: Ranks) -> str:
        try:
            training(ranks, parallel__strategy="pipeline", model={**MODEL, "tie_embeddings": True})
        except UnusableCode as error:
            return str(error)
        return ""

    for reason in run_ranks(tied, 2):
        assert "stages 0 and 1 share model.token_embedding.weight" in reason
        assert "tie_embeddings: false" in reason
