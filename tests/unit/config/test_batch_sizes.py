"""Batch arithmetic, the scaled learning rate and the number of steps."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.config.batch_sizes import BatchSizes, OpenBatchSizes, batch_sizes
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.engine.order import DataOrder
from paceline.engine.plan import TrainPlan
from support.configs import config_of, problems_of
from support.golden import Golden

counts = st.integers(1, 64)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make(
    total: int | None = None,
    micro: int | str | None = None,
    accumulation: int | str = "auto",
    workers: int = 1,
    **more: Any,
) -> ExperimentConfig:
    """A config of the given batch numbers; `more` is by dotted key, with `__` for the dot."""
    sizes = {
        "data__global_batch_size": total,
        "data__micro_batch_size": micro,
        "trainer__gradient_accumulation_steps": accumulation,
        "scaling__num_workers": workers,
    }
    return config_of(**sizes, **more)


@given(counts, counts, st.integers(0, 16))
@quick
def test_any_two_fix_the_third(micro: int, accumulation: int, workers: int) -> None:
    world = max(workers, 1)
    total = micro * accumulation * world
    expected = BatchSizes(total, micro, accumulation, world)

    assert batch_sizes(make(total, micro, accumulation, workers)) == expected
    assert batch_sizes(make(None, micro, accumulation, workers)) == expected
    assert batch_sizes(make(total, None, accumulation, workers)) == expected
    assert batch_sizes(make(total, micro, "auto", workers)) == expected


@given(st.integers(1, 2000), counts, counts, st.integers(1, 8))
@quick
def test_what_does_not_divide_names_the_nearest_that_do(total: int, micro: int, accumulation: int, world: int) -> None:
    unit = accumulation * world
    if total % unit == 0:
        assert batch_sizes(make(total, None, accumulation, world)).micro_batch_size * unit == total
        return
    above = total + unit - total % unit
    (problem,) = problems_of(make, total, None, accumulation, world)
    assert problem.code == "batch"
    assert {int(number) for number in re.findall(r"\d+", problem.hint)} == {above, above - unit} - {0}


@pytest.mark.parametrize(
    ("given_sizes", "expected"),
    [
        ((), BatchSizes(32, 32, 1, 1)),
        ((None, None, 4, 2), BatchSizes(256, 32, 4, 2)),
        ((256, None, "auto", 2), BatchSizes(256, 128, 1, 2)),
        ((256, None, "auto", 0), BatchSizes(256, 256, 1, 1)),
        ((None, 16, "auto", 2), BatchSizes(32, 16, 1, 2)),
        ((128, 16, "auto", 2), BatchSizes(128, 16, 4, 2)),
    ],
)
def test_defaults(given_sizes: tuple[Any, ...], expected: BatchSizes) -> None:
    assert batch_sizes(make(*given_sizes)) == expected


def test_the_largest_micro_batch_is_left_open() -> None:
    config = make(1024, "max", workers=2, trainer__epochs=3, optimizer={"name": "sgd", "lr_scaling": "linear"})
    derived = derive(config, Sizes(4000, 1000))

    assert derived.batch == OpenBatchSizes(1024, 2)
    assert (derived.lr, derived.total_steps) == (0.4, 12)
    assert derived.lines()[0] == ("batch", "largest micro that fits, found at the start; 1,024 global over 2 workers")


@pytest.mark.parametrize(
    ("total", "workers", "largest", "sizes", "text"),
    [
        (96, 2, 37, (24, 2), "24 micro x 2 accumulation x 2 workers = 96 global"),
        (96, 2, 48, (48, 1), "48 micro x 1 accumulation x 2 workers = 96 global"),
        (1024, 2, 200, (171, 3), "at most 171 micro x 3 accumulation x 2 workers for 1024 global"),
        (3, 4, 1, (1, 1), "at most 1 micro x 1 accumulation x 4 workers for 3 global"),
        (7, 1, 1, (1, 7), "1 micro x 7 accumulation x 1 worker = 7 global"),
    ],
)
def test_found_sizes(total: int, workers: int, largest: int, sizes: tuple[int, int], text: str) -> None:
    found = OpenBatchSizes(total, workers).settled(largest)
    assert found == BatchSizes(total, *sizes, workers)
    assert found.text() == text


@pytest.mark.parametrize(
    ("rule", "batch", "lr", "shown"),
    [
        ("none", 128, 0.1, "0.1"),
        ("linear", 128, 0.05, "0.1 x 128/256 (linear) = 0.05"),
        ("sqrt", 128, 0.1 * 0.5**0.5, "0.1 x sqrt(128/256) (sqrt) = 0.0707107"),
        ("adascale", 384, 0.1, "0.1 x gain (adascale, 1 to 1.5)"),
        ("adascale", 64, 0.1, "0.1 x gain (adascale, 0.25 to 1)"),
        ("adascale", 256, 0.1, "0.1 x gain (adascale, always 1)"),
    ],
)
def test_learning_rate_follows_the_batch(rule: str, batch: int, lr: float, shown: str) -> None:
    derived = derive(make(batch, workers=2, optimizer={"name": "sgd", "lr": 0.1, "lr_scaling": rule}), None)
    assert derived.lr == pytest.approx(lr)
    assert dict(derived.lines())["learning rate"] == shown


def test_workers_of_one_pipeline_share_its_samples() -> None:
    config = make(64, accumulation=4, workers=4, parallel={"strategy": "pipeline", "pipeline_stages": 2})
    assert batch_sizes(config).micro_batch_size == 8
    assert batch_sizes(config).text() == "8 micro x 4 accumulation x 2 pipelines = 64 global"


@pytest.mark.parametrize(
    ("changes", "each", "total"),
    [
        ({}, 16, 16),
        ({"trainer__epochs": 5}, 16, 80),
        ({"trainer__epochs": 5, "trainer__max_steps": 20}, 16, 20),
        ({"trainer__epochs": 1, "trainer__max_steps": 20}, 16, 16),
        ({"trainer__max_steps": 1000}, 16, 1000),
        ({"data__drop_last": True, "trainer__epochs": 2}, 15, 30),
    ],
)
def test_steps(changes: dict[str, Any], each: int, total: int) -> None:
    config = make(256, **changes)
    derived = derive(config, Sizes(4000, 1000))
    assert (derived.steps_per_epoch, derived.total_steps) == (each, total)
    assert (derived.train_samples, derived.validation_samples) == (4000, 1000)
    order = DataOrder(4000, 256, 256, drop_last=config.data.drop_last)
    assert order.steps_per_epoch == each
    assert TrainPlan(config.trainer, config.checkpoint, each).total_steps == total


def test_an_epoch_without_steps_is_an_error(golden: Golden) -> None:
    for batch, samples in ((5000, 4000), (None, 0)):
        (problem,) = problems_of(derive, make(batch, data__drop_last=True), Sizes(samples, 1000))
        assert problem.code == "batch"
        golden(str(problem), f"{samples} samples")


@pytest.mark.parametrize(
    ("warmup", "sizes", "steps"),
    [
        ({"warmup_epochs": 2}, Sizes(4000, 0), 32),
        ({"warmup_epochs": 2}, None, None),
        ({"warmup_steps": 7}, None, 7),
        ({"warmup_samples": 1024}, None, 4),
        ({}, None, 0),
    ],
)
def test_warmup(warmup: dict[str, Any], sizes: Sizes | None, steps: int | None) -> None:
    assert derive(make(256, lr_scheduler={"name": "cosine", **warmup}), sizes).warmup_steps == steps


@pytest.mark.parametrize(
    ("warmup", "max_steps", "sizes", "is_warned"),
    [
        ({"warmup_epochs": 10}, 159, Sizes(4000, 0), True),
        ({"warmup_epochs": 10}, 160, Sizes(4000, 0), False),
        ({"warmup_epochs": 10}, 20, None, False),
        ({"warmup_steps": 1200}, 1, None, True),
        ({"warmup_samples": 5120}, 19, None, True),
        ({}, 1, None, False),
    ],
)
def test_a_warmup_longer_than_training_is_warned_of(
    warmup: dict[str, Any], max_steps: int, sizes: Sizes | None, is_warned: bool, golden: Golden
) -> None:
    derived = derive(make(256, trainer__max_steps=max_steps, lr_scheduler={"name": "cosine", **warmup}), sizes)
    assert len(derived.warnings) == is_warned
    if is_warned:
        golden(derived.warnings[0])


def test_what_depends_on_unknown_data_is_unknown() -> None:
    unknown = derive(make(256, trainer__epochs=3), None)
    assert (unknown.steps_per_epoch, unknown.total_steps, unknown.train_samples) == (None, None, None)

    limited = derive(make(256, trainer__max_steps=9), None)
    assert limited.total_steps == 9
    assert derive(make(256, trainer__max_steps=9, trainer__epochs=3), None).total_steps is None


def test_table_before_a_run(golden: Golden) -> None:
    config = make(128, 16, workers=2, trainer__epochs=2, lr_scheduler={"name": "cosine", "warmup_steps": 5})

    for name, sizes in (("known", Sizes(4000, 1000)), ("unknown", None)):
        golden("\n".join(f"{label}: {text}" for label, text in derive(config, sizes).lines()), name)


def test_data_of_the_shipped_sets_is_known_without_loading() -> None:
    config = make(100, data={"name": "mnist5k", "global_batch_size": 100})
    assert derive(config, config.data.sizes()).total_steps == 40
