"""Every pair of techniques trains, or is refused with a reason; and what is neutral stays so beside any other one."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.config import ExperimentConfig
from paceline.engine import activation_checkpointing, compilation, largest_batch
from paceline.engine.dist_context import DistContext
from paceline.errors import ConfigError
from support.ranks import run_ranks
from support.techniques import COMPILE, TECHNIQUES, WORKERS, Pair, all_pairs
from support.toys import fit, toy_config

STEPS, BATCH, TRAIN, VALIDATION = 5, 8, 20, 8
"""Five steps are more than an epoch, whose third step is a short one."""
MOST_THAT_FITS = 2
TOLERANCES = {"64-true": 1e-9, "32-true": 1e-4, "bf16-mixed": 2e-2}
"""Of losses of about 1. A float64 loss differs by rounding alone; one bf16 rounding is 2^-9 = 0.002 of a number."""
POWERSGD_TOLERANCE = 1e-2
UNLIKE = {
    "channels last + powersgd": POWERSGD_TOLERANCE,
    "redundant bias + powersgd": POWERSGD_TOLERANCE,
}
"""Pairs in which a neutral technique only comes near. PowerSGD starts from random columns, one for each number of a
weight, which a bias that is gone shifts. And it takes weights as they lie in memory, which channels last changes."""
LARGE_BATCH = ("lars", "lamb", "nvlamb", "novograd")
PIPELINES = ("pipeline", "two pipelines")
SPREAD = ("fsdp", "hybrid shard", *PIPELINES)
REFUSED: dict[str, dict[str, str]] = {
    "accumulation": {"static graph": "parallel.static_graph"},
    "largest batch": {
        "adascale": "optimizer.lr_scaling",
        "static graph": "parallel.static_graph",
        **dict.fromkeys(SPREAD, "data.micro_batch_size"),
    },
    "adascale": dict.fromkeys(("adamw", *LARGE_BATCH, "powersgd", *SPREAD), "optimizer.lr_scaling"),
    **{name: {"not fused": "optimizer.fused"} for name in LARGE_BATCH},
    "nvlamb": {"not fused": "optimizer.fused", **dict.fromkeys(PIPELINES, "optimizer.name")},
    **{
        name: {"small buckets": "parallel.bucket_cap_mb", **dict.fromkeys(PIPELINES, "trainer.compile")}
        for name in ("checkpoint budget", "compile", "compile blocks")
    },
    **dict.fromkeys(("hook bf16", "hook fp16", "powersgd"), dict.fromkeys(SPREAD, "parallel.comm_hook")),
}
"""The pairs that the config refuses, with the field that its error names."""


# What is trained


class Block(nn.Module):
    """A convolution, whose bias is redundant if there is BatchNorm behind it, and a shortcut around both."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module], dropout: float) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(width, width, 3, padding=1), norm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(inputs + self.dropout(self.norm(self.convolution(inputs))))


def net(batch_norm: bool, dropout: float, width: int = 6) -> nn.Module:
    """Without both, each sample is treated alone."""
    norm: Callable[[int], nn.Module] = nn.BatchNorm2d if batch_norm else partial(nn.GroupNorm, 2)
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        norm(width),
        nn.ReLU(),
        nn.Sequential(*(Block(width, norm, dropout) for _ in range(2))),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 3),
    )


class Images(torch.utils.data.Dataset[Any]):
    """Loaded sample by sample, so that loader processes and caches have something to do."""

    def __init__(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        self.targets = [index % 3 for index in range(number)]
        self.images = list(torch.randn(number, 3, 4, 4, generator=generator).unbind())

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], self.targets[index]


def base(batch_norm: bool = True, dropout: bool = True) -> ExperimentConfig:
    return toy_config(
        task={"name": "classification"},
        model__path=partial(net, batch_norm, 0.1 if dropout else 0.0),
        data__path=lambda: (Images(TRAIN), Images(VALIDATION)),
        data__global_batch_size=BATCH,
        optimizer={"name": "sgd", "lr": 0.05},
        trainer__epochs=STEPS,
        trainer__max_steps=STEPS,
        trainer__evaluate_every_n_epochs=0,
    )


# Runs


class Run(NamedTuple):
    """One training, by what decides its result."""

    overrides: tuple[tuple[str, Any], ...]
    batch_norm: bool
    dropout: bool
    backend: str

    @property
    def config(self) -> ExperimentConfig:
        return base(self.batch_norm, self.dropout).with_overrides(dict(self.overrides))


def run_of(overrides: dict[str, Any], batch_norm: bool = True, dropout: bool = True, backend: str = "eager") -> Run:
    return Run(tuple(sorted(overrides.items())), batch_norm, dropout, backend)


Losses = list[float]
"""Of each step, and in evaluation afterwards; or the error's text in an exception's place."""


def train(run: Run, ranks: DistContext) -> Losses | str:
    compilation.BACKEND = run.backend
    _, outcome, reporter = fit(run.config, ranks)
    messages = [details["message"] for kind, details in reporter.events if kind == "warning"]
    if told := [message for message in messages if message.startswith("trainer.compile")]:
        return told[0]  # it went on without
    return [*reporter.values("train/loss"), outcome.metrics["val/loss"]]


def train_all(ranks: DistContext, runs: list[Run], before: Callable[[], None]) -> list[Losses | str]:
    """Train each, on all ranks. One that fails is told by its error; if not on all ranks, it is the last one."""
    mp.set_start_method("fork", force=True)  # a loader process is not to import torch first
    before()
    results: list[Losses | str] = []
    for number, run in enumerate(runs):
        try:
            results.append(train(run, ranks))
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
            if not _fails_on_all(number, ranks):
                break
    return results


def _fails_on_all(number: int, ranks: DistContext) -> bool:
    """Return whether the other ranks come here too; if not, they wait for this one in the midst of a run."""
    store = dist.distributed_c10d._get_default_store()
    try:
        store.set(f"{number}/{ranks.rank}", "failed")
        store.wait([f"{number}/{rank}" for rank in range(ranks.world_size)], timedelta(seconds=5))
    except dist.DistError:
        return False
    return True


def limit_memory() -> None:
    """Let trial steps find that a few samples fill the memory, so that `max` has to accumulate."""
    fits = largest_batch.Trials.fits

    def limited(trials: largest_batch.Trials, size: int) -> bool:
        return fits(trials, size) and size <= MOST_THAT_FITS

    largest_batch.Trials.fits = limited  # type: ignore[method-assign]


def limit_memory_and_keep_dropout() -> None:
    import torch._inductor.config

    torch._inductor.config.fallback_random = True
    limit_memory()


def results_of(runs: Iterable[Run], before: Callable[[], None] = limit_memory) -> dict[Run, Losses | str]:
    """Train each, those with as many ranks in one launch. `before` is called in each process."""
    by_ranks: dict[int, list[Run]] = {}
    for run in dict.fromkeys(runs):
        by_ranks.setdefault(max(run.config.scaling.num_workers, 1), []).append(run)
    results: dict[Run, Losses | str] = {}
    for ranks, some in by_ranks.items():
        while left := [run for run in some if run not in results]:
            # one process too, so that it is a fork of the one that has imported everything
            trained = run_ranks(train_all, ranks, left, before, timeout=1800)
            results.update(zip(left, map(_first_reason, zip(*trained, strict=True)), strict=False))
    return results


def _first_reason(results: tuple[Losses | str, ...]) -> Losses | str:
    """Of all ranks; one that lost its peer says less than the peer."""
    errors = [result for result in results if isinstance(result, str)]
    return min(errors, key=lambda text: "gloo" in text) if errors else results[0]


# Comparison


class Check(NamedTuple):
    """A pair, and its members that alone are to compute the same."""

    pair: Pair
    run: Run
    alone: dict[str, Run]
    """By the name of the neutral member that is left out."""
    tolerance: float


def check_of(pair: Pair, backend: str) -> Check:
    is_redrawn = backend == "inductor" and "trainer.activation_checkpointing" in pair.fields()
    model = pair.has_batch_norm, pair.has_dropout and not is_redrawn
    run = run_of(pair.overrides, *model, backend)
    alone = {neutral.name: run_of(overrides, *model, backend) for neutral, overrides in pair.without()}
    return Check(pair, run, alone, UNLIKE.get(pair.name, TOLERANCES[run.config.trainer.precision]))


def failures_of(
    pairs: Iterable[Pair], backend: str | None = None, before: Callable[[], None] = limit_memory
) -> list[str]:
    """A line for each pair that fails, and for each neutral member without which the losses are others."""
    checks = [check_of(pair, backend or backend_of(pair)) for pair in pairs]
    results = results_of((run for check in checks for run in (check.run, *check.alone.values())), before)
    return [line for check in checks for line in _failures(check, results)]


def _failures(check: Check, results: dict[Run, Losses | str]) -> Iterator[str]:
    both = results[check.run]
    if isinstance(both, str) or len(both) != STEPS + 1 or not all(map(isfinite, both)):
        yield f"{check.pair.name}: {both}"
        return
    for neutral, run in check.alone.items():
        alone = results[run]
        difference = nan if isinstance(alone, str) else _difference(both, alone, check.pair.is_same_in_evaluation)
        if not difference <= check.tolerance:
            yield f"{check.pair.name}: {both}, but {alone} without {neutral}: {difference:.1e} > {check.tolerance:.0e}"


def _difference(losses: Losses, others: Losses, in_evaluation: bool) -> float:
    differences = [abs(a - b) for a, b in zip(losses, others, strict=True)]
    return max(differences if in_evaluation else differences[:STEPS])


def allowed(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair.second.name not in REFUSED.get(pair.first.name, {})]


def backend_of(pair: Pair) -> str:
    """Quick ones, whose graphs still go through dynamo. Checkpoints are the business of what comes after it."""
    is_checkpointed = "trainer.activation_checkpointing" in pair.fields()
    return "aot_eager" if is_checkpointed else "eager"


FIRST_COMPILED = ("checkpoint full", "checkpoint selective", "channels last", "redundant bias", "ddp", "fsdp")
"""The techniques that have most to do with the compiler."""


def is_quick(pair: Pair) -> bool:
    """Return whether a pair takes tenths of a second, or is worth more."""
    names = {pair.first.name, pair.second.name}
    if is_compiled(pair):
        return "compile blocks" in names and bool(names & set(FIRST_COMPILED))
    return pair.overrides.get(WORKERS, 0) <= 2 and "prefetch" not in names


def is_compiled(pair: Pair) -> bool:
    return COMPILE in pair.fields()


# The tests


def test_refused_pairs_have_a_reason_and_a_hint() -> None:
    refused: dict[str, dict[str, str]] = {}
    for pair in all_pairs():
        try:
            base().with_overrides(pair.overrides)
        except ConfigError as error:
            (problem,) = error.problems
            assert problem.reason, pair.name
            assert problem.hint, pair.name
            assert problem.key in pair.fields(), pair.name
            refused.setdefault(pair.first.name, {})[pair.second.name] = problem.key
    assert refused == REFUSED


def _names(pairs: list[Pair]) -> set[str]:
    return {technique.name for pair in pairs for technique in (pair.first, pair.second)}


def is_default(pair: Pair) -> bool:
    """Return whether a quick pair is in every run: one in eleven, on diagonals, so that each technique is there."""
    return is_quick(pair) and (TECHNIQUES.index(pair.first) + TECHNIQUES.index(pair.second)) % 11 == 9


def test_pairs_with_every_technique_train() -> None:
    pairs = [pair for pair in allowed(all_pairs()) if is_default(pair)]
    quick = [pair for pair in allowed(all_pairs()) if is_quick(pair) and not is_compiled(pair)]
    assert _names(pairs) >= _names(quick)
    failures = failures_of(pairs)
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("takes_long", [False, True])
def test_all_other_pairs_train_too(takes_long: bool) -> None:
    pairs = (pair for pair in allowed(all_pairs()) if is_quick(pair) != takes_long and not is_default(pair))
    failures = failures_of(pairs)
    assert not failures, "\n".join(failures)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_pairs_train_with_the_real_compiler() -> None:
    """With torch's own dropout in compiled code: the compiler's draws other masks, which is no fault of a technique.

    What is computed again draws its masks in another order even so: see the test that follows.
    """
    pairs = (pair for pair in allowed(all_pairs()) if is_compiled(pair))
    failures = failures_of(pairs, "inductor", before=limit_memory_and_keep_dropout)
    assert not failures, "\n".join(failures)


class Rectified(nn.Module):
    """Twice the weight makes twice the output, whatever the dropout's mask."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(16, 16, bias=False), nn.Dropout(0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.dropout(torch.relu(self.linear(inputs)))


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["model", "blocks"])
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_compiled_checkpoints_use_the_same_dropout_masks_in_both_passes(mode: str, scope: str) -> None:
    """By Euler's theorem: a loss that is proportional to a weight is the product of the weight and its gradient."""
    torch._dynamo.reset()
    model = nn.Sequential(*(Rectified() for _ in range(3))).double()
    activation_checkpointing.apply_activation_checkpointing(model, mode, None)
    for part in (model,) if scope == "model" else model.children():
        part.compile()
    loss = model(torch.rand(8, 16, dtype=torch.float64)).sum()
    loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        torch.testing.assert_close((parameter * parameter.grad).sum(), loss, rtol=1e-12, atol=0)


NO_EFFECT_ON_CPU = ("matmul high",)


def test_techniques_that_are_not_neutral_change_the_losses() -> None:
    """Else the pairs would prove nothing about it."""
    techniques = [each for each in TECHNIQUES if not each.neutral and each.name not in NO_EFFECT_ON_CPU]
    runs = {each.name: (run_of(each.overrides), run_of({**each.given, **each.needs})) for each in techniques}
    results = results_of(run for both in runs.values() for run in both)
    assert [name for name, (run, plain) in runs.items() if results[run] == results[plain]] == []
    assert [result for result in results.values() if isinstance(result, str)] == []
