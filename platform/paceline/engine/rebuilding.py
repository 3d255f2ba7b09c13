"""A trained model, made again from its config and the weights that a checkpoint or an export holds."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Called
from paceline.engine.redundant_bias import remove_redundant_bias
from paceline.errors import EnvironmentFault, UnusableCode
from paceline.models.base import ModelConfig

WEIGHTS = "model.safetensors"
AVERAGE = "component.callback.ema.safetensors"
"""File of a checkpoint with the state of the callback `ema`."""
AVERAGE_PREFIX = "average."


def rebuild(config: ExperimentConfig, folder: Path, model: Any = None) -> nn.Module:
    """The model on the CPU, in eval mode. Leaves the random generators as they are.

    Whatever the weights were trained with (several workers, shards, a compiler), their names are those of one plain
    process. A model of the user's own is built by running the user's code.

    Args:
        folder: holds `model.safetensors`.
        model: in place of the config's: a module, which gets the weights, or what makes one when it is called with the
            config's `model.args`.

    Raises:
        EnvironmentFault: it does not.
        UnusableCode: the weights are those of another model than the config builds.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise EnvironmentFault(f"there are no weights in {folder}: {WEIGHTS} is not there", "weights-missing")
    with torch.random.fork_rng(devices=[]):
        built = _built(config, model)
    if config.trainer.remove_redundant_bias:
        remove_redundant_bias(built)
    if config.trainer.precision == "64-true":
        built.double()
    try:
        built.load_state_dict(evaluated_weights(folder))
    except RuntimeError as error:
        raise UnusableCode(
            f"the weights in {file} are not those of the config's model: {error}", "weights-mismatch"
        ) from None
    return built.eval()


def evaluated_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights and buffers that evaluation uses: with the callback `ema`, the averages in place of the weights.

    Args:
        folder: a checkpoint, or an export.
    """
    weights = load_file(folder / WEIGHTS)
    if (folder / AVERAGE).is_file():
        for name, tensor in load_file(folder / AVERAGE).items():
            weights[name.removeprefix(AVERAGE_PREFIX)] = tensor
    return weights


def _built(config: ExperimentConfig, model: Any) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    if model is None:
        return ModelConfig.of(config.model).build()
    args: dict[str, Any] = config.model.args if isinstance(config.model, Called) else {}
    changed = config.with_overrides({"model": {"path": model, "args": args}})
    return ModelConfig.of(changed.model).build()
