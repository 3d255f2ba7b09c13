"""The real compiler."""

from typing import Any

import pytest
import torch
import torch._inductor.config
from torch.utils.data import TensorDataset

from paceline.engine.compilation import apply_compiler_settings
from support.toys import CLASSES, FEATURES, fit, toy_config


def data(validation: int) -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    train = TensorDataset(torch.randn(32, FEATURES, generator=generator), torch.arange(32) % CLASSES)
    return train, TensorDataset(*train[:validation])


def config(**changes: Any) -> Any:
    return toy_config(task={"name": "classification"}, trainer__epochs=1, **changes)


@pytest.mark.parametrize(
    ("validation", "scope", "keys"),
    [
        pytest.param(0, "model", ["train/loss"], id="training"),
        pytest.param(16, "model", ["train/loss", "val/loss"], marks=pytest.mark.slow, id="evaluation"),
        pytest.param(16, "blocks", ["train/loss", "val/loss"], marks=pytest.mark.slow, id="blocks"),
    ],
)
def test_inductor_trains_as_eager_mode_does(validation: int, scope: str, keys: list[str]) -> None:
    """Inductor draws other random numbers than torch, so without dropout; the rest is equal up to rounding."""
    try:
        with torch._inductor.config.patch(compile_threads=1):  # otherwise it starts processes
            sets = {"data__path": data, "data__args": {"validation": validation}}
            plain = fit(config(**sets))[2]
            compiled = fit(config(**sets, trainer__compile="default", trainer__compile_scope=scope))[2]
    finally:
        apply_compiler_settings(config().trainer)
    warnings = {details["code"] for kind, details in compiled.events if kind == "warning"}
    assert warnings == (set() if validation else {"no-validation"})
    for key in keys:
        assert plain.values(key)
        assert compiled.values(key) == pytest.approx(plain.values(key), abs=1e-12)
