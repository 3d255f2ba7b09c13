"""Strategies that do not go with the rest of the config."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.config.batch_sizes import batch_sizes
from paceline.config.derived import derive
from paceline.config.loading import validate
from paceline.errors import Problem
from support.golden import Golden


def tree(parallel: dict[str, Any], workers: int = 4, **sections: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "model": {"name": "cnn"},
        "data": {"name": "mnist5k", "global_batch_size": 64},
        "parallel": parallel,
        "scaling": {"num_workers": workers},
        **sections,
    }


PIPELINE = {"strategy": "pipeline"}
NVLAMB = {"optimizer": {"name": "nvlamb"}}
REFUSED = {
    "fsdp alone": (tree({"strategy": "fsdp"}, 1), "parallel.strategy"),
    "fsdp in process": (tree({"strategy": "fsdp"}, 0), "parallel.strategy"),
    "pipeline alone": (tree(PIPELINE, 1), "parallel.strategy"),
    "groups": (tree({"strategy": "fsdp", "shard_size": 3}), "parallel.shard_size"),
    "stages": (tree({**PIPELINE, "pipeline_stages": 3}), "parallel.pipeline_stages"),
    "fp16": (tree(PIPELINE, trainer={"precision": "16-mixed"}), "trainer.precision"),
    "compile": (tree(PIPELINE, trainer={"compile": "default"}), "trainer.compile"),
    "nvlamb": (tree(PIPELINE, **NVLAMB), "optimizer.name"),
    "fused": (tree({"strategy": "fsdp"}, optimizer={"name": "sgd", "fused": True}), "optimizer.fused"),
    "shards of one": (tree({"strategy": "fsdp", "shard_size": 1}), "parallel.shard_size"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_refused(case: str, refuse: Callable[[Any], Problem]) -> None:
    config, key = REFUSED[case]
    assert refuse(config).key == key


@pytest.mark.parametrize(
    "config",
    [
        tree({"strategy": "fsdp", "shard_size": 2}),
        tree({**PIPELINE, "pipeline_stages": 2}),
        tree({"strategy": "fsdp"}, optimizer={"name": "adamw", "fused": True}),
        tree({"strategy": "fsdp"}, **NVLAMB),
    ],
)
def test_what_makes_sense_is_taken(config: dict[str, Any]) -> None:
    validate(config)


def test_workers_of_one_pipeline_share_its_samples() -> None:
    config = validate(tree({**PIPELINE, "pipeline_stages": 2}, trainer={"gradient_accumulation_steps": 4}))
    assert batch_sizes(config).micro_batch_size == 8
    assert batch_sizes(config).text() == "8 micro x 4 accumulation x 2 pipelines = 64 global"
    assert derive(config, None).warnings == ()


def test_too_few_micro_batches_for_the_stages_are_warned_of(golden: Golden) -> None:
    (warning,) = derive(validate(tree(PIPELINE)), None).warnings
    golden(warning)


def test_settings_of_another_strategy_are_warned_of(golden: Golden) -> None:
    parallel = {"strategy": "fsdp", "pipeline_stages": 2, "bucket_cap_mb": 5.0}
    warnings = derive(validate(tree(parallel)), None).warnings
    assert {text.partition(":")[0] for text in warnings} == {"parallel.pipeline_stages", "parallel.bucket_cap_mb"}
    golden("\n".join(warnings))
