"""Compressed gradients: really compressed, as exact as their format, and equal on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.powersgd import PowerSGD, orthonormal_columns, thin_shape
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.toys import FEATURES, Points, fit, net, toy_config

START = 2
POWERSGD = {"parallel__comm_hook": "powersgd", "parallel__powersgd_start_step": START}


def wide_net() -> nn.Module:
    """Two weights, both of which are worth compressing at rank 1."""
    return net(64)


Gradients = tuple[torch.Tensor, torch.Tensor]


def gradients_of_a_step(ranks: DistContext, runs: list[dict[str, Any]]) -> list[Gradients]:
    """This rank's own gradient (times the world size, for DDP's mean), and the result of the exchange."""
    found = []
    for overrides in runs:
        trainer = build_trainer(toy_config(scaling__num_workers=ranks.world_size, **overrides), ranks, MemoryReporter())
        forward_backward = trainer.step.forward_backward
        exchange = forward_backward._exchange
        for gradient_exchange in (lambda now, exchange=exchange: exchange(False), exchange):
            forward_backward._exchange = gradient_exchange
            trainer.step._zero_grad()
            forward_backward(trainer.data.loader.load(0, trainer.data.order.micro_batches(0, 0)), 0)
            found.append(torch.cat([parameter.grad.flatten() for parameter in trainer.step.parameters]))
    return list(zip(found[::2], found[1::2], strict=True))


FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
RUNS = [("bf16", 1, "32-true"), ("bf16", 2, "64-true"), ("fp16", 1, "64-true"), ("fp16", 2, "32-true")]


def test_gradients_are_rounded_once_before_they_are_averaged() -> None:
    keys = ("parallel__comm_hook", "trainer__gradient_accumulation_steps", "trainer__precision")
    first, second = run_ranks(gradients_of_a_step, 2, [dict(zip(keys, run, strict=True)) for run in RUNS])
    for (hook, *_), (mine, averaged), (theirs, other) in zip(RUNS, first, second, strict=True):
        dtype = FORMATS[hook]
        assert torch.equal(averaged, other)
        assert torch.equal(averaged, (mine.to(dtype) / 2 + theirs.to(dtype) / 2).to(averaged.dtype))
        exact = (mine.double() + theirs.double()) / 2
        assert not torch.equal(averaged.double(), exact)
        assert ((averaged - exact).abs() <= torch.finfo(dtype).eps * (mine.abs() + theirs.abs()) / 2 + 1e-7).all()


Weights = list[torch.Tensor]


def powersgd_weights(ranks: DistContext, runs: list[dict[str, Any]]) -> list[tuple[Weights, list[float]]]:
    """The weights and losses of trainings with PowerSGD."""
    found = []
    for overrides in runs:
        settings = {**POWERSGD, "model__path": wide_net, **overrides, "scaling__num_workers": ranks.world_size}
        trainer, _, reporter = fit(toy_config(**settings), ranks)
        found.append(
            ([parameter.detach().clone() for parameter in trainer.step.parameters], reporter.values("train/loss"))
        )
    return found


def weights_by_torch(ranks: DistContext, rank: int) -> Weights:
    """The same with torch's own hook, started with the same Q."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs

    config = toy_config(model__path=wide_net, scaling__num_workers=ranks.world_size)
    trainer = build_trainer(config, ranks, MemoryReporter())
    ours = PowerSGD(trainer.step.parameters, rank, START, ranks, config.seed, warn=pytest.fail)
    state = torchs.PowerSGDState(None, rank, START)

    def hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[no-untyped-def]
        if state.iter == START and bucket.index() not in state.p_memory_dict:
            thin = [p for p in bucket.parameters() if thin_shape(p, rank) is not None]
            qs = [ours._q(ours._numbers[p], p.flatten(1)).flatten() for p in thin]
            state.p_memory_dict[bucket.index()] = torch.zeros(sum(len(p) for p in thin) * rank, dtype=torch.float64)
            state.q_memory_dict[bucket.index()] = torch.cat(qs)
        return torchs.powerSGD_hook(state, bucket)

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    trainer.model.register_comm_hook(state, hook)
    trainer.fit()
    return [parameter.detach().clone() for parameter in trainer.step.parameters]


def assert_equal(mine: Weights, theirs: Weights, atol: float = 0.0) -> None:
    assert all(torch.allclose(a, b, atol=atol, rtol=0) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("rank", [1, 2])
def test_powersgd_computes_what_torchs_hook_does(rank: int) -> None:
    ((ours, _),), ((other, _),) = run_ranks(powersgd_weights, 2, [{"parallel__powersgd_rank": rank}])
    expected, _ = run_ranks(weights_by_torch, 2, rank)
    assert_equal(ours, other)
    assert_equal(ours, expected, atol=1e-12)


def test_powersgd_learns_and_neither_buckets_nor_a_static_graph_matter() -> None:
    long = {"trainer__epochs": 5}
    runs: list[dict[str, Any]] = [
        {**long, "parallel__comm_hook": "none"},
        {**long, "parallel__comm_hook": "none", "parallel__static_graph": True},
        long,
        {**long, "parallel__static_graph": True},
        {**long, "parallel__bucket_cap_mb": 0.001, "parallel__gradient_as_bucket_view": False},
    ]
    first, second = run_ranks(powersgd_weights, 2, runs)
    for (mine, _), (theirs, _) in zip(first, second, strict=True):
        assert_equal(mine, theirs)
    (exact, plain), (exact_static, _), (weights, losses), (static, _), (other_buckets, _) = first
    assert losses[-1] != plain[-1]
    assert losses[-1] < min(0.7 * losses[0], plain[-1] + 0.1)
    assert_equal(exact_static, exact)
    assert_equal(static, weights)
    assert_equal(other_buckets, weights)


def exchanged_numbers(ranks: DistContext) -> list[int]:
    """The numbers that each of the first steps sends."""
    all_reduce, sent = dist.all_reduce, 0

    def counting(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        nonlocal sent
        sent += tensor.numel()
        return all_reduce(tensor, *arguments, **options)

    dist.all_reduce = counting
    config = toy_config(**POWERSGD, model__path=wide_net, scaling__num_workers=ranks.world_size)
    trainer = build_trainer(config, ranks, MemoryReporter())
    batches = trainer.data.loader.load(0, trainer.data.order.micro_batches(0, 0))
    steps = []
    for _ in range(START + 2):
        sent = 0
        trainer.step(batches, trainer.state.position.step)
        steps.append(sent)
    return steps


def test_powersgd_sends_less() -> None:
    whole = 64 * FEATURES + 64 + 3 * 64 + 3
    thin = (64 + FEATURES) + 64 + (3 + 64) + 3
    assert run_ranks(exchanged_numbers, 2) == [[whole, whole, thin, thin]] * 2


def part(ranks: DistContext, folder: Path, epochs: int, overrides: dict[str, Any]) -> tuple[str, list[Any]]:
    """Train to an epoch's end from the newest checkpoint, with several buckets; weights and warnings."""
    config = toy_config(
        **{**POWERSGD, "model__path": wide_net, "trainer__precision": "32-true", **overrides},
        data__path=lambda: (Points(103), Points(31)),
        trainer__epochs=epochs,
        parallel__bucket_cap_mb=0.001,
        scaling__num_workers=ranks.world_size,
    )
    _, outcome, reporter = fit(config, ranks, folder)
    return outcome.weights_sha256, [details for kind, details in reporter.events if kind == "warning"]


@pytest.mark.parametrize(
    ("ranks", "overrides"), [(3, {"data__global_batch_size": 18}), (2, {"parallel__powersgd_rank": 2})]
)
def test_memory_that_does_not_fit_restarts(tmp_path: Path, ranks: int, overrides: dict[str, Any], golden: Any) -> None:
    batch = {key: value for key, value in overrides.items() if key == "data__global_batch_size"}
    run_ranks(part, 2, tmp_path, 1, batch)
    endings = run_ranks(part, ranks, tmp_path, 2, overrides)
    assert len({sha for sha, _ in endings}) == 1
    (warning,) = endings[0][1]
    assert warning["code"] == "powersgd-restarted"
    golden(warning["message"])


def test_a_gradient_of_zero_gives_columns_that_see_the_next_one() -> None:
    for width in (1, 3):
        columns = orthonormal_columns(torch.zeros(5, width))
        assert torch.allclose(columns.t() @ columns, torch.eye(width), atol=1e-6)
