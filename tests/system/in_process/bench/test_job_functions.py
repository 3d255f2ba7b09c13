"""Functions that do jobs: found by their import path, in this process or on a worker group."""

from pkgutil import resolve_name
from typing import Any

import pytest

from paceline.bench.bench import LocalBench
from paceline.bench.jobs import THROUGHPUT, TRAIN, Answer, Job, part_of
from paceline.tuneups import confirmation, facts, peaks, screening, splits
from support.bench.study import STUDY
from support.toys import toy_config

CONFIG = toy_config(trainer__precision="32-true", scaling__num_workers=0)


def done(function: str, *configs: Any, **options: Any) -> Answer:
    parts = tuple(part_of(each) for each in configs or (CONFIG,))
    return LocalBench(CONFIG, STUDY).do(Job(function, parts, options))


@pytest.mark.parametrize(
    "function",
    [
        *(TRAIN, THROUGHPUT, facts.LOOK, splits.SPLIT, screening.BENCHMARK, confirmation.BUILD),
        *(peaks.MEMORY, peaks.PREDICT),
    ],
)
def test_every_function_of_a_job_is_where_its_path_says(function: str) -> None:
    assert callable(resolve_name(function))


def seeds_of(configs: Any, options: Any, ranks: Any) -> dict[str, Any]:
    return {"seeds": [config.seed for config in configs], "world_size": ranks.world_size, **options}


def test_a_function_of_a_users_own_gets_the_configs_validated_and_the_options() -> None:
    other = CONFIG.with_overrides({"seed": 7})
    answer = done(f"{__name__}:seeds_of", CONFIG, other, number=3)
    assert answer.values == {"seeds": [CONFIG.seed, 7], "world_size": 1, "number": 3}
    assert done(f"{__name__}:nowhere").kind == "error"


def test_a_training_is_the_same_for_the_same_seed_and_ends_when_its_time_is_over() -> None:
    first, second, other = (done(TRAIN, CONFIG.with_overrides({"seed": seed})).values for seed in (1, 1, 2))
    assert first["metrics"]["val/loss"] == second["metrics"]["val/loss"] != other["metrics"]["val/loss"]
    assert not first["stopped"]
    assert first["samples"] > 0
    step, values = first["validation"][-1]
    assert step > 0
    assert values["val/loss"] == first["metrics"]["val/loss"]
    stopped = done(TRAIN, CONFIG.with_overrides({"trainer.epochs": 10_000}), seconds=0.2).values
    assert stopped["stopped"]


def test_throughput_has_windows_of_each_config() -> None:
    small, large = CONFIG, CONFIG.with_overrides({"data.global_batch_size": 24})
    found = done(THROUGHPUT, small, large, windows=3, window_seconds=0.02).values
    assert [len(each) for each in found["seconds_per_sample"]] == [3, 3]
    assert min(min(each) for each in found["seconds_per_sample"]) > 0
    assert min(found["steps"]) >= 1
    assert min(found["build_seconds"]) > 0
