"""Losses are divided by about their weight before backward, so that fp16 gradients are as large as they end up."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.forward_backward import LocalForwardBackward
from support.adascale import ADASCALE
from support.sentences import CONTEXT, MODEL, VOCAB
from support.toys import built, fit, toy_config


class Texts:
    """Tokens that all count, but for one in the last sentence."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        text = (torch.arange(CONTEXT + 1) * (index + 1)) % VOCAB
        return text[:-1], text[1:].masked_fill(torch.arange(CONTEXT) < (index == 31), -100)


LANGUAGE_MODEL: dict[str, Any] = {
    "model": MODEL,
    "task": {"name": "language_modeling"},
    "data__path": lambda: (Texts(), Texts()),
    "trainer__gradient_accumulation_steps": 2,
}


def test_gradients_in_backward_are_as_large_as_those_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = []
    backward = LocalForwardBackward.backward

    def noted(self: Any, loss: torch.Tensor, gradient: torch.Tensor) -> None:
        factors.append(gradient.item())
        backward(self, loss, gradient)

    monkeypatch.setattr(LocalForwardBackward, "backward", noted)
    fit(toy_config(**LANGUAGE_MODEL))
    assert len(factors) == 8
    assert factors == pytest.approx([1 / (16 * CONTEXT)] * 8)


@pytest.mark.parametrize("overrides", [{}, ADASCALE, {"trainer__max_grad_norm": 0.1}], ids=["sgd", "adascale", "clip"])
def test_weights_are_equal_to_the_bit_without_the_estimate(
    monkeypatch: pytest.MonkeyPatch, overrides: dict[str, Any]
) -> None:
    config = toy_config(**{**LANGUAGE_MODEL, **overrides})
    scaled = fit(config)[1]
    monkeypatch.setattr("paceline.engine.weight_scale.log2", lambda weight: 0)
    assert fit(config)[1].weights_sha256 == scaled.weights_sha256


def test_the_estimate_is_saved(tmp_path: Path) -> None:
    config = toy_config(**LANGUAGE_MODEL)
    fit(config, checkpoints=tmp_path)
    trainer = built(config, tmp_path)
    assert trainer.step.forward_backward.weight_scale.state_dict() == {"value": CONTEXT}
