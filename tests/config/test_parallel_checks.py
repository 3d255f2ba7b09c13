"""Strategies that do not go with the rest of the config."""

from typing import Any

import pytest

from paceline.config.batch_sizes import batch_sizes
from paceline.config.derived import derive
from paceline.config.loading import validate
from paceline.errors import ConfigError


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
    "fsdp alone": (tree({"strategy": "fsdp"}, 1), "parallel.strategy", "there is one", "num_workers: 2"),
    "fsdp in process": (tree({"strategy": "fsdp"}, 0), "parallel.strategy", "there are none", "strategy: ddp"),
    "pipeline alone": (tree(PIPELINE, 1), "parallel.strategy", "there is one", "num_workers: 2"),
    "groups": (tree({"strategy": "fsdp", "shard_size": 3}), "parallel.shard_size", "groups of 3", "2, 4"),
    "stages": (tree({**PIPELINE, "pipeline_stages": 3}), "parallel.pipeline_stages", "3 stages", "2, 4"),
    "fp16": (tree(PIPELINE, trainer={"precision": "16-mixed"}), "trainer.precision", "overflow", "bf16-mixed"),
    "compile": (tree(PIPELINE, trainer={"compile": "default"}), "trainer.compile", "no model", "compile: none"),
    "nvlamb": (tree(PIPELINE, **NVLAMB), "optimizer.name", "norm of the whole", "name: lamb"),
    "fused": (
        tree({"strategy": "fsdp"}, optimizer={"name": "sgd", "fused": True}),
        "optimizer.fused",
        "cut up",
        "fused: auto",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_with_reason_and_cure(case: str) -> None:
    config, key, reason, cure = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        validate(config)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert reason in problem.reason
    assert cure in (problem.hint or "")


def test_a_group_of_one_cuts_nothing_up() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(tree({"strategy": "fsdp", "shard_size": 1}))
    assert [problem.key for problem in caught.value.problems] == ["parallel.shard_size"]


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


def test_too_few_micro_batches_for_the_stages_are_warned_of() -> None:
    (warning,) = derive(validate(tree(PIPELINE)), None).warnings
    assert "1 micro batch a step" in warning
    assert "gradient_accumulation_steps to 4 or more" in warning


def test_settings_of_another_strategy_are_warned_of() -> None:
    parallel = {"strategy": "fsdp", "pipeline_stages": 2, "bucket_cap_mb": 5.0}
    warnings = " ".join(derive(validate(tree(parallel)), None).warnings)
    assert "parallel.pipeline_stages: 2 has no effect: parallel.strategy is not pipeline" in warnings
    assert "parallel.bucket_cap_mb: 5.0 has no effect: parallel.strategy is not ddp" in warnings
