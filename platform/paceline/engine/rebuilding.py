"""A trained model, made again from its config and the weights that a checkpoint or an export holds."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from paceline.config.experiment import ExperimentConfig
from paceline.engine.redundant_bias import remove_redundant_bias
from paceline.errors import EnvironmentFault, UnusableCode

WEIGHTS = "model.safetensors"


def rebuild(config: ExperimentConfig, folder: Path) -> nn.Module:
    """The model on the CPU, in eval mode. Leaves the random generators as they are.

    Whatever the weights were trained with (several workers, shards, a compiler), their names are those of one plain
    process. A model of the user's own is built by running the user's code.

    Args:
        folder: holds `model.safetensors`.

    Raises:
        EnvironmentFault: it does not.
        UnusableCode: the weights are those of another model than the config builds.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        raise EnvironmentFault(f"there are no weights in {folder}: {WEIGHTS} is not there", "weights-missing")
    with torch.random.fork_rng(devices=[]):
        model = config.model.build()
    if config.trainer.remove_redundant_bias:
        remove_redundant_bias(model)
    if config.trainer.precision == "64-true":
        model.double()
    try:
        model.load_state_dict(load_file(file))
    except RuntimeError as error:
        raise UnusableCode(
            f"the weights in {file} are not those of the config's model: {error}", "weights-mismatch"
        ) from None
    return model.eval()
