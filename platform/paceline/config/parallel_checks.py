"""What `parallel.*` must agree on with the rest of the config."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from paceline.config.disagreement import Disagreement, contradiction

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig

STRATEGY, WORKERS = "parallel.strategy", "scaling.num_workers"


def _enough_workers(config: "ExperimentConfig") -> Iterator[Disagreement]:
    strategy, workers = config.parallel.strategy, config.scaling.num_workers
    if strategy in ("fsdp", "pipeline") and workers < 2:
        does = "cuts weights up over the workers" if strategy == "fsdp" else "gives each worker some of the layers"
        reason = f"{strategy} {does}, of which there {'is one' if workers else 'are none'}"
        yield contradiction(reason, f"write {WORKERS}: 2 or more, or strategy: ddp", STRATEGY, WORKERS)


def _shards(config: "ExperimentConfig") -> Iterator[Disagreement]:
    size, workers = config.parallel.shard_size, config.scaling.num_workers
    if config.parallel.strategy == "fsdp" and size is not None and workers >= 2 and workers % size:
        reason = f"{workers} workers cannot be split into groups of {size}"
        hint = f"write one of {_divisors(workers)}, or null"
        yield contradiction(reason, hint, "parallel.shard_size", WORKERS)


def _stages(config: "ExperimentConfig") -> Iterator[Disagreement]:
    stages, workers = config.parallel.pipeline_stages, config.scaling.num_workers
    if config.parallel.strategy == "pipeline" and stages is not None and workers >= 2 and workers % stages:
        reason = f"{workers} workers cannot be split into pipelines of {stages} stages"
        hint = f"write one of {_divisors(workers)}, or null"
        yield contradiction(reason, hint, "parallel.pipeline_stages", WORKERS)


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(2, number + 1) if number % divisor == 0)


def _whole_model(config: "ExperimentConfig") -> Iterator[Disagreement]:
    """What needs the whole model on each worker."""
    if config.parallel.strategy != "pipeline":
        return
    if config.trainer.precision == "16-mixed":
        reason = "with pipeline the stages would have to agree on an overflow, which torch's loss scaler cannot"
        yield contradiction(reason, "write precision: bf16-mixed, or strategy: ddp", "trainer.precision", STRATEGY)
    if config.trainer.compile != "none":
        reason = "pipeline calls the parts of the model one by one, so there is no model to compile"
        yield contradiction(reason, "write compile: none, or strategy: ddp", "trainer.compile", STRATEGY)
    if config.optimizer.describe() == "nvlamb":
        reason = "nvlamb needs the norm of the whole model's gradient, while pipeline has a part of it on each worker"
        yield contradiction(reason, "write name: lamb, or strategy: ddp", "optimizer.name", STRATEGY)


def _fused(config: "ExperimentConfig") -> Iterator[Disagreement]:
    optimizer = config.optimizer
    if config.parallel.strategy == "fsdp" and getattr(optimizer, "fused", None) is True and not optimizer.fuses_slices:
        reason = f"torch's fused kernel of {optimizer.describe()} does not take weights that fsdp has cut up"
        yield contradiction(reason, "write fused: auto, or strategy: ddp", "optimizer.fused", STRATEGY)


def _small_buckets(config: "ExperimentConfig") -> Iterator[Disagreement]:
    size = config.parallel.bucket_cap_mb
    if config.parallel.strategy == "ddp" and config.trainer.compile != "none" and size is not None and size < 1:
        reason = f"the compiler cuts the model at DDP's buckets, the first of which has 1 MiB, not {size:g}"
        hint = "write 1 or more, or compile: none"
        yield contradiction(reason, hint, "parallel.bucket_cap_mb", "trainer.compile")


PARALLEL_CHECKS: tuple[Callable[["ExperimentConfig"], Iterator[Disagreement]], ...] = (
    _enough_workers,
    _shards,
    _stages,
    _whole_model,
    _fused,
    _small_buckets,
)
