"""What every model's config offers."""

from typing import TYPE_CHECKING

from paceline.config.base import Component

if TYPE_CHECKING:
    from torch import nn


class ModelConfig(Component):
    """Builds a network. Weights are initialised by torch's global generator, which the engine seeds before."""

    def build(self) -> "nn.Module":
        """The network, on the CPU and in float32."""
        raise NotImplementedError
