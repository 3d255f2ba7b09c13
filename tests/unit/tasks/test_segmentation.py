"""Cross-entropy over pixels, and the mean intersection over union of a whole set."""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.tasks._task import Task
from paceline.tasks.segmentation import SegmentationConfig

CLASSES = 4


def build(ignore_index: int = 255, model: nn.Module | None = None) -> Task:
    return SegmentationConfig(name="segmentation", ignore_index=ignore_index).build(model or nn.Identity())


def batch() -> tuple[Tensor, Tensor]:
    """Class 3 occurs neither in the targets nor in the predictions."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, CLASSES, 5, 6, generator=generator, dtype=torch.float64)
    logits[:, 3] = -9.0
    targets = torch.randint(0, 3, (3, 5, 6), generator=generator)
    targets[0, :2] = 255
    return logits, targets


def test_loss_and_weight_are_those_of_the_pixels_that_count() -> None:
    logits, targets = batch()
    output = build()((logits, targets))
    assert output.weight == 3 * 30 - 12
    torch.testing.assert_close(output.loss_sum, F.cross_entropy(logits, targets, ignore_index=255) * output.weight)
    assert not build().weight_is_samples
    other = build(ignore_index=-1)((logits, torch.where(targets == 255, -1, targets)))
    assert torch.equal(other.loss_sum, output.loss_sum)


def test_metrics_are_of_the_whole_set() -> None:
    logits, targets = batch()
    task = build().eval()
    output = task((logits, targets))
    sums = {"loss": output.loss_sum, "weight": output.weight, **output.metrics}
    predictions, counts = logits.argmax(1), targets != 255
    ious = []
    for label in range(3):
        predicted, true = (predictions == label) & counts, targets == label
        ious.append((predicted & true).sum().item() / (predicted | true).sum().item())
    found = task.compute({name: value.double() for name, value in sums.items()})
    assert found["mean_iou"] == pytest.approx(sum(ious) / 3)
    assert found["pixel_accuracy"] == pytest.approx((predictions == targets)[counts].double().mean().item())
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, targets, ignore_index=255).item())


class Wrapped(nn.Module):
    """Returns a mapping, like torchvision's segmentation models."""

    def forward(self, inputs: Tensor) -> OrderedDict[str, Tensor]:
        return OrderedDict(out=inputs, aux=inputs * 0)


def test_the_output_of_torchvisions_models_is_taken() -> None:
    assert torch.equal(build(model=Wrapped())(batch()).loss_sum, build()(batch()).loss_sum)
