"""A small convolutional network."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from paceline.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn


class CNNConfig(ModelConfig):
    """Two strided convolutions and a linear head, for images of any size.

    No BatchNorm and no dropout, so a sample's gradient depends on no other sample.
    """

    name: Literal["cnn"]
    """Selects this model."""
    in_channels: Annotated[int, Field(ge=1)] = 1
    """Channels of the images, at least 1."""
    num_classes: Annotated[int, Field(ge=1)] = 10
    """Number of logits, at least 1."""
    width: Annotated[int, Field(ge=1)] = 16
    """Channels after the first convolution, at least 1; the second gives twice as many."""

    def build(self) -> "nn.Module":
        """The network: images [n, in_channels, height, width] to logits [n, num_classes]."""
        from paceline.models._cnn import CNN

        return CNN(self.in_channels, self.num_classes, self.width)
