"""Training by `data.batch_size_schedule` in one process: numbers, order, learning rates, resuming."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.cluster.train import record_params
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.errors import ConfigError
from support.refusals import refused
from support.streams import stream
from support.toys import Points, fit, net, points, toy_config

SAMPLES = 103
STAGES = [(0, 16), (130, 40)]
"""The change is in the second epoch, in which it finds a step of 16 that began at sample 119 and ended at 135."""


def scheduled(stages: list[tuple[int, int]] | None = None, **more: Any) -> Any:
    """A config over 103 points, with a learning rate that follows the batch and the steps."""
    schedule = [{"samples": samples, "global_batch_size": size} for samples, size in stages or STAGES]
    return plain(data__global_batch_size=None, data__batch_size_schedule=schedule, **more)


def plain(**more: Any) -> Any:
    overrides: dict[str, Any] = {
        "data__path": lambda: points(SAMPLES, 31),
        "optimizer__lr_scaling": "linear",
        "optimizer__base_batch_size": 16,
        "optimizer__lr": 0.05,
        "lr_scheduler": {"name": "cosine", "warmup_steps": 5},
        "trainer__epochs": 3,
    }
    return toy_config(**{**overrides, **more})


def weights(trainer: Any) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in trainer.state.task.model.parameters()]


def are_equal(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("stages", [[(0, 16)], [(0, 16), (50, 16)], [(0, 16), (10**6, 64)]])
def test_a_schedule_of_one_size_is_the_plain_config_to_the_bit(stages: list[tuple[int, int]]) -> None:
    one, _, reported = fit(scheduled(stages))
    other, _, expected = fit(plain())
    assert are_equal(one, other)
    assert one.state.task.seen == other.state.task.seen
    assert reported.values("lr") == expected.values("lr")
    assert one.plan.total_steps == other.plan.total_steps


def test_the_record_has_the_batch_of_each_stage() -> None:
    config = scheduled()
    params = record_params(config, derive(config, Sizes(SAMPLES, 31)))
    assert (params["derived.global_batch_size"], params["derived.lr"]) == ("16, 40", "0.05, 0.125")


def by_hand(seen: list[list[int]], sizes: list[int], warmup: int) -> nn.Module:
    """The textbook loop: momentum, the linear rule for each step's size, warmup, then half a cosine. Both follow the
    steps that a batch of 16 takes to the same samples: 7 an epoch."""
    torch.manual_seed(0)
    model, dataset, total, samples_before = net().double(), Points(SAMPLES), 3 * 7, 0
    # the kernel that Paceline takes by itself: elsewhere the last bit depends on the processor's fused multiply-add
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, fused=True)
    for ids, size in zip(seen, sizes, strict=True):
        epoch, within = divmod(samples_before, SAMPLES)
        step = epoch * 7 + within // 16
        samples_before += len(ids)
        cosine = 0.5 * (1 + torch.cos(torch.tensor((step - warmup) / (total - warmup) * torch.pi, dtype=torch.float64)))
        factor = (step + 1) / warmup if step < warmup else cosine.item()
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * size / 16 * factor
        samples = [dataset[i] for i in ids]
        features = torch.stack([sample[0] for sample in samples])
        targets = torch.tensor([sample[1] for sample in samples])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), targets).backward()
        optimizer.step()
    return model


def test_two_stages_are_the_textbook_loop() -> None:
    trainer, outcome, reporter = fit(scheduled())
    seen = trainer.state.task.seen
    assert [len(ids) for ids in seen] == [*[16] * 6, 7, 16, 16, 40, 31, 40, 40, 23]
    sizes = [16] * 9 + [40] * 5
    assert reporter.values("global_batch_size") == sizes
    assert outcome.step == trainer.plan.total_steps == len(sizes)
    expected = by_hand(seen, sizes, warmup=5)
    for mine, theirs in zip(weights(trainer), expected.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-13)


def test_every_sample_is_visited_once_an_epoch_in_the_order_of_the_plain_config() -> None:
    seen = sum(fit(scheduled())[0].state.task.seen, [])
    assert seen == sum(fit(plain())[0].state.task.seen, [])
    for epoch in range(3):
        assert sorted(seen[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(SAMPLES))


def test_a_step_belongs_to_the_stage_at_its_first_sample() -> None:
    trainer, _, _ = fit(scheduled([(0, 16), (32, 40), (33, 8)], trainer__max_steps=5))
    assert [len(ids) for ids in trainer.state.task.seen] == [16, 16, 40, 8, 8]


def test_drop_last_leaves_out_what_does_not_fill_the_stage() -> None:
    trainer, _, _ = fit(scheduled([(0, 16), (100, 40)], data__drop_last=True, trainer__epochs=2))
    # at sample 96 another 7 do not fill 16; the second epoch begins with 16 more, since 100 is not reached
    assert [len(ids) for ids in trainer.state.task.seen] == [*[16] * 6, 16, 40, 40]


@pytest.mark.parametrize("stop_at", [3, 7, 8, 9, 10, 12])
def test_a_run_interrupted_on_either_side_of_the_change_ends_with_the_same_bits(tmp_path: Path, stop_at: int) -> None:
    """The change is after step 9."""
    config = scheduled()
    whole, _, _ = fit(config)
    first, outcome, _ = fit(config, checkpoints=tmp_path, reporter=MemoryReporter(stop_at_step=stop_at))
    assert outcome.step == stop_at
    second, _, _ = fit(config, checkpoints=tmp_path)
    assert first.state.task.seen + second.state.task.seen == whole.state.task.seen
    assert are_equal(second, whole)


@pytest.mark.parametrize("stages", [[(0, 8), (130, 40)], [(0, 16), (40, 40)], [(0, 40)]])
def test_another_past_is_not_resumed(tmp_path: Path, stages: list[tuple[int, int]]) -> None:
    fit(scheduled(), checkpoints=tmp_path, reporter=MemoryReporter(stop_at_step=3))
    with pytest.raises(ConfigError):
        fit(scheduled(stages), checkpoints=tmp_path)


def test_a_stage_that_begins_later_may_be_another(tmp_path: Path) -> None:
    fit(plain(data__global_batch_size=16), checkpoints=tmp_path, reporter=MemoryReporter(stop_at_step=3))
    second, _, _ = fit(scheduled(), checkpoints=tmp_path)
    whole, _, _ = fit(scheduled())
    assert are_equal(second, whole)


@pytest.mark.parametrize(
    ("cut", "passes"),
    [({"data__micro_batch_size": 8}, [2] * 9 + [5] * 5), ({"trainer__gradient_accumulation_steps": 2}, [2] * 14)],
)
def test_cutting_a_stage_into_micro_batches_changes_rounding_alone(cut: dict[str, int], passes: list[int]) -> None:
    trainer, outcome, _ = fit(scheduled(**cut))
    whole, expected, _ = fit(scheduled())
    short = {6: 1, 10: 4, 13: 3} if "data__micro_batch_size" in cut else {6: 1, 10: 2, 13: 2}
    assert len(trainer.state.task.seen) == sum({**dict(enumerate(passes)), **short}.values())
    assert outcome.step == expected.step
    for mine, theirs in zip(weights(trainer), weights(whole), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)


def test_adascale_takes_the_batch_of_the_stage() -> None:
    more = {"optimizer__lr_scaling": "adascale", "optimizer__base_batch_size": 8, "lr_scheduler": {"name": "constant"}}
    config = scheduled([(0, 16), (48, 32)], data__micro_batch_size=4, trainer__max_steps=6, **more)
    trainer = build_trainer(config, DistContext.current(), MemoryReporter())
    policy: Any = trainer.step.lr
    adascale, sizes, gains = policy.adascale, [], []
    trainer.open()
    for _ in trainer.steps():
        sizes.append(adascale.global_batch_size)
        square, variance = adascale.state_dict()["square"], adascale.state_dict()["variance"]
        square, variance = max(square, 0.0), max(variance, 0.0)
        gain = (variance / 8 + square) / (variance / sizes[-1] + square)
        gains.append(min(max(gain, 1.0), sizes[-1] / 8) * 0.05)
        assert policy.current == pytest.approx(gains[-1], rel=1e-12)
    trainer.close()
    assert sizes == [16, 16, 16, 32, 32, 32]


def test_an_iterable_training_set_has_no_schedule() -> None:
    config = scheduled(data__path=stream, trainer__epochs=None, trainer__max_steps=3)
    assert [problem.key for problem in refused(ConfigError, fit, config).problems] == ["data.batch_size_schedule"]


def test_a_longer_run_continues_in_its_stage(tmp_path: Path) -> None:
    more = {"lr_scheduler": {"name": "constant", "warmup_samples": 50}}
    whole, _, _ = fit(scheduled(**more))
    fit(scheduled(trainer__epochs=2, **more), checkpoints=tmp_path)
    longer, _, reporter = fit(scheduled(**more), checkpoints=tmp_path)
    assert are_equal(longer, whole)
    (change,) = [details for kind, details in reporter.events if kind == "length"]
    assert (change["total_steps_before"], change["total_steps"]) == (11, 14)
    assert change["lr_before"] == change["lr"] == pytest.approx(0.05 * 40 / 16)
