"""A custom model, by import path."""

from typing import TYPE_CHECKING

from paceline.config.imports import Called, Imported
from paceline.errors import UnusableCode
from paceline.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn


class CalledModelConfig(Called, ModelConfig):
    """A callable that takes `args` and returns a `torch.nn.Module`."""

    def build(self) -> "nn.Module":
        """Call the user's builder.

        Raises:
            UnusableCode: what it returned is not a module.
        """
        from torch import nn

        model = self.call()
        if not isinstance(model, nn.Module):
            message = f"{self.chosen('model')} returned {type(model).__name__}, not a torch.nn.Module"
            raise UnusableCode(message, "not-a-module")
        return model


class ImportedModelConfig(Imported, CalledModelConfig):
    """`path` leads to a callable that takes `args` and returns a `torch.nn.Module`."""
