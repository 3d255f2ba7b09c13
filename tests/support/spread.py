"""A training run that can be compared, however its weights are spread over the ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.engine.dist_context import DistContext
from support.toys import CLASSES, FEATURES, Points, fit, toy_config

TRAIN, VALIDATION = 45, 13
"""With 4 ranks the last global batch of 13 leaves one rank with fewer micro batches than the others."""


def blocks(width: int = 8) -> nn.Module:
    """A stem, two blocks and a head."""
    return nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(2))),
        nn.Linear(width, CLASSES),
    )


def training(ranks: DistContext, checkpoints: Path | None = None, **overrides: Any) -> dict[str, Any]:
    """Train, and tell all that can be compared."""
    defaults: dict[str, Any] = {} if "model" in overrides else {"model__path": blocks}
    if "data" not in overrides:
        defaults["data__path"] = lambda: (Points(TRAIN), Points(VALIDATION))
    config = toy_config(
        **{**defaults, "trainer__gradient_accumulation_steps": 2, "scaling__num_workers": ranks.world_size, **overrides}
    )
    trainer, outcome, reporter = fit(config, ranks, checkpoints)
    weights = trainer.state.model_tensors()
    return {
        "losses": reporter.values("train/loss"),
        "val": reporter.values("val/loss"),
        "norms": reporter.values("grad_norm"),
        "weights": torch.cat([weights[name].flatten() for name in sorted(weights)]) if weights else None,
        "sha": outcome.weights_sha256,
        "held": sum(trainer.state.layout.local(each).numel() for each in trainer.step.parameters),
        "resumed": [details["step"] for kind, details in reporter.events if kind == "resumed"],
    }


def require_same(spread: dict[str, Any], alone: dict[str, Any], steps: int, case: str = "") -> None:
    """Fail unless a run over several ranks trained as one process did."""
    assert len(spread["losses"]) == len(alone["losses"]) == steps > 0, case
    for key in ("losses", "val", "norms"):
        assert spread[key] == pytest.approx(alone[key], abs=1e-9), f"{key} {case}"
    assert torch.allclose(spread["weights"], alone["weights"], atol=1e-9, rtol=0), case
