"""Two ranks compute what one does; and the tests here see the bugs that are usually made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import paceline.engine.passes as passes_module
from paceline.engine.build import build_trainer
from paceline.engine.order import DataOrder
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from support.ranks import end_ranks, run_ranks
from support.toys import Points, fit, net, net_with_dropout_and_norm, toy_config

TRAIN, VALIDATION = 103, 31
"""Neither divides by anything: the last global batch of an epoch is short, and so is a rank's share of it."""


def training(ranks: Ranks, overrides: dict[str, Any]) -> dict[str, Any]:
    """Train, and tell all that can be compared."""
    config = toy_config(
        data__path=lambda: (Points(TRAIN), Points(VALIDATION)), scaling__num_workers=ranks.world_size, **overrides
    )
    trainer, outcome, reporter = fit(config, ranks)
    return {
        "losses": reporter.values("train/loss"),
        "val": [reporter.values("val/loss"), reporter.values("val/accuracy")],
        "seen": trainer.state.task.seen,
        "sha": outcome.weights_sha256,
        "norms": reporter.values("grad_norm"),
        "weights": [parameter.detach().clone() for parameter in trainer.parameters],
    }


@pytest.mark.parametrize("accumulation", [1, 4])
def test_two_ranks_equal_one_process_in_float64(accumulation: int) -> None:
    overrides = {"trainer__gradient_accumulation_steps": accumulation}
    alone = training(Ranks.current(), overrides)
    first, second = run_ranks(training, 2, overrides)
    assert first["losses"] == pytest.approx(alone["losses"], abs=1e-9)
    assert len(first["losses"]) == 14
    for mine, theirs in zip(first["val"], alone["val"], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-12)
    assert first["sha"] == second["sha"]


def test_the_norm_and_the_clipping_are_of_the_global_gradient() -> None:
    overrides = {"trainer__max_grad_norm": 0.1, "trainer__epochs": 1}
    alone = training(Ranks.current(), overrides)
    first, _ = run_ranks(training, 2, overrides)
    assert len(first["norms"]) == 7
    assert max(alone["norms"]) > 0.1
    assert first["norms"] == pytest.approx(alone["norms"], abs=1e-12)
    assert first["losses"] == pytest.approx(alone["losses"], abs=1e-12)


def test_first_steps_agree_in_float32() -> None:
    overrides = {"trainer__precision": "32-true", "trainer__max_steps": 10}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = training(Ranks.current(), overrides)
    finally:
        torch.set_num_threads(threads)
    first, _ = run_ranks(training, 2, overrides)
    assert first["losses"] == pytest.approx(alone["losses"], abs=1e-5)
    assert len(first["losses"]) == 10


def test_same_samples_at_each_step_and_none_twice() -> None:
    overrides = {"trainer__gradient_accumulation_steps": 2, "trainer__epochs": 1}
    alone = training(Ranks.current(), overrides)["seen"]
    first, second = (result["seen"] for result in run_ranks(training, 2, overrides))
    assert Counter(sum(first + second, [])) == Counter(range(TRAIN)) == Counter(sum(alone, []))
    steps_alone = [set(sum(alone[i : i + 2], [])) for i in range(0, len(alone), 2)]
    steps_two = [set(sum(first[i : i + 2] + second[i : i + 2], [])) for i in range(0, len(first), 2)]
    assert steps_two == steps_alone


def gradient_of_a_step(ranks: Ranks, plant: str | None = None) -> tuple[torch.Tensor, int]:
    """The gradient of the epoch's last, uneven optimizer step at accumulation 4, and how often ranks exchanged it."""
    _PLANTS[plant]()
    config = toy_config(
        data__path=lambda: (Points(16 + 13), Points(4)),
        trainer__gradient_accumulation_steps=4,
        trainer__max_steps=2,
        optimizer__lr=1e-300,
        scaling__num_workers=ranks.world_size,
    )
    trainer = build_trainer(config, ranks, MemoryReporter())
    exchanges = _count_exchanges(trainer.model)
    trainer.fit()
    gradient = torch.cat([parameter.grad.flatten() for parameter in trainer.parameters])
    return gradient, len(exchanges)


def _count_exchanges(model: nn.Module) -> list[int]:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    exchanges: list[int] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations by identity
        exchanges.append(bucket.index())
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)  # type: ignore[operator]
    return exchanges


def _plant_divide_by_n() -> None:
    def factor(self: Any, micro_batch: Any) -> float:
        return 1.0 / (len(micro_batch.ids) * 4)

    passes_module.LocalPass._loss_factor = factor  # type: ignore[method-assign]


def _plant_no_sync_around_backward_only() -> None:
    from contextlib import nullcontext

    def exchange(model: Any, now: bool) -> Any:
        if now:
            return nullcontext()
        backward = torch.Tensor.backward

        def quiet_backward(tensor: torch.Tensor, gradient: torch.Tensor) -> None:
            with model.no_sync():
                backward(tensor, gradient)

        class Patched:
            def __enter__(self) -> None:
                torch.Tensor.backward = quiet_backward  # type: ignore[assignment]

            def __exit__(self, *_: object) -> None:
                torch.Tensor.backward = backward  # type: ignore[method-assign]

        return Patched()

    passes_module.gradient_exchange = exchange


def _plant_duplicated_sample() -> None:
    original = DataOrder.step_ids

    def padded(self: DataOrder, epoch: int, step: int) -> torch.Tensor:
        ids = original(self, epoch, step)
        return torch.cat([ids, ids[: -len(ids) % self.world_size]])

    DataOrder.step_ids = padded  # type: ignore[method-assign]


_PLANTS = {
    None: lambda: None,
    "divide by n": _plant_divide_by_n,
    "no_sync around backward only": _plant_no_sync_around_backward_only,
    "duplicated sample": _plant_duplicated_sample,
}


def one_big_batch() -> torch.Tensor:
    """The gradient of the same 13 samples in one go, by the textbook."""
    torch.manual_seed(0)
    model, dataset = net().double(), Points(29)
    ids = DataOrder(samples=29, global_batch_size=16, micro_batch_size=16, seed=0).step_ids(0, 1).tolist()
    assert len(ids) == 13
    features = torch.stack([dataset[i][0] for i in ids])
    targets = torch.tensor([dataset[i][1] for i in ids])
    nn.functional.cross_entropy(model(features), targets).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]


def _holds(gradient: torch.Tensor, exchanges: int) -> bool:
    # the model fits into one bucket: one exchange for each of the two optimizer steps
    return bool(torch.allclose(gradient, one_big_batch(), atol=1e-12, rtol=0)) and exchanges == 2


def test_accumulation_over_an_uneven_tail_is_exact() -> None:
    for gradient, exchanges in run_ranks(gradient_of_a_step, 2):
        assert _holds(gradient, exchanges)


@pytest.mark.parametrize("plant", [plant for plant in _PLANTS if plant])
def test_planted_bugs_are_seen(plant: str) -> None:
    """A wrong gradient, one exchange too many, or ranks that no longer fit together."""
    endings = end_ranks(gradient_of_a_step, 2, plant)
    assert not all(ending.error is None and _holds(*ending.value) for ending in endings)


def tiny_tail(ranks: Ranks) -> tuple[torch.Tensor, list[list[int]]]:
    """One sample is left for the last step: one rank has none."""
    config = toy_config(
        data__path=lambda: (Points(17), Points(1)), trainer__epochs=1, scaling__num_workers=ranks.world_size
    )
    trainer, _, _ = fit(config, ranks)
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters]), trainer.state.task.seen


def test_a_rank_without_a_sample_does_not_count() -> None:
    expected, _ = tiny_tail(Ranks.current())
    for weights, _ in run_ranks(tiny_tail, 2):
        assert torch.allclose(weights, expected, atol=1e-13, rtol=0)


def weighted_step(ranks: Ranks) -> torch.Tensor:
    """A task whose weights are uneven over ranks and micro batches."""
    from paceline.tasks._task import Task
    from paceline.tasks.base import TaskOutput

    class Weighted(Task):
        weight_is_samples = False

        def forward(self, batch: Any) -> TaskOutput:
            features, targets, ids = batch
            weights = (ids % 7).double() ** 2
            losses = nn.functional.cross_entropy(self.model(features), targets, reduction="none")
            return TaskOutput((losses * weights).sum(), weights.sum())

    config = toy_config(
        task__path=Weighted,
        trainer__gradient_accumulation_steps=2,
        trainer__max_steps=5,
        scaling__num_workers=ranks.world_size,
    )
    trainer, _, _ = fit(config, ranks)
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


def test_uneven_weights_are_summed_over_the_ranks() -> None:
    expected = weighted_step(Ranks.current())
    for weights in run_ranks(weighted_step, 2):
        assert torch.allclose(weights, expected, atol=1e-13, rtol=0)


def evaluated_with_norm(ranks: Ranks) -> tuple[float, dict[str, torch.Tensor]]:
    """What two ranks say of their validation set, and rank 0's weights and buffers."""
    config = toy_config(
        model__path=net_with_dropout_and_norm,
        data__path=lambda: (Points(TRAIN), Points(VALIDATION)),
        scaling__num_workers=ranks.world_size,
    )
    trainer, outcome, _ = fit(config, ranks)
    return outcome.metrics["val/loss"], trainer.state.task.model.state_dict()


def test_evaluation_is_that_of_the_saved_weights_with_batch_norm_too() -> None:
    loss, state = run_ranks(evaluated_with_norm, 2)[0]
    model, dataset = net_with_dropout_and_norm().double(), Points(VALIDATION)
    model.load_state_dict(state)
    logits = model.eval()(torch.stack([dataset[i][0] for i in range(VALIDATION)]))
    targets = torch.tensor([dataset[i][1] for i in range(VALIDATION)])
    assert loss == pytest.approx(nn.functional.cross_entropy(logits, targets).item(), abs=1e-12)
