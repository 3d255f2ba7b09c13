"""torchvision's classification models, by the names that they have there."""

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from paceline.config.limits import Width
from paceline.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn


_OWN_WEIGHTS = re.compile("[A-Z][A-Z0-9_]*")
"""Matches the names of torchvision's weights, such as `IMAGENET1K_V1`."""


class TorchvisionModelConfig(ModelConfig):
    """A model of `torchvision.models`. The auxiliary classifiers of googlenet and inception_v3 are left out."""

    # A test compares the list with torchvision's own.
    name: Literal[
        "alexnet",
        "convnext_base",
        "convnext_large",
        "convnext_small",
        "convnext_tiny",
        "densenet121",
        "densenet161",
        "densenet169",
        "densenet201",
        "efficientnet_b0",
        "efficientnet_b1",
        "efficientnet_b2",
        "efficientnet_b3",
        "efficientnet_b4",
        "efficientnet_b5",
        "efficientnet_b6",
        "efficientnet_b7",
        "efficientnet_v2_l",
        "efficientnet_v2_m",
        "efficientnet_v2_s",
        "googlenet",
        "inception_v3",
        "maxvit_t",
        "mnasnet0_5",
        "mnasnet0_75",
        "mnasnet1_0",
        "mnasnet1_3",
        "mobilenet_v2",
        "mobilenet_v3_large",
        "mobilenet_v3_small",
        "regnet_x_16gf",
        "regnet_x_1_6gf",
        "regnet_x_32gf",
        "regnet_x_3_2gf",
        "regnet_x_400mf",
        "regnet_x_800mf",
        "regnet_x_8gf",
        "regnet_y_128gf",
        "regnet_y_16gf",
        "regnet_y_1_6gf",
        "regnet_y_32gf",
        "regnet_y_3_2gf",
        "regnet_y_400mf",
        "regnet_y_800mf",
        "regnet_y_8gf",
        "resnet101",
        "resnet152",
        "resnet18",
        "resnet34",
        "resnet50",
        "resnext101_32x8d",
        "resnext101_64x4d",
        "resnext50_32x4d",
        "shufflenet_v2_x0_5",
        "shufflenet_v2_x1_0",
        "shufflenet_v2_x1_5",
        "shufflenet_v2_x2_0",
        "squeezenet1_0",
        "squeezenet1_1",
        "swin_b",
        "swin_s",
        "swin_t",
        "swin_v2_b",
        "swin_v2_s",
        "swin_v2_t",
        "vgg11",
        "vgg11_bn",
        "vgg13",
        "vgg13_bn",
        "vgg16",
        "vgg16_bn",
        "vgg19",
        "vgg19_bn",
        "vit_b_16",
        "vit_b_32",
        "vit_h_14",
        "vit_l_16",
        "vit_l_32",
        "wide_resnet101_2",
        "wide_resnet50_2",
    ]
    """Selects the model: its name in `torchvision.models`."""
    num_classes: Width = 1000
    """Number of logits, 1 to 10^7. Pretrained weights of another number keep all but the last layer."""
    weights: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Pretrained weights of torchvision to start from, such as `DEFAULT` or `IMAGENET1K_V1`, which are downloaded: a
    name in capitals. Anything else is a run or a file, as for other models. `null`: random ones."""

    @property
    def initial_weights(self) -> str | None:
        """The run or the file that the weights are loaded from; None for torchvision's own."""
        return None if self.weights is None or _OWN_WEIGHTS.fullmatch(self.weights) else self.weights

    def build(self) -> "nn.Module":
        """The network: images [n, 3, height, width] to logits [n, num_classes].

        Raises:
            ConfigError: the model has no weights of that name.
            EnvironmentFault: the weights are not there and cannot be downloaded.
        """
        from paceline.models._torchvision import build_pretrained, build_random

        if self.weights is None or self.initial_weights is not None:
            return build_random(self.name, self.num_classes)
        return build_pretrained(self.name, self.num_classes, self.weights)
