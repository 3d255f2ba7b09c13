"""Mixup and CutMix: training on blends of two samples."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import UnusableCode


@dataclass(frozen=True)
class Mix:
    """A micro-batch in which each sample is blended with a partner."""

    inputs: Tensor
    partners: Tensor
    """Index of each sample's partner: int64 of shape [batch]."""
    share: Tensor
    """Share of the sample itself, 0 to 1; the partner has the rest. A scalar on the CPU."""


def mix(inputs: Tensor, mixup_alpha: float, cutmix_alpha: float) -> Mix:
    """Blend the samples of a micro-batch. Nothing waits for the device.

    Random numbers come from torch's generators: the partners from that of the inputs' device, all else from the CPU's.

    Args:
        inputs: floating, shape [batch, ...]; [batch, channels, height, width] for CutMix. Not changed.
        mixup_alpha: parameter of the beta distribution of the shares, above 0. 0 disables.
        cutmix_alpha: the same for CutMix. With both, each call draws one of them with equal chance.

    Raises:
        UnusableCode: the inputs are not a tensor of that kind.
    """
    _require_mixable(inputs, cutmix_alpha)
    partners = torch.randperm(len(inputs), device=inputs.device)
    if not (mixup_alpha and cutmix_alpha):
        return _mixup(inputs, partners, mixup_alpha) if mixup_alpha else _cutmix(inputs, partners, cutmix_alpha)
    takes_mixup = bool(torch.rand(()) < 0.5)
    return _mixup(inputs, partners, mixup_alpha) if takes_mixup else _cutmix(inputs, partners, cutmix_alpha)


def _mixup(inputs: Tensor, partners: Tensor, alpha: float) -> Mix:
    """A weighted mean of two samples (Zhang et al. 2018, arXiv:1710.09412)."""
    share = _draw_share(alpha)
    return Mix(inputs * share + inputs[partners] * (1 - share), partners, share)


def _cutmix(inputs: Tensor, partners: Tensor, alpha: float) -> Mix:
    """A box of one sample in the other (Yun et al. 2019, arXiv:1905.04899). The share follows the pixels outside."""
    height, width = inputs.shape[-2:]
    side = (1 - _draw_share(alpha)).sqrt()
    centre = torch.rand(2)
    rows, in_rows = _span(height, side, centre[0], inputs.device)
    columns, in_columns = _span(width, side, centre[1], inputs.device)
    mixed = torch.where(in_rows[:, None] & in_columns, inputs[partners], inputs)
    return Mix(mixed, partners, 1 - rows * columns / (height * width))


def _span(size: int, side: Tensor, centre: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """The part of a box along one axis: its length on the CPU, and a mask of shape [size] on the device."""
    half = (side * size).floor() / 2
    middle = (centre * size).floor()
    begin, end = (middle - half).floor().clamp(0, size), (middle + half).floor().clamp(0, size)
    positions = torch.arange(size, device=device)
    return end - begin, (positions >= begin) & (positions < end)


def _draw_share(alpha: float) -> Tensor:
    """A draw from Beta(alpha, alpha) on the CPU."""
    return torch.distributions.Beta(alpha, alpha).sample()


def _require_mixable(inputs: Tensor, cutmix_alpha: float) -> None:
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        found = str(inputs.dtype).removeprefix("torch.") if isinstance(inputs, Tensor) else type(inputs).__name__
        raise UnusableCode(
            f"task.mixup_alpha and task.cutmix_alpha: the inputs are {found}, which cannot be blended. Return tensors "
            "of floats from the data set, or set both to 0",
            "inputs-not-mixable",
            found=found,
        )
    if cutmix_alpha and inputs.ndim != 4:
        raise UnusableCode(
            f"task.cutmix_alpha: the inputs have the shape {list(inputs.shape)}, which has no boxes of pixels. Return "
            "images of shape [channels, height, width] from the data set, or use task.mixup_alpha",
            "inputs-not-mixable",
            shape=list(inputs.shape),
        )
