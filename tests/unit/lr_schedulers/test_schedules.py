"""The schedules against their closed forms, and against torch's where it has the same one."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as peers

from paceline.lr_schedulers.base import LRSchedulerConfig, Schedule
from paceline.lr_schedulers.constant import ConstantConfig
from paceline.lr_schedulers.cosine import CosineConfig
from paceline.lr_schedulers.linear import LinearConfig
from paceline.lr_schedulers.step import StepConfig
from paceline.lr_schedulers.warmup_stable_decay import WarmupStableDecayConfig

TOTAL = 40

ALL = [
    ConstantConfig(name="constant"),
    CosineConfig(name="cosine"),
    LinearConfig(name="linear"),
    StepConfig(name="step", every_n_epochs=2.0),
]


def values(schedule: Schedule, steps: int = TOTAL) -> list[float]:
    return [schedule(step) for step in range(steps)]


def torchs(make: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, seen = make(optimizer), []
    for _ in range(TOTAL):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (CosineConfig(name="cosine"), partial(peers.CosineAnnealingLR, T_max=TOTAL)),
        (CosineConfig(name="cosine", end_factor=0.1), partial(peers.CosineAnnealingLR, T_max=TOTAL, eta_min=0.1)),
        (
            LinearConfig(name="linear", end_factor=0.1),
            partial(peers.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=TOTAL),
        ),
        (StepConfig(name="step", every_n_epochs=1.5, gamma=0.5), partial(peers.StepLR, step_size=15, gamma=0.5)),
        (ConstantConfig(name="constant"), partial(peers.ConstantLR, factor=1.0)),
    ],
)
def test_schedules_are_torchs(config: LRSchedulerConfig, expected: Any) -> None:
    schedule = config.build(TOTAL, 0, 10)
    assert values(schedule) == pytest.approx(torchs(expected), abs=1e-9)
    if not isinstance(config, StepConfig):
        assert schedule(10 * TOTAL) == pytest.approx(schedule(TOTAL))  # it stays at its end afterwards


WSD = WarmupStableDecayConfig(name="warmup_stable_decay", decay_fraction=0.25)


@pytest.mark.parametrize("config", [*ALL, WSD], ids=lambda config: config.name)
def test_warmup_rises_evenly_to_the_peak(config: LRSchedulerConfig) -> None:
    schedule = config.build(TOTAL, 4, 10)
    assert values(schedule, 5) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("config", ALL, ids=lambda config: config.name)
def test_after_the_warmup_it_is_the_shorter_schedule_from_its_start(config: LRSchedulerConfig) -> None:
    warmed, plain = config.build(TOTAL, 4, 10), config.build(TOTAL - 4, 0, 10)
    assert [warmed(step + 4) for step in range(TOTAL - 4)] == values(plain, TOTAL - 4)


@pytest.mark.parametrize("config", [*ALL, WSD], ids=lambda config: config.name)
@pytest.mark.parametrize("warmup", [TOTAL, 2 * TOTAL])
def test_a_warmup_as_long_as_training_only_rises(config: LRSchedulerConfig, warmup: int) -> None:
    seen = values(config.build(TOTAL, warmup, 10))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(TOTAL / warmup)


@pytest.mark.parametrize(
    ("shape", "final", "expected"),
    [
        ("linear", 0.0, [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("linear", 0.2, [1.0, 0.8, 0.6, 0.4, 0.2]),
        ("sqrt", 0.0, [1.0, 0.5, 1 - 0.5**0.5, 1 - 0.75**0.5, 0.0]),
        ("cosine", 0.0, [1.0, 0.8535533905932737, 0.5, 0.14644660940672624, 0.0]),
    ],
)
@pytest.mark.parametrize("warmup", [0, 3])
def test_the_decay_is_the_last_share_of_all_steps(shape: Any, final: float, expected: list[float], warmup: int) -> None:
    config = WarmupStableDecayConfig(
        name="warmup_stable_decay", decay_fraction=0.2, decay_shape=shape, final_factor=final
    )
    schedule = config.build(20, warmup, 10)
    assert values(schedule, 16)[warmup:] == [1.0] * (16 - warmup)
    assert [schedule(step) for step in range(16, 21)] == pytest.approx(expected)
    assert schedule(100) == pytest.approx(final)


def test_a_decay_of_no_steps_is_constant_and_a_long_warmup_shortens_it() -> None:
    constant = WarmupStableDecayConfig(name="warmup_stable_decay", decay_fraction=0.0)
    assert values(constant.build(TOTAL, 0, 10), TOTAL) == [1.0] * TOTAL
    shortened = WarmupStableDecayConfig(name="warmup_stable_decay", decay_fraction=1.0).build(8, 4, 10)
    assert values(shortened, 8) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"warmup_epochs": 1.5}, 24),
        ({"warmup_epochs": 0.0}, 0),
        ({"warmup_steps": 7}, 7),
        ({"warmup_samples": 1000}, 4),
    ],
)
def test_the_length_of_the_warmup(fields: dict[str, float], expected: int) -> None:
    config = CosineConfig.model_validate({"name": "cosine", **fields})
    assert config.warmup_length(steps_per_epoch=16, global_batch_size=256) == expected
