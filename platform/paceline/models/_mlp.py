"""The network behind `mlp`."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


class MLP(nn.Module):
    """Fully connected layers: [n, ...] with `in_features` numbers a sample -> logits [n, num_classes]."""

    def __init__(self, in_features: int, hidden: Sequence[int], num_classes: int, activation: str) -> None:
        super().__init__()
        widths = [in_features, *hidden]
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(before, after), ACTIVATIONS[activation]()) for before, after in pairwise(widths))
        )
        self.head = nn.Linear(widths[-1], num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of a batch of samples of any shape."""
        logits: Tensor = self.head(self.blocks(inputs.flatten(1)))
        return logits
