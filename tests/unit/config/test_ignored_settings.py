"""Settings without effect are warned of before a run, and only those."""

from pathlib import Path
from typing import Any

import pytest

from paceline.config.derived import derive
from paceline.config.loading import dump_yaml, load_config
from support.configs import config_of, warnings_of
from support.golden import Golden

FSDP = {"parallel__strategy": "fsdp", "scaling__num_workers": 2}
PIPELINE = {"parallel__strategy": "pipeline", "scaling__num_workers": 4, "data__global_batch_size": 64}
POWERSGD = {"parallel__comm_hook": "powersgd", "scaling__num_workers": 2}
SWEEP = {"space": {"optimizer.lr": [0.1, 0.2]}}
UNEVEN = {**SWEEP, "first_rung": 5.0, "rung_factor": 2.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data__prefetch_factor": 4}, "data.prefetch_factor"),
        ({"data__persistent_workers": False}, "data.persistent_workers"),
        ({"data__pin_memory": True, "scaling__use_gpu": False}, "data.pin_memory"),
        ({"data__cache": "device", "data__prefetch_factor": 4, "data__num_workers": 1}, "data.prefetch_factor"),
        ({"data__cache": "device", "data__pin_memory": True}, "data.pin_memory"),
        ({"data": {"name": "CIFAR10"}, "data__cache": "memory"}, "data.cache"),
        (
            {
                "data__global_batch_size": 64,
                "data__micro_batch_size": "max",
                "trainer__gradient_accumulation_steps": 4,
            },
            "trainer.gradient_accumulation_steps",
        ),
        ({"trainer__cudnn_benchmark": True, "scaling__use_gpu": False}, "trainer.cudnn_benchmark"),
        (
            {"trainer__float32_matmul_precision": "high", "trainer__precision": "64-true"},
            "trainer.float32_matmul_precision",
        ),
        (
            {
                "callbacks": [{"name": "ema"}, {"name": "early_stopping", "monitor": "val/loss"}],
                "trainer__evaluate_every_n_epochs": 0,
            },
            "callbacks.1",
        ),
        ({"trainer__compile_scope": "blocks"}, "trainer.compile_scope"),
        (
            {"trainer__activation_memory_budget": 0.2, "trainer__activation_checkpointing": "full"},
            "trainer.activation_memory_budget",
        ),
        ({"trainer__activation_checkpointing_blocks": ["layer4.*"]}, "trainer.activation_checkpointing_blocks"),
        ({"optimizer__base_batch_size": 64}, "optimizer.base_batch_size"),
        ({"optimizer__weight_decay_exclude": "norms_and_biases"}, "optimizer.weight_decay_exclude"),
        ({"optimizer": {"name": "nvlamb"}, "trainer__max_grad_norm": 1.0}, "trainer.max_grad_norm"),
        ({"parallel__static_graph": True}, "parallel.static_graph"),
        ({"parallel__bucket_cap_mb": 5.0, "scaling__num_workers": 0}, "parallel.bucket_cap_mb"),
        ({"parallel__bucket_cap_mb": 5.0, **FSDP}, "parallel.bucket_cap_mb"),
        ({"parallel__pipeline_stages": 2, **FSDP}, "parallel.pipeline_stages"),
        ({"parallel__shard_size": 2, "scaling__num_workers": 2}, "parallel.shard_size"),
        ({"parallel__gather_dtype": "mixed", "scaling__num_workers": 2}, "parallel.gather_dtype"),
        ({"parallel__timeout_seconds": 60.0, "scaling__num_workers": 0}, "parallel.timeout_seconds"),
        ({"parallel__comm_hook": "bf16"}, "parallel.comm_hook"),
        ({**POWERSGD, "parallel__comm_hook": "fp16", "parallel__powersgd_rank": 4}, "parallel.powersgd_rank"),
        (
            {**POWERSGD, "trainer__max_steps": 1},
            "parallel.powersgd_start_step of 1,000 is not reached in 1 step of training",
        ),
        (PIPELINE, "with 1 micro batch a step, 4 pipeline stages wait for each other most of the time"),
        ({"scaling__max_failures": 5, "scaling__num_workers": 0}, "scaling.max_failures"),
        (
            {"parallel__strategy": "data_parallel", "scaling__num_workers": 0, "scaling__gpus_per_worker": 4.0},
            "scaling.gpus_per_worker",
        ),
        ({"sweep": {**SWEEP, "first_rung": 5.0}}, "sweep.first_rung"),
        ({"sweep": {**UNEVEN, "scheduler": "median"}}, "sweep.rung_factor"),
    ],
)
def test_settings_without_effect(changes: dict[str, Any], expected: str, golden: Golden) -> None:
    (warning,) = warnings_of(config_of(**changes))
    assert warning.partition(":")[0] == expected
    golden(warning)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scaling__num_workers": 0, "scaling__use_gpu": True},
        {"data__prefetch_factor": 4, "data__persistent_workers": False, "data__num_workers": 1},
        {"data__prefetch_factor": 2, "data__persistent_workers": True},
        {"data__pin_memory": False, "scaling__use_gpu": False},
        {"data__pin_memory": True, "trainer__cudnn_benchmark": True},
        {"data__cache": "memory", "data__pin_memory": True, "data__num_workers": 1, "data__prefetch_factor": 4},
        {"data__cache": "device", "scaling__use_gpu": False},
        {"data": {"name": "mnist5k"}, "data__cache": "device", "data__num_workers": 1},
        {"trainer__float32_matmul_precision": "medium", "scaling__use_gpu": False},
        {"trainer__compile": "default", "trainer__compile_scope": "blocks"},
        {
            "trainer__compile": "default",
            "trainer__activation_checkpointing": "budget",
            "trainer__activation_memory_budget": 0.2,
        },
        {"trainer__activation_checkpointing": "selective", "trainer__activation_checkpointing_blocks": ["layer4.*"]},
        {"optimizer__base_batch_size": 64, "optimizer__lr_scaling": "sqrt"},
        {"optimizer__fused": True, "scaling__use_gpu": False},
        {"optimizer__weight_decay_exclude": "norms_and_biases", "optimizer__weight_decay": 0.1},
        {"optimizer": {"name": "lars", "weight_decay_exclude": "norms_and_biases"}},
        {"optimizer": {"name": "lamb"}, "trainer__max_grad_norm": 1.0},
        {"parallel__static_graph": True, "parallel__bucket_cap_mb": 5.0, "scaling__num_workers": 2},
        {"parallel__timeout_seconds": 60.0, "scaling__placement": "spread"},
        {"parallel__strategy": "data_parallel", "scaling__num_workers": 1, "scaling__gpus_per_worker": 2.0},
        {**POWERSGD, "parallel__powersgd_start_step": 3, "trainer__epochs": 2, "trainer__precision": "64-true"},
        {**PIPELINE, "parallel__pipeline_stages": 2, "trainer__gradient_accumulation_steps": 4},
        {"scaling__gpus_per_worker": 0.5},
        {"sweep": {**UNEVEN, "scheduler": "asha"}},
    ],
)
def test_settings_with_an_effect(changes: dict[str, Any]) -> None:
    assert warnings_of(config_of(**changes)) == []


def test_a_saved_config_has_the_same_warnings(tmp_path: Path) -> None:
    config = config_of(optimizer={"name": "sgd", "base_batch_size": 64})
    file = tmp_path / "saved.yaml"
    file.write_text(dump_yaml(config))
    assert derive(load_config(file), None).warnings == derive(config, None).warnings
    assert len(derive(config, None).warnings) == 1
