"""What techniques.py measures: for each ladder a config, and what each arm changes in it."""

import io
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

Changes = dict[str, Any]
"""Dotted keys of the config and their values."""
Expected = Literal["bit", "rounding", "design"]
"""How far the losses may be from the baseline's: equal to the bit, but for rounding, or different by design."""


class Arm(NamedTuple):
    """One row of a ladder."""

    changes: Changes = {}  # noqa: RUF012  # nobody changes it
    expected: Expected = "rounding"


class Ladder(NamedTuple):
    """Arms around one config. The first arm is the baseline, and changes nothing that matters."""

    config: dict[str, Any]
    arms: dict[str, Arm]


def cumulative(base: Changes, *rungs: tuple[str, Changes], expected: Expected) -> dict[str, Arm]:
    """One arm for each rung, with the changes of all rungs up to it on top of `base`."""
    arms, changes = {}, dict(base)
    for name, more in rungs:
        changes = {**changes, **more}
        arms[name] = Arm(changes, expected)
    return arms


def build_config(name: str, model: Changes, data: Changes, optimizer: Changes, **sections: Any) -> dict[str, Any]:
    """A config in one process whose training never ends; unfused and without TF32, since those are arms."""
    endless = {"max_steps": 10**9, "log_every_n_steps": 10**9, "evaluate_every_n_epochs": 0}
    return {
        "name": name,
        "model": model,
        "data": {"drop_last": True, **data},
        "optimizer": {"fused": False, **optimizer},
        "trainer": {**endless, "cudnn_allow_tf32": False},
        "scaling": {"num_workers": 0},
        **sections,
    }


def residual_net(blocks_per_stage: int = 2, num_classes: int = 10) -> nn.Module:
    """The ResNet for small images of He et al. 2016 (arXiv:1512.03385, section 4.2), of 14 layers with two blocks a
    stage. Unlike there, its convolutions have biases before BatchNorm, for one of the arms."""
    widths = [width for width in (16, 32, 64) for _ in range(blocks_per_stage)]
    blocks = [ResidualBlock(*pair) for pair in zip([16, *widths[:-1]], widths, strict=True)]
    stem = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(
        *stem, nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, num_classes)
    )


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut; more channels than before come with half the height and width."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        stride = 1 if before == width else 2
        self.conv1, self.norm1 = nn.Conv2d(before, width, 3, stride, padding=1), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.shortcut = nn.Conv2d(before, width, 1, stride) if stride == 2 else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """[n, before, height, width] to [n, width, ...]."""
        inner = self.norm1(self.conv1(images)).relu()
        outer: Tensor = self.norm2(self.conv2(inner)) + self.shortcut(images)
        return outer.relu()


class Photos(Dataset[tuple[Tensor, int]]):
    """JPEG files of 256 x 256 pixels in memory, decoded and made smaller each time that they are asked for."""

    def __init__(self, samples: int, size: int) -> None:
        from PIL import Image

        self._size = size
        self._files = []
        generator = torch.Generator().manual_seed(0)
        for _ in range(samples):
            coarse = torch.randint(0, 256, (32, 32, 3), dtype=torch.uint8, generator=generator)
            file = io.BytesIO()
            Image.fromarray(coarse.numpy()).resize((256, 256)).save(file, "JPEG")
            self._files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """float32 of shape [3, size, size], and the class."""
        from torchvision.io import ImageReadMode, decode_image
        from torchvision.transforms.functional import resize

        encoded = torch.frombuffer(bytearray(self._files[index]), dtype=torch.uint8)
        pixels = resize(decode_image(encoded, ImageReadMode.RGB), [self._size, self._size], antialias=True)
        return pixels.float() / 255, index % 10


def photos(samples: int = 256, size: int = 64) -> tuple[Photos, Photos]:
    """A training and a validation set."""
    return Photos(samples, size), Photos(2, size)


def synthetic(size: int, batch: int, **others: Any) -> Changes:
    """Two batches of images."""
    samples = {"num_samples": 2 * batch, "num_validation_samples": 16, "global_batch_size": batch}
    return {"name": "synthetic", "shape": [3, size, size], **samples, **others}


CONTEXT: Changes = {"context_length": 1024}
SGD: Changes = {"name": "sgd", "lr": 0.01, "momentum": 0.9}
BF16: Changes = {"trainer.precision": "bf16-mixed"}
TF32: Changes = {"trainer.float32_matmul_precision": "high", "trainer.cudnn_allow_tf32": True}
CHANNELS_LAST: Changes = {"trainer.memory_format": "channels_last"}
CUDNN_BENCHMARK: Changes = {"trainer.cudnn_benchmark": True}
COMPILE: Changes = {"trainer.compile": "default"}
FUSED: Changes = {"optimizer.fused": True}
NO_BIAS: Changes = {"trainer.remove_redundant_bias": True}
FULL: Changes = {"trainer.activation_checkpointing": "full"}
SELECTIVE: Changes = {"trainer.activation_checkpointing": "selective"}

LADDERS = {
    "resnet14": Ladder(
        build_config("resnet14", {"path": "ladders:residual_net"}, synthetic(32, 32), SGD),
        {
            "fp32": Arm(),
            "fp32 again": Arm(expected="bit"),
            "zero_grad zero": Arm({"trainer.zero_grad": "zero"}, "bit"),
            "accumulation 4": Arm({"data.micro_batch_size": 8}, "design"),  # BatchNorm sees smaller batches
            "channels_last": Arm(CHANNELS_LAST),
            "no redundant bias": Arm(NO_BIAS),
            "compile": Arm(COMPILE),
            "fused": Arm(FUSED),
            "full checkpointing": Arm(FULL),
            "selective checkp.": Arm(SELECTIVE),
            "bf16": Arm(BF16, "design"),
            "all for speed": Arm({**CHANNELS_LAST, **NO_BIAS, **COMPILE, **FUSED}),
            "all for memory": Arm({**CHANNELS_LAST, **NO_BIAS, **FUSED, **FULL}),
        },
    ),
    "loading": Ladder(
        build_config(
            "loading", {"name": "cnn", "in_channels": 3}, {"path": "ladders:photos", "global_batch_size": 32}, SGD
        ),
        {
            "no workers": Arm(),
            "no workers again": Arm(expected="bit"),
            "1 worker": Arm({"data.num_workers": 1}, "bit"),
            "2 workers": Arm({"data.num_workers": 2}, "bit"),
            "cache memory": Arm({"data.cache": "memory"}, "bit"),
            "cache device": Arm({"data.cache": "device"}, "bit"),
        },
    ),
    "resnet50": Ladder(
        build_config("resnet50", {"name": "resnet50"}, synthetic(224, 256, num_classes=1000, cache="device"), SGD),
        {
            "fp32": Arm(),
            "fp32 again": Arm(),
            "channels_last": Arm(CHANNELS_LAST),
            "cudnn_benchmark": Arm(CUDNN_BENCHMARK),
            "compile": Arm(COMPILE),
            "fused": Arm(FUSED),
            "fp16": Arm({"trainer.precision": "16-mixed"}, "design"),
            "TF32": Arm(TF32, "design"),
            **cumulative(
                TF32,
                ("bf16", BF16),
                ("+ channels_last", CHANNELS_LAST),
                ("+ cudnn_benchmark", CUDNN_BENCHMARK),
                ("+ compile", COMPILE),
                ("+ fused: all", FUSED),
                expected="design",
            ),
            "bf16, full checkp.": Arm({**BF16, **CHANNELS_LAST, **FULL}, "design"),
            "bf16, select. ch.": Arm({**BF16, **CHANNELS_LAST, **SELECTIVE}, "design"),
        },
    ),
    # the negative control: its one convolution has nothing to gain
    "vit": Ladder(
        build_config("vit", {"name": "vit_b_16"}, synthetic(224, 128, num_classes=1000, cache="device"), SGD),
        {"bf16": Arm(BF16), "bf16 again": Arm(BF16), "+ channels_last": Arm({**BF16, **CHANNELS_LAST})},
    ),
    "gpt": Ladder(
        build_config(
            "gpt",
            {"name": "gpt", "vocab_size": 50304, "num_layers": 12, "num_heads": 12, "embedding_dim": 768, **CONTEXT},
            {"name": "text_file", "global_batch_size": 128, "micro_batch_size": 32, "cache": "device", **CONTEXT},
            {"name": "adamw", "lr": 6e-4, "weight_decay": 0.1, "beta2": 0.95},
            task={"name": "language_modeling"},
        ),
        {
            "fp32": Arm(),
            "fp32 again": Arm(),
            "TF32": Arm(TF32, "design"),
            **cumulative(TF32, ("bf16", BF16), ("+ compile", COMPILE), ("+ fused: all", FUSED), expected="design"),
            "bf16, full checkp.": Arm({**TF32, **BF16, **FULL}, "design"),
            "bf16, select. ch.": Arm({**TF32, **BF16, **SELECTIVE}, "design"),
        },
    ),
}
ON_CPU = ("resnet14", "loading")
ON_CUDA = ("resnet50", "vit", "gpt")
