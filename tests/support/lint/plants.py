"""Small models with one fault each, and their repaired twins."""

import gc
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.config import ExperimentConfig
from paceline.config.experiment import validate

CHANNELS, WIDTH, CLASSES = 3, 16, 4
Middle = Callable[[Any, Tensor], Tensor]


class Net(nn.Module):
    """Images [n, 3, 8, 8] to logits [n, 4]; `middle` takes and gives [n, 16], `end` takes and gives the logits."""

    def __init__(self, middle: Middle | None = None, end: Middle | None = None, **parts: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, WIDTH, 3)
        self.norm = nn.GroupNorm(4, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.middle, self.end = middle, end
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        features = F.relu(self.norm(self.conv(images))).mean((2, 3))
        if self.middle is not None:
            features = self.middle(self, features)
        logits = self.head(features)
        return logits if self.end is None else self.end(self, logits)


LightningModule = type("LightningModule", (nn.Module,), {"__module__": "lightning.pytorch.core.module"})
"""A base class that has the name of Lightning's."""


class LitNet(Net, LightningModule):  # type: ignore[misc, valid-type]
    """The same net as a LightningModule."""


def net(middle: Middle | None = None, end: Middle | None = None, **parts: Callable[[], Any]) -> Callable[[], Net]:
    """A builder of such a net; `parts` make what it has in addition."""
    return lambda: Net(middle, end, **{name: make() for name, make in parts.items()})


def config(model: Any = Net, task: Any = None, data: Any = None, **overrides: Any) -> ExperimentConfig:
    """A config in which nothing is wrong; keys with `__` for dots change it."""
    tree: dict[str, Any] = {
        "name": "lint",
        "model": {"path": model},
        "data": {"name": "synthetic", "shape": [CHANNELS, 8, 8], "num_classes": CLASSES, "global_batch_size": 16},
        "optimizer": {"name": "sgd", "lr": 0.1},
        "scaling": {"num_workers": 0},
    }
    if task is not None:
        tree["task"] = {"path": task}
    if data is not None:
        tree["data"] = {"path": data, "global_batch_size": 16}
    return validate(tree).with_overrides({key.replace("__", "."): value for key, value in overrides.items()})


def conv_norm(bias: bool) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(CHANNELS, WIDTH, 3, bias=bias),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTH, CLASSES),
    )


def linear_norm(bias: bool) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(192, WIDTH, bias=bias), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )


def in_place(is_safe: bool) -> Middle:
    def middle(net: Any, x: Tensor) -> Tensor:
        squashed = torch.sigmoid(x)
        return squashed + 1 if is_safe else squashed.add_(1)

    return middle


def row_by_row(net: Any, x: Tensor) -> Tensor:
    rows = []
    for index in range(x.shape[0]):
        rows.append(net.extra(x[index]))
    return torch.stack(rows)


def layer_by_layer(net: Any, x: Tensor) -> Tensor:
    for layer in net.extra:
        x = layer(x)
    return x


def clipped(net: Any, x: Tensor) -> Tensor:
    if x.abs().max() > 100:
        x = x / 100
    return x


def dropped_layer(net: Any, x: Tensor) -> Tensor:
    """LayerDrop by a number of the host, which nobody waits for."""
    return x if torch.rand(1).item() < 0.5 else net.extra(x)


def printed(net: Any, x: Tensor) -> Tensor:
    print("features", x)
    return x


def logged(net: Any, x: Tensor) -> Tensor:
    logging.getLogger("plants").warning("features %s", x)
    return x


def printed_shape(net: Any, x: Tensor) -> Tensor:
    print("features", tuple(x.shape))
    return x


def by_numpy(net: Any, x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.tanh(x.detach().numpy()))


def to_cuda(net: Any, x: Tensor) -> Tensor:
    return x.to("cuda") * 2


def synchronized(net: Any, x: Tensor) -> Tensor:
    torch.cuda.synchronize()
    return x * 2


def emptied(net: Any, x: Tensor) -> Tensor:
    torch.cuda.empty_cache()
    gc.collect()
    return x * 2


def in_float16(enabled: bool, dtype: torch.dtype = torch.float16) -> Middle:
    def middle(net: Any, x: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=dtype, enabled=enabled):
            return x * 2

    return middle


def penalised(**options: bool) -> Middle:
    def end(net: Any, logits: Tensor) -> Tensor:
        if not net.training:
            return logits
        given = torch.autograd.grad(logits.sum(), net.head.weight, **options)[0]
        return logits + given.pow(2).mean().detach()

    return end


def new_layer(net: Any, x: Tensor) -> Tensor:
    return nn.Linear(WIDTH, WIDTH)(x)


def frozen_norm(is_kept: bool) -> Callable[[], nn.Module]:
    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            if is_kept:
                self[1].eval()
            return self

    def build() -> nn.Module:
        net = Frozen(*conv_norm(bias=False)())
        net[1].eval()
        return net

    return build


def waking(net: Any, x: Tensor) -> Tensor:
    net.extra.train()
    return net.extra(x)


def unused(net: Any, x: Tensor) -> Tensor:
    return x


def wide(first: int, second: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, first), nn.Linear(first, second), nn.Linear(second, 8))


def many_classes(count: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.Linear(64, count))


def blocks(count: int) -> Callable[[], nn.Module]:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 192))

    return lambda: nn.Sequential(nn.Flatten(), nn.Sequential(*(block() for _ in range(count))), nn.Linear(192, 4))


def in_format(dtype: torch.dtype) -> Callable[[], nn.Module]:
    class Cast(Net):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(WIDTH, WIDTH).to(dtype)
            self.middle = lambda net, x: net.extra(x.to(dtype)).float()

    return Cast


class Positions(nn.Module):
    """Adds numbers that it keeps as an attribute or as a buffer."""

    def __init__(self, is_buffer: bool) -> None:
        super().__init__()
        values = torch.linspace(0, 1, WIDTH)
        if is_buffer:
            self.register_buffer("values", values)
        else:
            self.values = values

    def forward(self, x: Tensor) -> Tensor:
        return x + self.values


class Unused(Net):
    """Has a layer that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(WIDTH, WIDTH)
