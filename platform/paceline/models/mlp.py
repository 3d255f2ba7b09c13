"""A multilayer perceptron."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from paceline.config.limits import Width
from paceline.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn


class MLPConfig(ModelConfig):
    """Fully connected layers over the flattened sample. No BatchNorm and no dropout."""

    name: Literal["mlp"]
    """Selects this model."""
    in_features: Width = 784
    """Numbers in one sample, 1 to 10^7; an image has channels x height x width of them."""
    hidden: Annotated[list[Width], Field(max_length=1000, default_factory=lambda: [256])]
    """Width of each hidden layer, 1 to 10^7; at most 1,000 layers. Empty: a linear model."""
    num_classes: Width = 10
    """Number of logits, 1 to 10^7."""
    activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    """Activation function after each hidden layer."""

    def build(self) -> "nn.Module":
        """The network: samples [n, ...] to logits [n, num_classes]."""
        from paceline.models._mlp import MLP

        return MLP(self.in_features, self.hidden, self.num_classes, self.activation)
