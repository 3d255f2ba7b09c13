"""The fixes of a bottleneck: what they change, and that they are valid; and which bottleneck is named."""

from typing import Any

import pytest

from paceline.config import ExperimentConfig
from paceline.profiling.bottleneck import Bottleneck, BottleneckFacts, name_bottleneck
from paceline.profiling.fixes import Fix, fixes_for
from paceline.profiling.parts import PARTS, RankSplit, StepSplit
from support.bottlenecks import base_config
from support.golden import Golden

HOST, SAMPLES = "node-7", 100_000


def rank_split(blocked: dict[str, float] | None = None, cores: int = 8, **parts: float) -> RankSplit:
    """A rank's seconds by part; `evaluation` and `checkpoints` are some of `logging`."""
    after_step = {name: parts.pop(name, 0.0) for name in ("evaluation", "checkpoints")}
    seconds = {**dict.fromkeys(PARTS, 0.0), **parts}
    return RankSplit(seconds, sum(seconds.values()), blocked or {}, after_step, host=HOST, cores=cores)


def split(*ranks: RankSplit, micro: int = 16, samples: int = SAMPLES) -> StepSplit:
    """Of all ranks, with one micro batch a step."""
    return StepSplit(0, ranks, 10, micro, micro * len(ranks), samples)


def config(**overrides: Any) -> ExperimentConfig:
    """The plain one, with `__` for dots."""
    return base_config().with_overrides({key.replace("__", "."): value for key, value in overrides.items()})


def keys(fixes: tuple[Fix, ...]) -> list[set[str]]:
    return [set(fix.overrides) for fix in fixes]


# --- what they change --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slow", "before", "loaders", "is_cache_first"),
    [
        # as many as keep up with the step, where one waits for the data
        (rank_split(data=0.03, forward=0.01, blocked={"data": 0.03, "forward": 0.0}, cores=2), 0, 4, False),
        # no more than cores, where loading computes
        (rank_split(data=0.03, forward=0.01, blocked={"data": 0.001, "forward": 0.0}, cores=2), 0, 2, True),
        # more, where those that there are do not keep up
        (rank_split(data=0.02, forward=0.02, cores=8), 2, 5, False),
    ],
)
def test_data_get_loaders_and_a_cache(slow: RankSplit, before: int, loaders: int, is_cache_first: bool) -> None:
    found = [fix.overrides for fix in fixes_for("data", split(slow), config(data__num_workers=before))]
    cache = {"data.cache": "memory"}
    more: dict[str, Any] = {"data.num_workers": loaders, "data.persistent_workers": True}
    more_ahead = {**more, "data.prefetch_factor": 4}
    assert found == ([cache, more, more_ahead] if is_cache_first else [more, more_ahead, cache])


def test_what_is_set_already_is_no_fix() -> None:
    slow = split(rank_split(data=0.03, forward=0.01))
    assert {"data.cache"} not in keys(fixes_for("data", slow, config(data__cache="memory")))
    talks = split(rank_split(communication=0.03, forward=0.01), rank_split(communication=0.03, forward=0.01))
    fixes = fixes_for("communication", talks, config(parallel__comm_hook="powersgd", scaling__num_workers=2))
    assert {"parallel.comm_hook"} not in keys(fixes)
    with_rare = config(trainer__evaluate_every_n_epochs=0)
    evaluates = split(rank_split(logging=0.03, evaluation=0.02, checkpoints=0.01))
    assert keys(fixes_for("logging", evaluates, with_rare)) == [{"checkpoint.every_n_epochs"}]


def test_only_what_makes_a_valid_config_is_proposed() -> None:
    talks = split(rank_split(communication=0.03, forward=0.01), rank_split(communication=0.03, forward=0.01))
    usual = fixes_for("communication", talks, config(scaling__num_workers=2))
    assert [{"trainer.gradient_accumulation_steps"} <= each for each in keys(usual)] == [True, False, False]
    # it contradicts accumulation
    static = fixes_for("communication", talks, config(scaling__num_workers=2, parallel__static_graph=True))
    assert keys(static) == [{"parallel.comm_hook"}, {"parallel.bucket_cap_mb"}]
    # it has no hook
    sharded = config(scaling__num_workers=2, parallel__strategy="fsdp")
    assert {"parallel.comm_hook"} not in keys(fixes_for("communication", talks, sharded))


def test_a_larger_batch_brings_its_learning_rate() -> None:
    small, larger = split(rank_split(forward=0.001), micro=2), split(rank_split(forward=0.001), micro=8)
    sgd = fixes_for("small_batch", small, config(data__micro_batch_size=2), larger)
    assert sgd[-1].overrides == {
        "data.global_batch_size": 64,
        "data.micro_batch_size": 64,
        "trainer.gradient_accumulation_steps": 1,
        "optimizer.lr_scaling": "linear",
        "optimizer.base_batch_size": 2,
    }
    adamw = config(data__micro_batch_size=2, optimizer={"name": "adamw", "lr": 0.001})
    assert fixes_for("small_batch", small, adamw, larger)[-1].overrides["optimizer.lr_scaling"] == "sqrt"
    follows = config(data__micro_batch_size=2, optimizer__lr_scaling="sqrt", optimizer__base_batch_size=2)
    assert "optimizer.lr_scaling" not in fixes_for("small_batch", small, follows, larger)[-1].overrides
    # a module with an optimizer of its own, whose learning rate would stay
    lit = {"path": "paceline.adapters:LightningTask", "args": {"configure_optimizers": True}}
    assert fixes_for("small_batch", small, config(data__micro_batch_size=2, task=lit), larger) == ()


def test_accumulated_micro_batches_are_merged_first() -> None:
    small, larger = split(rank_split(forward=0.001), micro=2), split(rank_split(forward=0.001), micro=8)
    accumulates = config(data__micro_batch_size=2, trainer__gradient_accumulation_steps=4)
    first, second = fixes_for("small_batch", small, accumulates, larger)
    assert first.overrides == {
        "data.global_batch_size": 8,
        "data.micro_batch_size": 8,
        "trainer.gradient_accumulation_steps": 1,
    }
    assert second.overrides["data.global_batch_size"] > 8
    # and a batch leaves some steps in an epoch
    small, larger = (split(rank_split(forward=0.001), micro=micro, samples=40) for micro in (2, 8))
    (fix,) = fixes_for("small_batch", small, config(data__micro_batch_size=2), larger)
    assert fix.overrides["data.global_batch_size"] == 8


# --- what is named -----------------------------------------------------------------------------------------------


def named(*ranks: RankSplit, larger: StepSplit | None = None, **overrides: Any) -> Bottleneck:
    return name_bottleneck(split(*ranks), config(scaling__num_workers=len(ranks), **overrides), BottleneckFacts(larger))


FAST = rank_split(forward=0.01, waiting=0.02)
WAITING = rank_split(forward=0.01, waiting=0.03)
SLOW_DATA = rank_split(data=0.03, forward=0.01)
READING = RankSplit({**dict.fromkeys(PARTS, 0.0), "forward": 0.01, "backward": 0.02}, 0.03, syncs=2.0)


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("straggler", (FAST, rank_split(forward=0.03), FAST)),
        ("straggler", (SLOW_DATA, WAITING)),
        ("data", (SLOW_DATA, SLOW_DATA)),
        ("logging", (rank_split(logging=0.03, forward=0.01), WAITING)),  # the rank that logs is no straggler
        ("synchronisation", (READING,)),  # on a GPU, when nothing else stands out
        ("logging", (rank_split(data=0.02, logging=0.03, forward=0.01),)),
        ("data", (rank_split(data=0.03, logging=0.02, forward=0.01),)),
    ],
    ids=["slow", "slow-data", "all-slow-data", "logs", "reads", "more-logging", "more-data"],
)
def test_the_largest_loss_is_named(kind: str, ranks: tuple[RankSplit, ...], golden: Golden) -> None:
    found = named(*ranks)
    assert found.kind == kind
    if kind == "straggler":
        assert found.fixes == ()
        assert found.share == pytest.approx(2 / 3 if len(ranks) == 3 else 3 / 4)
    if kind in ("straggler", "synchronisation"):
        golden(found.reason)


@pytest.mark.parametrize(
    ("of_logging", "overrides", "expected"),
    [
        ({}, {"trainer__log_every_n_steps": 1}, {"trainer.log_every_n_steps": 50}),
        ({}, {}, {"trainer.log_every_n_steps": 10_000}),  # every 1000 steps so far
        ({"evaluation": 0.03}, {}, {"trainer.evaluate_every_n_epochs": 10}),
        ({"checkpoints": 0.03}, {}, {"checkpoint.every_n_epochs": 10}),
        ({"checkpoints": 0.03}, {"checkpoint__every_n_steps": 5}, {"checkpoint.every_n_steps": 50}),
    ],
)
def test_what_is_due_too_often_becomes_rarer(of_logging: Any, overrides: Any, expected: Any) -> None:
    found = named(rank_split(logging=0.03, forward=0.01, **of_logging), **overrides)
    assert found.kind == "logging"
    assert found.fixes[0].overrides == expected


def test_waiting_in_forward_is_no_small_batch() -> None:
    blocked = rank_split(forward=0.03, backward=0.01, blocked={"data": 0.0, "forward": 0.02})
    larger = split(blocked, micro=64)
    assert named(blocked, larger=larger).kind == "synchronisation"
    assert named(rank_split(forward=0.03, backward=0.01), larger=larger).kind == "small_batch"
    assert named(rank_split(forward=0.03, backward=0.01)).kind == "compute"
