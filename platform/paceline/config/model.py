"""The fields that every model has in the config."""

from typing import Annotated

from pydantic import Field

from paceline.config.base import Component
from paceline.config.limits import Regex


class ModelSection(Component):
    """The section `model`, whatever the network: where its weights come from."""

    weights: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Weights to start from: a run under the same storage (`NAME`, its newest finished one, or `NAME/ID`), the folder
    or the address of a run, a checkpoint or an export, a `.safetensors` file, or a file with a state dict, which is
    read without pickle. Of a run with the callback `ema`, the averages. `null`: freshly initialised ones."""
    weights_skip: Regex | None = None
    """Weights that keep their fresh initialisation, for fine-tuning with another head: a Python regular expression,
    searched for anywhere in their names, such as `^head\\.`. `null`: all of `weights` are loaded."""

    @property
    def initial_weights(self) -> str | None:
        """The run or the file that the weights are loaded from; None where `build` already gives the first ones."""
        return self.weights
