"""Elastic runs: what their config says, and how a global batch is cut up when there are fewer workers."""

from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.batch_sizes import BatchSizes, OpenBatchSizes, sizes_with
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import validate
from paceline.config.schema import json_schema
from paceline.errors import ConfigError, Problem


def tree(workers: Any, **sections: Any) -> dict[str, Any]:
    data = {"path": "own_nets:data", "global_batch_size": 24, **sections.pop("data", {})}
    return {
        "name": "run",
        "model": {"path": "own_nets:build"},
        "data": data,
        "scaling": {"num_workers": workers},
        **sections,
    }


def config_of(workers: Any, **sections: Any) -> ExperimentConfig:
    return validate(tree(workers, **sections))


def test_a_range_is_short_for_the_fewest_and_the_most() -> None:
    short = config_of([2, 4])
    assert (short.scaling.min_workers, short.scaling.num_workers, short.scaling.is_elastic) == (2, 4, True)
    assert validate(short.model_dump(mode="json")) == short
    assert short.with_overrides({"scaling.num_workers": [1, 3]}).scaling.min_workers == 1
    assert not config_of([4, 4]).scaling.is_elastic
    assert not config_of(4).scaling.is_elastic


@pytest.mark.parametrize("workers", [[2, 4], 3, 0])
def test_the_schema_takes_both(workers: Any) -> None:
    jsonschema.validate(tree(workers), json_schema())


@pytest.mark.parametrize("workers", [[0, 4], [2], [1, 2, 3], ["1", 2], "2"])
def test_the_schema_and_the_check_refuse_the_same(workers: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(tree(workers), json_schema())
    with pytest.raises(ConfigError) as caught:
        config_of(workers)
    assert str(caught.value).startswith(("[wrong-type] scaling", "[out-of-range] scaling")), caught.value


@pytest.mark.parametrize(
    ("workers", "sections", "key"),
    [
        ([4, 2], {}, "scaling.min_workers"),
        ([1, 2], {"parallel": {"strategy": "pipeline"}}, "scaling.min_workers"),
        ([1, 2], {"parallel": {"strategy": "fsdp"}}, "scaling.min_workers"),
        ([2, 4], {"parallel": {"strategy": "fsdp", "shard_size": 2}}, "parallel.shard_size"),
        ([1, 2], {"parallel": {"static_graph": True}}, "parallel.static_graph"),
    ],
)
def test_what_needs_a_fixed_number_is_refused(
    workers: Any, sections: dict[str, Any], key: str, refuse: Callable[[Any], Problem]
) -> None:
    assert refuse(tree(workers, **sections)).key == key


@given(st.integers(1, 40), st.integers(1, 6), st.integers(2, 9), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_no_micro_batch_is_larger_with_fewer_workers(micro: int, accumulation: int, most: int, workers: int) -> None:
    workers = min(workers, most)
    total = micro * accumulation * most
    data = {"global_batch_size": total, "micro_batch_size": micro}
    usual = BatchSizes(total, micro, accumulation, most)
    config = config_of([1, most], data=data)
    assert sizes_with(config, most) == usual
    sizes = sizes_with(config, workers)
    assert isinstance(sizes, BatchSizes)
    assert (sizes.global_batch_size, sizes.world_size) == (total, workers)
    assert sizes.micro_batch_size <= micro
    assert sizes.micro_batch_size * sizes.gradient_accumulation_steps >= total / workers  # a worker's share fits in
    assert (sizes.gradient_accumulation_steps - 1) * micro < total / workers + 1  # in as few as possible


def test_the_largest_micro_batch_is_looked_for_anew() -> None:
    config = config_of([1, 4], data={"micro_batch_size": "max"})
    assert sizes_with(config, 2) == OpenBatchSizes(24, 2)


def test_without_a_range_the_config_decides() -> None:
    assert sizes_with(config_of(4), 2).world_size == 4
