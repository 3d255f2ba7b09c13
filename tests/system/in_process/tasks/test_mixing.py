"""Mixup and CutMix: blends, soft targets, and where the random numbers come from."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UnusableCode
from paceline.tasks._mixing import Mix, mix
from paceline.tasks._task import Task
from paceline.tasks.classification import ClassificationConfig
from support.refusals import refused
from support.toys import fit, net, tensors, toy_config

BATCH, CLASSES = 8, 3


def images() -> Tensor:
    """Each pixel names its sample and place."""
    return torch.arange(BATCH * 2 * 6 * 9, dtype=torch.float32).reshape(BATCH, 2, 6, 9)


def drawn(seed: int, mixup_alpha: float, cutmix_alpha: float) -> Mix:
    torch.manual_seed(seed)
    return mix(images(), mixup_alpha, cutmix_alpha)


def test_mixup_is_the_weighted_mean_with_the_partner() -> None:
    inputs, shares = images(), []
    for seed in range(200):
        mixed = drawn(seed, 0.4, 0.0)
        expected = inputs * mixed.share + inputs[mixed.partners] * (1 - mixed.share)
        torch.testing.assert_close(mixed.inputs, expected)
        shares.append(mixed.share)
    drawn_shares = torch.stack(shares)
    assert drawn_shares.mean().item() == pytest.approx(0.5, abs=0.1)
    assert drawn_shares.var().item() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.03)  # that of Beta(a, a)


def test_cutmix_pastes_one_box_and_the_share_is_the_area_outside() -> None:
    inputs, areas = images(), []
    for seed in range(200):
        mixed = drawn(seed, 0.0, 1.0)
        is_pasted = (mixed.inputs != inputs).any(1)
        outside = torch.where(is_pasted[:, None], inputs[mixed.partners], inputs)
        assert torch.equal(mixed.inputs, outside)
        for sample in (mixed.partners != torch.arange(BATCH)).nonzero().flatten().tolist():
            rows, columns = is_pasted[sample].any(1), is_pasted[sample].any(0)
            assert torch.equal(is_pasted[sample], rows[:, None] & columns)
            assert mixed.share.item() == pytest.approx(1 - is_pasted[sample].double().mean().item(), abs=1e-6)
        areas.append(mixed.share.item())
    assert min(areas) < 0.5 < 0.9 < max(areas)
    assert torch.equal(inputs, images())


def is_mixup(mixed: Mix) -> bool:
    return not bool(torch.isin(mixed.inputs, images()).all())


def test_with_both_each_is_chosen_half_of_the_time_and_the_seed_decides() -> None:
    chosen = [is_mixup(drawn(seed, 1.0, 1.0)) for seed in range(300)]
    assert 0.4 < sum(chosen) / len(chosen) < 0.6
    assert torch.equal(drawn(3, 1.0, 1.0).inputs, drawn(3, 1.0, 1.0).inputs)


def build(**fields: Any) -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2 * 6 * 9, CLASSES))
    return ClassificationConfig(name="classification", **fields).build(model)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_soft_targets(smoothing: float) -> None:
    targets = torch.arange(BATCH) % CLASSES
    task = build(mixup_alpha=1.0, label_smoothing=smoothing).train()
    torch.manual_seed(7)
    found = task((images() / 1000, targets))
    torch.manual_seed(7)
    mixed = mix(images() / 1000, 1.0, 0.0)
    one_hot = F.one_hot(targets, CLASSES).float()
    soft = one_hot * mixed.share + one_hot[mixed.partners] * (1 - mixed.share)
    expected = F.cross_entropy(task.model(mixed.inputs), soft, label_smoothing=smoothing, reduction="sum")  # type: ignore[operator]
    torch.testing.assert_close(found.loss_sum, expected)
    assert found.weight == BATCH


def test_evaluation_mixes_nothing() -> None:
    batch = (images() / 1000, torch.arange(BATCH) % CLASSES)
    assert torch.equal(build(mixup_alpha=1.0, cutmix_alpha=1.0).eval()(batch).loss_sum, build().eval()(batch).loss_sum)


@pytest.mark.parametrize(
    ("inputs", "fields"),
    [
        (torch.zeros(4, 3, dtype=torch.int64), {"mixup_alpha": 1.0}),
        ([torch.zeros(4, 3)], {"mixup_alpha": 1.0}),
        (torch.zeros(4, 3), {"cutmix_alpha": 1.0}),
        (torch.zeros(4, 3), {"cutmix_alpha": 1.0, "mixup_alpha": 1.0}),
    ],
)
def test_inputs_that_cannot_be_blended_are_refused(inputs: Any, fields: dict[str, float]) -> None:
    refusal = refused(UnusableCode, build(**fields).train(), (inputs, torch.zeros(4, dtype=torch.int64)))
    assert refusal.code == "inputs-not-mixable"


def test_a_run_with_mixup_repeats_to_the_bit() -> None:
    config = toy_config(
        task={"name": "classification", "mixup_alpha": 0.5},
        model={"path": net},
        data={"path": lambda: tensors(48), "micro_batch_size": 8, "global_batch_size": 16},
        trainer__precision="32-true",
    )
    first = fit(config)[1].weights_sha256
    assert fit(config)[1].weights_sha256 == first
    assert fit(config.with_overrides({"task.mixup_alpha": 0.0}))[1].weights_sha256 != first


def test_the_compiler_takes_it_without_a_new_version_for_each_draw() -> None:
    task = build(mixup_alpha=1.0, cutmix_alpha=1.0).train()
    compiled: Any = torch.compile(task, backend="eager")
    targets = torch.arange(BATCH) % CLASSES
    torch.compiler.reset()
    try:
        with torch.compiler.set_stance("default"):
            for seed in range(4):
                torch.manual_seed(seed)
                compiled((images() / 1000, targets))
        with torch.compiler.set_stance("fail_on_recompile"):
            for seed in range(4, 12):
                torch.manual_seed(seed)
                found = compiled((images() / 1000, targets)).loss_sum
                torch.manual_seed(seed)
                torch.testing.assert_close(found, task((images() / 1000, targets)).loss_sum)
    finally:
        torch.compiler.reset()
