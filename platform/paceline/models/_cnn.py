"""The network behind `cnn`."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

_GRID = 7


class CNN(nn.Module):
    """Two strided convolutions and a linear head: [n, in_channels, height, width] -> logits [n, num_classes].

    Strides stand in for max pooling, whose backward pass is not deterministic on CUDA. Images of 28 pixels a side come
    out of the blocks on a grid of 7 x 7 as they are; of another size, they are averaged onto it.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(_block(in_channels, width, kernel=5), _block(width, 2 * width, kernel=3))
        self.head = nn.Linear(2 * width * _GRID**2, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        return self._classify(self.blocks(images))

    def pipeline_links(self) -> list[tuple[Callable[[Tensor], Tensor], list[nn.Module]]]:
        """The parts of the forward pass in order, each with the modules that it uses, for pipeline parallelism."""
        return [*((block, [block]) for block in self.blocks), (self._classify, [self.head])]

    def _classify(self, features: Tensor) -> Tensor:
        if features.shape[-2:] != (_GRID, _GRID):
            features = F.adaptive_avg_pool2d(features, _GRID)
        logits: Tensor = self.head(features.flatten(1))
        return logits


def _block(in_channels: int, out_channels: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride=2, padding=kernel // 2)
    # He et al. 2015 (arXiv:1502.01852): keeps the variance through ReLU, which matters without normalisation.
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return nn.Sequential(conv, nn.ReLU())
