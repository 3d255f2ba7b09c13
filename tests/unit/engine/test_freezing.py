"""Frozen parameters stay as they are, take no memory, and must exist."""

from pathlib import Path

import pytest
import torch

from paceline.errors import ConfigError
from support.refusals import refused
from support.toys import fit, net, toy_config


def test_only_the_rest_is_trained(tmp_path: Path) -> None:
    torch.manual_seed(toy_config().seed)
    trainer, _, _ = fit(toy_config(trainer__freeze=[r"^0\.", "bias$"]), checkpoints=tmp_path)
    untrained = fit(toy_config(trainer__max_steps=1, optimizer__lr=1e-30))[0].state.task.model.state_dict()
    weights = trainer.state.task.model.state_dict()

    same = {name for name in weights if torch.allclose(weights[name], untrained[name], rtol=0, atol=1e-20)}
    assert same == {"0.0.weight", "0.0.bias", "1.bias"}
    assert [len(group["params"]) for group in trainer.state.optimizer.param_groups] == [1]
    assert len(trainer.state.optimizer.state) == 1


def test_the_rest_trains_as_if_the_model_had_frozen_them(tmp_path: Path) -> None:
    def frozen() -> torch.nn.Module:
        model = net()
        model[0].requires_grad_(False)
        return model

    by_model = fit(toy_config(model__path=frozen))[1]
    by_config = fit(toy_config(trainer__freeze=[r"^0\."]))[1]
    assert by_config.weights_sha256 == by_model.weights_sha256


@pytest.mark.parametrize(
    ("patterns", "code"), [(["^1", "backbone"], "no-such-parameters"), (["weight", "bias"], "nothing-to-train")]
)
def test_what_freezes_nothing_or_everything_is_refused(patterns: list[str], code: str) -> None:
    refusal = refused(ConfigError, fit, toy_config(trainer__freeze=patterns))
    assert [(problem.code, problem.key) for problem in refusal.problems] == [(code, "trainer.freeze")]
