"""Builds torchvision's models, with random or pretrained weights."""

from typing import Any

import torch
from torch import nn
from torchvision import models

from paceline.errors import ConfigError, EnvironmentFault, Problem

# Their auxiliary classifiers make them return tuples in training.
_WITH_AUXILIARY = ("googlenet", "inception_v3")


def build_random(name: str, num_classes: int) -> nn.Module:
    """The model with freshly initialised weights."""
    options = {"aux_logits": False, "init_weights": True} if name in _WITH_AUXILIARY else {}
    model: nn.Module = models.get_model(name, weights=None, num_classes=num_classes, **options)
    return model


def build_pretrained(name: str, num_classes: int, weights_name: str) -> nn.Module:
    """The model with torchvision's weights; with a new last layer when they are for another number of classes.

    Raises:
        ConfigError: the model has no weights of that name.
        EnvironmentFault: the weights are not there and cannot be downloaded.
    """
    weights = _weights(name, weights_name)
    try:
        model: Any = models.get_model(name, weights=weights)
    except (OSError, RuntimeError) as error:
        raise EnvironmentFault(
            f"model {name}: weights {weights_name} are not to be had: {error}. {weights.url} may be put into "
            f"{torch.hub.get_dir()}/checkpoints by hand",
            "weights-unavailable",
            url=weights.url,
        ) from error
    if name == "inception_v3":
        model.aux_logits, model.AuxLogits = False, None
    if num_classes != len(weights.meta["categories"]):
        replace_head(model, num_classes)
    return model  # type: ignore[no-any-return]


def replace_head(model: nn.Module, num_classes: int) -> None:
    """Put a freshly initialised layer of `num_classes` outputs in place of the model's last linear one, in place.

    squeezenet ends in a convolution instead.
    """
    place, old = [pair for pair in model.named_modules() if isinstance(pair[1], nn.Linear | nn.Conv2d)][-1]
    new: nn.Module
    if isinstance(old, nn.Linear):
        new = nn.Linear(old.in_features, num_classes)
    else:
        new = nn.Conv2d(old.in_channels, num_classes, old.kernel_size)
    parent, _, child = place.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


def _weights(name: str, weights_name: str) -> Any:
    known = models.get_model_weights(name)
    if weights_name not in known.__members__:
        reason, names = f"{name} has no weights {weights_name!r}", ", ".join(known.__members__)
        raise ConfigError([Problem("unknown-value", reason, "model.weights", hint=f"it has {names}")])
    return known[weights_name]
