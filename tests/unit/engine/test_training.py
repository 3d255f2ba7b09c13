"""The loop in one process: numbers, order, loading, logging, stopping."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from paceline.engine.outcome import Diverged
from support.adascale import Weighted, sample_weights
from support.refusals import refused
from support.toys import Points, built, fit, net, points, toy_config


def reference_losses(epoch_orders: list[list[list[int]]], lr: float = 0.1) -> tuple[list[float], nn.Module]:
    """The textbook loop over given batches."""
    torch.manual_seed(0)
    model = net().double()
    # the kernel that Paceline takes by itself: elsewhere the last bit depends on the processor's fused multiply-add
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, fused=True)
    dataset, losses = Points(96), []
    for batches in epoch_orders:
        for ids in batches:
            samples = [dataset[i] for i in ids]
            features = torch.stack([sample[0] for sample in samples])
            targets = torch.tensor([sample[1] for sample in samples])
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("batch", [16, 40])
def test_equals_the_textbook_loop(batch: int) -> None:
    """The last batch of an epoch is short where 40 does not divide the 96 samples."""
    trainer, outcome, reporter = fit(toy_config(data__global_batch_size=batch))
    seen, steps = trainer.state.task.seen, math.ceil(96 / batch)
    losses, model = reference_losses([seen[:steps], seen[steps:]])
    assert reporter.values("train/loss") == pytest.approx(losses, abs=1e-14)
    for mine, theirs in zip(trainer.state.task.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert outcome.step == 2 * steps
    assert outcome.epoch == 2


def test_each_epoch_visits_every_sample_once_in_an_order_of_its_own() -> None:
    trainer, _, _ = fit(toy_config(data__global_batch_size=40))
    batches = trainer.state.task.seen
    assert [len(batch) for batch in batches] == [40, 40, 16] * 2
    first, second = sum(batches[:3], []), sum(batches[3:], [])
    assert sorted(first) == sorted(second) == list(range(96))
    assert first != second
    assert first != list(range(96))
    config = toy_config(data__global_batch_size=40, data__drop_last=True, data__shuffle=False, trainer__epochs=1)
    assert fit(config)[0].state.task.seen == [list(range(40)), list(range(40, 80))]
    others = [fit(toy_config(data__global_batch_size=40, seed=seed))[0].state.task.seen for seed in (0, 1)]
    assert others[0] == batches != others[1]


def test_random_transforms_differ_between_epochs_and_samples() -> None:
    drawn: list[torch.Tensor] = []

    class Remembering(Points):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
            drawn.append(torch.rand(1))
            return super().__getitem__(index)

    config = toy_config(data__path=lambda: (Remembering(32), Points(4)), data__shuffle=False)
    trainer = built(config)
    drawn.clear()  # what the fingerprint has looked at
    trainer.fit()
    values = torch.cat(drawn)
    assert len(values) == 64
    assert len(values.unique()) == 64


@pytest.mark.parametrize("every", [1, 4, 5])
def test_logged_loss_is_the_mean_since_the_last_point(every: int) -> None:
    each = fit(toy_config())[2].values("train/loss")
    _, _, reporter = fit(toy_config(trainer__log_every_n_steps=every))
    expected, start = [], 0
    for stop in sorted({*range(every, 13, every), 12}):
        expected.append(sum(each[start:stop]) / (stop - start))
        start = stop
    assert reporter.values("train/loss") == pytest.approx(expected, abs=1e-12)


def test_metrics_of_a_point() -> None:
    _, outcome, reporter = fit(toy_config())
    step, values = reporter.points[0]
    assert step == 1
    assert values["lr"] == 0.1
    assert values["epoch"] == pytest.approx(1 / 6)
    assert 0 <= values["data_wait_fraction"] <= 1
    assert values["samples_per_second"] == pytest.approx(16 / values["step_seconds"])
    assert values["peak_memory_bytes"] > 1e6
    assert outcome.samples_per_second > 0


def test_each_evaluation_reports_its_epoch_at_its_own_step() -> None:
    sizes = {"trainer__log_every_n_steps": 4, "trainer__epochs": 2}  # 6 steps an epoch
    _, outcome, reporter = fit(toy_config(**sizes))
    told = {step: values["validation_epoch"] for step, values in reporter.points if "val/loss" in values}
    assert told == {6: 1.0, 12: 2.0}
    assert all(("val/loss" in values) == ("validation_epoch" in values) for _, values in reporter.points)
    assert [step for step, values in reporter.points if "epoch" in values] == [4, 8, 12]
    assert outcome.metrics["validation_epoch"] == 2.0


@pytest.mark.parametrize(
    ("overrides", "steps"),
    [
        ({"trainer__epochs": 5, "trainer__evaluate_every_n_epochs": 2}, [12, 24, 30]),
        ({"trainer__epochs": 5, "trainer__evaluate_every_n_epochs": 0}, [30]),
        ({"trainer__max_steps": 8}, [6, 8]),
    ],
)
def test_evaluations_are_every_n_epochs_and_at_the_end(overrides: dict[str, int], steps: list[int]) -> None:
    _, outcome, reporter = fit(toy_config(**overrides))
    assert [step for step, values in reporter.points if "val/loss" in values] == steps
    assert outcome.step == steps[-1]


def test_an_empty_validation_set_is_warned_of() -> None:
    _, outcome, reporter = fit(toy_config(data__path=lambda: points(validation=0)))
    assert not any(key.startswith("val/") for key in outcome.metrics)
    assert not reporter.values("validation_epoch")
    assert [details["code"] for kind, details in reporter.events if kind == "warning"] == ["no-validation"]
    assert not [kind for kind, _ in fit(toy_config())[2].events if kind == "warning"]


def test_warmup_and_schedule_reach_the_optimizer() -> None:
    config = toy_config(lr_scheduler__name="cosine", lr_scheduler__warmup_steps=4)
    lrs = fit(config)[2].values("lr")
    assert lrs[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert lrs[4:] == pytest.approx([0.05 * (1 + math.cos(math.pi * step / 8)) for step in range(8)])


def test_clipping_bounds_the_update() -> None:
    def moved(limit: float | None) -> float:
        config = toy_config(trainer__max_steps=1, trainer__max_grad_norm=limit, optimizer__momentum=0.0)
        trainer = built(config)
        before = [parameter.detach().clone() for parameter in trainer.step.parameters]
        trainer.fit()
        squares = [((a.detach() - b) ** 2).sum() for a, b in zip(trainer.step.parameters, before, strict=True)]
        return float(sum(squares) ** 0.5)

    assert moved(None) > 0.1 * 1e-2
    assert moved(1e-2) == pytest.approx(0.1 * 1e-2, rel=1e-3)


def test_bf16_trains_close_to_float32() -> None:
    losses = [
        fit(toy_config(trainer__precision=precision, trainer__epochs=4))[2].values("train/loss")
        for precision in ("32-true", "bf16-mixed")
    ]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert losses[1][-1] < 0.7 * losses[1][0]
    with pytest.raises(ValueError, match="16-mixed"):  # which needs CUDA
        fit(toy_config(trainer__precision="16-mixed"))


def test_more_threads_change_no_more_than_rounding() -> None:
    losses = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        config = toy_config(
            task={"name": "classification"},
            model={"name": "cnn"},
            data={"name": "mnist5k", "global_batch_size": 500},
        )
        losses.append(fit(config)[2].values("train/loss"))
    torch.set_num_threads(1)
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)


def test_a_loss_that_is_not_finite_stops_and_saves_nothing(tmp_path: Path) -> None:
    class Poisoned(Points):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
            features, target, index = super().__getitem__(index)
            return (features * float("nan") if index == 50 else features), target, index

    config = toy_config(
        data__path=lambda: (Poisoned(96), Points(4)), trainer__log_every_n_steps=100, checkpoint={"every_n_steps": 2}
    )
    assert refused(Diverged, fit, config, checkpoints=tmp_path).code == "weights-not-finite"
    seen = fit(toy_config(trainer__epochs=1))[0].state.task.seen
    poisoned_step = next(step for step, ids in enumerate(seen, 1) if 50 in ids)
    assert {path.name for path in tmp_path.iterdir()} == {f"step-{n}" for n in (2, 4, 6) if n < poisoned_step}


def test_loss_is_over_the_weights_that_count() -> None:
    """A task whose weight is not the number of samples: the gradient is that of the weighted mean."""

    def gradient(accumulation: int) -> torch.Tensor:
        config = toy_config(
            task__path=Weighted, trainer__max_steps=1, trainer__gradient_accumulation_steps=accumulation
        )
        trainer = fit(config)[0]
        return torch.cat([parameter.grad.flatten() for parameter in trainer.step.parameters])

    torch.manual_seed(0)
    model, dataset = net().double(), Points(96)
    ids = fit(toy_config(trainer__max_steps=1))[0].state.task.seen[0]
    weights = sample_weights(torch.tensor(ids))
    losses = torch.stack([nn.functional.cross_entropy(model(dataset[i][0]), torch.tensor(dataset[i][1])) for i in ids])
    ((losses * weights).sum() / weights.sum()).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]
    for accumulation in (1, 4):
        assert torch.allclose(gradient(accumulation), expected, atol=1e-13, rtol=0)
