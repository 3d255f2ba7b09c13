"""What scaling.py trains: the experiment, over how many workers, and what raw DDP can follow of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.cluster.preflight import Resources
    from paceline.config.experiment import ExperimentConfig

ON_CPU = Path(__file__).resolve().parents[2] / "configs" / "mnist_cnn.yaml"
ON_GPU: dict[str, Any] = {
    "name": "resnet50",
    "model": {"name": "resnet50"},
    "data": {
        "name": "synthetic",
        "shape": [3, 224, 224],
        "num_classes": 1000,
        "num_validation_samples": 16,
        "global_batch_size": 128,
        "cache": "device",
    },
    "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.9},
    "trainer": {"precision": "bf16-mixed", "memory_format": "channels_last"},
}
TRAINER_OF_RAW = {
    "epochs",
    "max_steps",
    "precision",
    "gradient_accumulation_steps",
    "activation_checkpointing_blocks",
    "activation_memory_budget",
    "memory_format",
    "compile_scope",
    "float32_matmul_precision",
    "cudnn_allow_tf32",
    "cudnn_benchmark",
    "deterministic",
    "log_every_n_steps",
    "evaluate_every_n_epochs",
}
"""What of the section `trainer` the textbook loop follows, or what changes nothing by itself."""


def choose_config(file: str | None, overrides: Sequence[str], workers: int, has_gpus: bool) -> "ExperimentConfig":
    """The experiment to train.

    Args:
        workers: the most that there will be: as many batches are needed.

    Raises:
        ConfigError: the file or an override is wrong.
    """
    from paceline.config import load_config
    from paceline.config.loading import validate
    from paceline.config.overrides import edit, parse_override

    if file or not has_gpus:
        return load_config(file or ON_CPU, overrides)
    samples = workers * ON_GPU["data"]["global_batch_size"]
    tree = {**ON_GPU, "data": {**ON_GPU["data"], "num_samples": samples}}
    return validate(edit(tree, dict(map(parse_override, overrides)))[0])


def numbers_of_workers(available: "Resources", cores_each: float) -> list[int]:
    """1, 2, 4, ... as far as there are GPUs, or else CPU cores."""
    most = int(available.gpus) or max(1, int(available.cpus / cores_each))
    return [2**power for power in range(most.bit_length())]


def raw_config(config: "ExperimentConfig", workers: int, use_gpu: bool, steps: int) -> "ExperimentConfig":
    """The config of the second part's arms.

    Raises:
        ConfigError: it asks for something that the textbook loop does not do.
    """
    from paceline.config.batch_sizes import batch_sizes
    from paceline.config.sections import ParallelConfig, TrainerConfig
    from paceline.errors import ConfigError, Problem

    changed = {
        "scaling.num_workers": workers,
        "scaling.use_gpu": use_gpu,
        "data.num_workers": 0,
        "data.drop_last": True,
        "trainer.epochs": None,
        "trainer.max_steps": steps,
        "trainer.evaluate_every_n_epochs": 0,
        "checkpoint.every_n_steps": None,
        "checkpoint.every_n_epochs": 10**6,
    }
    config = config.with_overrides(changed)
    plain, trainer = TrainerConfig().model_dump(), config.trainer.model_dump()
    lacking = [f"trainer.{key}" for key in plain if key not in TRAINER_OF_RAW and trainer[key] != plain[key]]
    if config.trainer.precision not in ("32-true", "bf16-mixed"):
        lacking.append("trainer.precision")
    if config.parallel.strategy != ParallelConfig().strategy or config.parallel.comm_hook != "none":
        lacking.append("parallel")
    if getattr(config.task, "name", "") != "classification":
        lacking.append("task")
    if config.optimizer.lr_scaling == "adascale":
        lacking.append("optimizer.lr_scaling")
    if getattr(batch_sizes(config), "gradient_accumulation_steps", 0) != 1:
        lacking.append("data.micro_batch_size")
    if lacking:
        reason, hint = "the textbook DDP loop does not do this", "set it to its default, or take --parts efficiency"
        raise ConfigError([Problem("raw", reason, key, hint=hint) for key in lacking])
    return config
