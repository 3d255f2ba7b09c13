"""Elastic runs: what their config says, and how a global batch is cut up when there are fewer workers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.batch_sizes import BatchSizes, OpenBatchSizes, sizes_with
from paceline.config.experiment import ExperimentConfig, validate
from support.configs import TREE, problems_of


def tree(workers: Any, **data: Any) -> dict[str, Any]:
    data = {**TREE["data"], "global_batch_size": 24, **data}
    return {**TREE, "data": data, "scaling": {"num_workers": workers}}


def config_of(workers: Any, **data: Any) -> ExperimentConfig:
    return validate(tree(workers, **data))


def test_a_range_is_short_for_the_fewest_and_the_most() -> None:
    short = config_of([2, 4])
    assert (short.scaling.min_workers, short.scaling.num_workers, short.scaling.is_elastic) == (2, 4, True)
    assert validate(short.model_dump(mode="json")) == short
    assert short.with_overrides({"scaling.num_workers": [1, 3]}).scaling.min_workers == 1
    assert not config_of([4, 4]).scaling.is_elastic
    assert not config_of(4).scaling.is_elastic


@pytest.mark.parametrize("workers", [[0, 4], [2], [1, 2, 3], ["1", 2], "2"])
def test_what_is_no_range_is_refused(workers: Any) -> None:
    problem = problems_of(config_of, workers)[0]
    assert (problem.code, problem.key.partition(".")[0]) in {("wrong-type", "scaling"), ("out-of-range", "scaling")}


@given(st.integers(1, 40), st.integers(1, 6), st.integers(2, 9), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_no_micro_batch_is_larger_with_fewer_workers(micro: int, accumulation: int, most: int, workers: int) -> None:
    workers = min(workers, most)
    total = micro * accumulation * most
    config = config_of([1, most], global_batch_size=total, micro_batch_size=micro)
    assert sizes_with(config, most) == BatchSizes(total, micro, accumulation, most)
    sizes = sizes_with(config, workers)
    assert isinstance(sizes, BatchSizes)
    assert (sizes.global_batch_size, sizes.world_size) == (total, workers)
    assert sizes.micro_batch_size <= micro
    assert sizes.micro_batch_size * sizes.gradient_accumulation_steps >= total / workers  # a worker's share fits in
    assert (sizes.gradient_accumulation_steps - 1) * micro < total / workers + 1  # in as few as possible


def test_a_largest_micro_batch_is_found_again_and_without_a_range_the_config_decides() -> None:
    assert sizes_with(config_of([1, 4], micro_batch_size="max"), 2) == OpenBatchSizes(24, 2)
    assert sizes_with(config_of(4), 2).world_size == 4
