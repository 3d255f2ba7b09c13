"""torch.compile and activation checkpointing under DDP: as one rank without, and all ranks fall back together."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from paceline.engine.dist_context import DistContext
from support.ranks import run_ranks
from support.toys import CLASSES, FEATURES, fit, toy_config


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.second(torch.relu(self.first(self.norm(inputs))))


def blocks() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Sequential(Block(), Block()), nn.Linear(8, CLASSES))


def data() -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(32, FEATURES, generator=generator), torch.arange(32) % CLASSES
    return TensorDataset(inputs, targets), TensorDataset(inputs[:0], targets[:0])


def broken(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("there is no C++ compiler")


def training(ranks: DistContext, backend: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Train; `backend` may be a rank's number, whose compiler then fails."""
    from paceline.engine import compilation

    fails = isinstance(backend, int) and backend == ranks.rank
    compilation.BACKEND = broken if fails else "eager" if isinstance(backend, int) else backend
    config = toy_config(
        task={"name": "classification"},
        model__path=blocks,
        data__path=data,
        trainer__gradient_accumulation_steps=2,
        trainer__epochs=1,
        scaling__num_workers=ranks.world_size,
        **changes,
    )
    trainer, _, reporter = fit(config, ranks)
    return {
        "weights": torch.cat([parameter.detach().flatten() for parameter in trainer.step.parameters]),
        "warnings": [
            details for kind, details in reporter.events if kind == "warning" and details["code"] != "no-validation"
        ],
        "compiled": trainer.state.task._compiled_call_impl is not None,
    }


COMPILED = {"trainer__compile": "default"}


def test_two_compiled_and_checkpointed_ranks_equal_one_plain() -> None:
    """DDPOptimizer, which cuts the graph at DDP's buckets, takes the checkpoints too."""
    alone = training(DistContext.current(), "eager", {})
    for result in run_ranks(training, 2, "aot_eager", {**COMPILED, "trainer__activation_checkpointing": "full"}):
        assert result["warnings"] == []
        assert result["compiled"]
        assert torch.allclose(result["weights"], alone["weights"], atol=1e-12, rtol=0)


def test_all_ranks_fall_back_when_one_cannot_compile(golden: Any) -> None:
    alone = training(DistContext.current(), "eager", {})
    first, second = run_ranks(training, 2, 1, COMPILED)
    (warning,) = first["warnings"]
    assert warning["code"] == "not-compiled"
    golden(warning["message"])
    assert second["warnings"] == []
    for result in (first, second):
        assert not result["compiled"]
        assert torch.allclose(result["weights"], alone["weights"], atol=1e-12, rtol=0)
