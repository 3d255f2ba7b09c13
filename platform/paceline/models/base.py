"""Base class of the model configs."""

from typing import TYPE_CHECKING

from paceline.config.model import ModelSection

if TYPE_CHECKING:
    from torch import nn


class ModelConfig(ModelSection):
    """Builds a network. Weights are initialised by torch's global generator, which the engine seeds before.

    With `weights`, the engine then loads those of a run or a file in their place.
    """

    def build(self) -> "nn.Module":
        """The network, on the CPU and in float32, with freshly initialised weights."""
        raise NotImplementedError
