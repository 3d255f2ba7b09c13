"""The real compiler."""

from typing import Any

import pytest
import torch
import torch._inductor.config
from torch.utils.data import TensorDataset

from paceline.engine.compilation import apply_compiler_settings
from support.toys import CLASSES, FEATURES, fit, toy_config


def data() -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    features, targets = torch.randn(32, FEATURES, generator=generator), torch.arange(32) % CLASSES
    return TensorDataset(features, targets), TensorDataset(features[:16], targets[:16])


def config(**changes: Any) -> Any:
    return toy_config(task={"name": "classification"}, data__path=data, trainer__epochs=1, **changes)


@pytest.mark.parametrize("scope", ["model", pytest.param("blocks", marks=pytest.mark.slow)])
def test_inductor_trains_as_eager_mode_does(scope: str) -> None:
    """Inductor draws other random numbers than torch, so without dropout; the rest is equal up to rounding."""
    try:
        with torch._inductor.config.patch(compile_threads=1):  # otherwise it starts processes
            plain = fit(config())[2]
            compiled = fit(config(trainer__compile="default", trainer__compile_scope=scope))[2]
    finally:
        apply_compiler_settings(config().trainer)
    assert not [event for event in compiled.events if event[0] == "warning"]
    for key in ("train/loss", "val/loss"):
        assert compiled.values(key) == pytest.approx(plain.values(key), abs=1e-12)
