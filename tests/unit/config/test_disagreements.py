"""Settings that are right by themselves, and contradict each other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from paceline.config.checks import ERROR_TYPE
from paceline.config.experiment import ExperimentConfig, validate
from paceline.config.loading import load_config
from support.configs import TREE, config_of, problems_of

DATA = "name: run\nmodel: {path: 'own_nets:build'}\ndata:\n  path: 'own_nets:data'\n"
CNN = "name: x\nmodel: {name: cnn}\n"
GPT = "name: x\nmodel: {name: gpt, context_length: 32}\n"
ADASCALE = "optimizer: {name: sgd, lr_scaling: adascale}\n"
DATA_PARALLEL = "parallel: {strategy: data_parallel}\n"
FSDP = "parallel: {strategy: fsdp}\n"
PIPELINE = "parallel: {strategy: pipeline}\n"
NO_WORKERS = "scaling: {num_workers: 0}\n"
TWO = "scaling: {num_workers: 2}\n"

BATCH_SIZES = [
    (DATA + "  global_batch_size: 255\n" + TWO, "data.global_batch_size"),
    (DATA + "  global_batch_size: 100\n  micro_batch_size: 32\n", "data.global_batch_size"),
    (
        DATA + "  global_batch_size: 64\n  micro_batch_size: 16\ntrainer: {gradient_accumulation_steps: 2}\n",
        "data.global_batch_size",
    ),
    (DATA + "  micro_batch_size: 2147483647\n" + TWO, "data.micro_batch_size"),
    (DATA + "  micro_batch_size: max\n", "data.global_batch_size"),
]
CONTRADICTIONS = [
    ("trainer: {deterministic: true, cudnn_benchmark: true}\n", "trainer.cudnn_benchmark"),
    ("trainer: {deterministic: true, compile: max-autotune}\n", "trainer.compile"),
    ("trainer: {activation_checkpointing: budget}\n", "trainer.activation_checkpointing"),
    ("lr_scheduler: {name: cosine, warmup_epochs: 1, warmup_steps: 5}\n", "lr_scheduler.warmup_epochs"),
    ("optimizer: {name: sgd, momentum: 0, nesterov: true}\n", "optimizer.nesterov"),
    ("scaling: {use_gpu: false, gpus_per_worker: 0.5}\n", "scaling.gpus_per_worker"),
    ("scaling: {gpus_per_worker: 2}\n", "scaling.gpus_per_worker"),
    ("checkpoint: {every_n_steps: 5, every_n_epochs: 1}\n", "checkpoint.every_n_epochs"),
    (GPT + "data: {name: text_file, context_length: 64}\n", "data.context_length"),
    (CNN + "data: {name: image_folder, root: x, cache: memory}\n", "data.cache"),
    (CNN + "data: {name: Food101, cache: device, augmentation: {random_resized_crop: false}}\n", "data.cache"),
    (DATA_PARALLEL, "parallel.strategy"),
    (DATA_PARALLEL + "scaling: {num_workers: 0, use_gpu: false}\n", "parallel.strategy"),
    (DATA_PARALLEL + TWO, "scaling.num_workers"),
    (DATA_PARALLEL + "scaling: {gpus_per_worker: 2.5}\n", "scaling.gpus_per_worker"),
    (DATA_PARALLEL + NO_WORKERS + "trainer: {activation_checkpointing: full}\n", "trainer.activation_checkpointing"),
    (DATA_PARALLEL + NO_WORKERS + "trainer: {compile: default}\n", "trainer.compile"),
    (FSDP, "parallel.strategy"),
    (FSDP + NO_WORKERS, "parallel.strategy"),
    (FSDP + TWO + "optimizer: {name: sgd, fused: true}\n", "optimizer.fused"),
    ("parallel: {strategy: fsdp, gather_dtype: mixed}\nscaling: {num_workers: 2}\n", "parallel.gather_dtype"),
    ("parallel: {strategy: fsdp, shard_size: 3}\nscaling: {num_workers: 4}\n", "parallel.shard_size"),
    (PIPELINE, "parallel.strategy"),
    ("parallel: {strategy: pipeline, pipeline_stages: 3}\nscaling: {num_workers: 4}\n", "parallel.pipeline_stages"),
    (PIPELINE + TWO + "trainer: {precision: 16-mixed}\n", "trainer.precision"),
    (PIPELINE + TWO + "trainer: {compile: default}\n", "trainer.compile"),
    (PIPELINE + TWO + "optimizer: {name: nvlamb}\n", "optimizer.name"),
    (PIPELINE + TWO + "task: {name: classification, mixup_alpha: 0.2}\n", "task.mixup_alpha"),
    ("parallel: {comm_hook: bf16, strategy: fsdp}\n" + TWO, "parallel.comm_hook"),
    ("parallel: {comm_hook: powersgd}\ntrainer: {precision: 16-mixed}\n" + TWO, "parallel.comm_hook"),
    ("parallel: {static_graph: true}\ntrainer: {gradient_accumulation_steps: 2}\n" + TWO, "parallel.static_graph"),
    (ADASCALE, "optimizer.lr_scaling"),
    (DATA + "  global_batch_size: 64\n  micro_batch_size: max\n" + ADASCALE, "optimizer.lr_scaling"),
    ("optimizer: {name: adamw, lr_scaling: adascale}\n" + TWO, "optimizer.lr_scaling"),
    (ADASCALE + TWO + FSDP, "optimizer.lr_scaling"),
    (ADASCALE + TWO + "parallel: {comm_hook: powersgd}\n", "optimizer.lr_scaling"),
    ("scaling: {num_workers: [4, 2]}\n", "scaling.min_workers"),
    (PIPELINE + "scaling: {num_workers: [1, 2]}\n", "scaling.min_workers"),
    (FSDP + "scaling: {num_workers: [1, 2]}\n", "scaling.min_workers"),
    ("parallel: {strategy: fsdp, shard_size: 2}\nscaling: {num_workers: [2, 4]}\n", "parallel.shard_size"),
    ("parallel: {static_graph: true}\nscaling: {num_workers: [1, 2]}\n", "parallel.static_graph"),
    ("metrics: [{name: f1}, {name: rmse}, {name: f1}]\n", "metrics"),
]
OWN_TASK = "task: {path: 'own_nets:build'}\n"
DISAGREEMENTS = [
    ("trainer: {precision: 16-mixed}\nscaling: {use_gpu: false}\n", "fp16-on-cpu", "trainer.precision"),
    ("checkpoint: {monitor: val/f1}\n", "no-such-metric", "checkpoint.monitor"),
    ("metrics: [{name: f1}]\ncheckpoint: {monitor: f1}\n", "no-such-metric", "checkpoint.monitor"),
    ("callbacks: [{name: ema}, {name: early_stopping, monitor: loss}]\n", "no-such-metric", "callbacks.1.monitor"),
    ("sweep: {metric: accuracy, space: {seed: [1, 2]}}\n", "no-such-metric", "sweep.metric"),
    ("sweep: {metric: [train/loss, val/f1], space: {seed: [1, 2]}}\n", "no-such-metric", "sweep.metric"),
    ("tuneup: {metric: val/acuracy}\n", "no-such-metric", "tuneup.metric"),
    ("scale: {target: {val/acuracy: 0.9}}\n", "no-such-metric", "scale.target"),
    *((text, "batch", key) for text, key in BATCH_SIZES),
    *((text, "contradiction", key) for text, key in CONTRADICTIONS),
    (OWN_TASK + "checkpoint: {monitor: val_acc}\n", "no-such-metric", "checkpoint.monitor"),
    (OWN_TASK + "callbacks: [{name: early_stopping, monitor: bleu}]\n", "no-such-metric", "callbacks.0.monitor"),
    (OWN_TASK + "sweep: {metric: val_acc, space: {seed: [1, 2]}}\n", "no-such-metric", "sweep.metric"),
]


@pytest.mark.parametrize(("text", "code", "key"), DISAGREEMENTS)
def test_a_contradiction_is_refused(text: str, code: str, key: str, refused: Callable[..., None]) -> None:
    refused(text, code, key)


@pytest.mark.parametrize("strategy", ["fsdp", "pipeline", "data_parallel"])
def test_the_largest_micro_batch_is_for_whole_models_on_one_device(strategy: str) -> None:
    data = {**TREE["data"], "global_batch_size": 64, "micro_batch_size": "max"}
    tree = {**TREE, "data": data, "parallel": {"strategy": strategy}, "scaling": {"num_workers": 2}}
    assert "data.micro_batch_size" in {problem.key for problem in problems_of(validate, tree)}


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"strategy": "fsdp", "shard_size": 2}},
        {"parallel": {"strategy": "pipeline", "pipeline_stages": 2}},
        {"parallel__strategy": "fsdp", "optimizer": {"name": "adamw", "fused": True}},
        {"parallel__strategy": "fsdp", "optimizer": {"name": "nvlamb"}},
        {"optimizer__lr_scaling": "adascale"},
        {"optimizer__lr_scaling": "adascale", "scaling__num_workers": 1, "trainer__gradient_accumulation_steps": 2},
        # a metric of a named validation set, one of a mapping of metrics, and any of a custom task
        *({"metrics": [{"name": "f1"}], "checkpoint__monitor": f"val/{name}"} for name in ("loss", "f1", "clean/f1")),
        {"metrics": [{"name": "f1"}], "checkpoint__monitor": "val/f1/0"},
        {"task": {"path": "own_task:Task"}, "checkpoint__monitor": "val/bleu"},
        {"task": {"path": "own_task:Task"}, "sweep": {"metric": "bleu", "space": {"seed": [1, 2]}}},
    ],
)
def test_what_makes_sense_is_taken(changes: dict[str, Any]) -> None:
    config_of(**{"scaling__num_workers": 4, **changes})


@pytest.mark.parametrize("workers", [2, [1, 2]], ids=str)
def test_workers_do_not_share_a_gpu(workers: Any, refused: Callable[..., None]) -> None:
    text = f"scaling: {{gpus_per_worker: 0.5, num_workers: {workers}}}\n"
    refused(text, "contradiction", "scaling.gpus_per_worker", 4)
    config_of(scaling__num_workers=1, scaling__gpus_per_worker=0.5)


def test_disagreements_are_reported_beside_mistakes(write: Callable[..., Path]) -> None:
    trainer = "trainer: {cudnn_benchmark: true, deterministic: true}\n"
    optimizer = "optimizer: {name: sgd, momentum: 0, nesterov: true}\n"
    found = problems_of(load_config, write(f"seed: -1\n{trainer}{optimizer}"))
    assert [problem.key for problem in found] == ["seed", "trainer.cudnn_benchmark", "optimizer.nesterov"]


def test_a_disagreement_that_rests_on_a_mistake_is_not_reported(write: Callable[..., Path]) -> None:
    body = "trainer: {gradient_accumulation_steps: 4}\nscaling: {num_workers: two}\n"
    file = write(body, head=f"{DATA}  global_batch_size: 64\n  micro_batch_size: 16\n")
    assert [problem.key for problem in problems_of(load_config, file)] == ["scaling.num_workers"]


def test_batch_sizes_that_do_not_work_out_hide_what_rests_on_them() -> None:
    data = {**TREE["data"], "global_batch_size": 7, "micro_batch_size": 2}
    found = problems_of(validate, {**TREE, "data": data, "optimizer": {"name": "sgd", "lr_scaling": "adascale"}})
    assert [problem.code for problem in found] == ["batch"]


def test_a_config_made_from_its_class_is_checked_too() -> None:
    with pytest.raises(ValidationError) as raised:
        ExperimentConfig.model_validate({**TREE, "trainer": {"deterministic": True, "cudnn_benchmark": True}})
    assert [error["type"] for error in raised.value.errors()] == [ERROR_TYPE]
