"""Checks that `parallel.*` is consistent with the rest of the config."""

from collections.abc import Callable, Iterator

from paceline.config.batch_sizes import ACCUMULATION, GLOBAL, MICRO, WORKERS, accumulation
from paceline.config.disagreement import Disagreement, contradiction
from paceline.config.experiment_schema import ExperimentSchema

STRATEGY = "parallel.strategy"
MIN_WORKERS = "scaling.min_workers"


def _largest_micro_batch(config: ExperimentSchema) -> Iterator[Disagreement]:
    strategy = config.parallel.strategy
    if config.data.micro_batch_size == "max" and strategy != "ddp":
        reason = f"is found by trial steps of each worker alone, with the whole model, which {strategy} is not about"
        yield contradiction(reason, "write a number, or strategy: ddp", MICRO, STRATEGY)


def _comm_hook(config: ExperimentSchema) -> Iterator[Disagreement]:
    hook, strategy = config.parallel.comm_hook, config.parallel.strategy
    if hook != "none" and strategy != "ddp":
        reason = f"{hook} compresses what DDP exchanges, which parallel.strategy {strategy} does not use"
        hint = "write comm_hook: none, or strategy: ddp"
        yield contradiction(reason, hint, "parallel.comm_hook", STRATEGY)
    if hook == "powersgd" and config.trainer.precision == "16-mixed":
        reason = "powersgd carries over what it left out of a step, which makes no sense when the loss scale changes"
        hint = "write comm_hook: fp16, or precision: bf16-mixed"
        yield contradiction(reason, hint, "parallel.comm_hook", "trainer.precision")


def _static_graph(config: ExperimentSchema) -> Iterator[Disagreement]:
    parallel, micro_batches = config.parallel, accumulation(config)
    if not parallel.static_graph or parallel.strategy != "ddp" or config.scaling.num_workers <= 1:
        return
    if (micro_batches or 1) > 1 or config.data.micro_batch_size == "max":
        reason = "DDP exchanges the pass in which it learns the graph, the first one; accumulation only a step's last"
        hint = "write static_graph: false, or take one micro batch a step"
        yield contradiction(reason, hint, "parallel.static_graph", ACCUMULATION, MICRO, GLOBAL)


def _gpus_per_worker(config: ExperimentSchema) -> Iterator[Disagreement]:
    gpus, workers = config.scaling.gpus_per_worker, config.scaling.num_workers
    if gpus != "auto" and gpus < 1 and workers > 1:
        reason = f"{workers} workers with {gpus:g} GPUs each would share a GPU, which NCCL cannot communicate over"
        hint = "write gpus_per_worker: 1, or num_workers: 1"
        yield contradiction(reason, hint, "scaling.gpus_per_worker", WORKERS)
    if config.parallel.strategy != "data_parallel" and gpus != "auto" and gpus > 1:
        reason = f"with parallel.strategy {config.parallel.strategy} a worker uses one GPU, not {gpus:g}"
        hint = "write gpus_per_worker: 1 and raise num_workers, or write strategy: data_parallel"
        yield contradiction(reason, hint, "scaling.gpus_per_worker", STRATEGY)


def _data_parallel(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.parallel.strategy != "data_parallel":
        return
    gpus, workers = config.scaling.gpus_per_worker, config.scaling.num_workers
    if config.scaling.use_gpu is False:
        reason = "data_parallel needs at least 2 GPUs, while scaling.use_gpu is false"
        hint = "write strategy: ddp, which also trains on CPU"
        yield contradiction(reason, hint, STRATEGY, "scaling.use_gpu")
    if workers > 1:
        reason = f"with parallel.strategy data_parallel one process has all the GPUs, not {workers} workers"
        hint = "write num_workers: 1, or strategy: ddp"
        yield contradiction(reason, hint, WORKERS, STRATEGY)
    elif workers == 1 and (gpus == "auto" or gpus < 2 or gpus % 1):
        reason = f"the worker of parallel.strategy data_parallel needs a whole number of at least 2 GPUs, not {gpus}"
        hint = "write gpus_per_worker: 2 or more, or num_workers: 0 for all GPUs of this machine"
        keys = ["scaling.gpus_per_worker", STRATEGY, WORKERS]
        if gpus == "auto":  # the default, which is not in the user's config
            keys = [keys[1], keys[0], keys[2]]
        yield contradiction(reason, hint, *keys)
    for name in ("activation_checkpointing", "compile"):
        if (value := getattr(config.trainer, name)) != "none":
            reason = f"{value} does not go with parallel.strategy data_parallel, which copies the model at each step"
            hint = f"write {name}: none, or strategy: ddp"
            yield contradiction(reason, hint, f"trainer.{name}", STRATEGY)


def _enough_workers(config: ExperimentSchema) -> Iterator[Disagreement]:
    strategy, workers = config.parallel.strategy, config.scaling.num_workers
    if strategy in ("fsdp", "pipeline") and workers < 2:
        does = "cuts weights up over the workers" if strategy == "fsdp" else "gives each worker some of the layers"
        reason = f"{strategy} {does}, of which there {'is one' if workers else 'are none'}"
        yield contradiction(reason, f"write {WORKERS}: 2 or more, or strategy: ddp", STRATEGY, WORKERS)


def _shards(config: ExperimentSchema) -> Iterator[Disagreement]:
    size, workers = config.parallel.shard_size, config.scaling.num_workers
    if config.parallel.strategy == "fsdp" and size is not None and workers >= 2 and workers % size:
        reason = f"{workers} workers cannot be split into groups of {size}"
        hint = f"write one of {_divisors(workers)}, or null"
        yield contradiction(reason, hint, "parallel.shard_size", WORKERS)


def _gather_dtype(config: ExperimentSchema) -> Iterator[Disagreement]:
    is_mixed = config.trainer.precision in ("bf16-mixed", "16-mixed")
    if config.parallel.strategy == "fsdp" and config.parallel.gather_dtype == "mixed" and not is_mixed:
        reason = f"trainer.precision {config.trainer.precision} is not mixed, so there is no other format to gather in"
        hint = "write precision: bf16-mixed, or gather_dtype: full"
        yield contradiction(reason, hint, "parallel.gather_dtype", "trainer.precision")


def _stages(config: ExperimentSchema) -> Iterator[Disagreement]:
    stages, workers = config.parallel.pipeline_stages, config.scaling.num_workers
    if config.parallel.strategy == "pipeline" and stages is not None and workers >= 2 and workers % stages:
        reason = f"{workers} workers cannot be split into pipelines of {stages} stages"
        hint = f"write one of {_divisors(workers)}, or null"
        yield contradiction(reason, hint, "parallel.pipeline_stages", WORKERS)


def _divisors(number: int) -> str:
    return ", ".join(str(divisor) for divisor in range(2, number + 1) if number % divisor == 0)


def _whole_model(config: ExperimentSchema) -> Iterator[Disagreement]:
    """Yield settings that need the whole model on each worker, which `strategy: pipeline` does not have."""
    if config.parallel.strategy != "pipeline":
        return
    if config.trainer.precision == "16-mixed":
        reason = "with pipeline the stages would have to agree on an overflow, which torch's loss scaler cannot"
        yield contradiction(reason, "write precision: bf16-mixed, or strategy: ddp", "trainer.precision", STRATEGY)
    if config.trainer.compile != "none":
        reason = "pipeline calls the parts of the model one by one, so there is no model to compile"
        yield contradiction(reason, "write compile: none, or strategy: ddp", "trainer.compile", STRATEGY)
    if config.optimizer.needs_whole_gradient:
        name = config.optimizer.describe()
        reason = f"{name} needs the norm of the whole model's gradient, while pipeline has a part of it on each worker"
        yield contradiction(reason, "write name: lamb, or strategy: ddp", "optimizer.name", STRATEGY)
    for field in ("mixup_alpha", "cutmix_alpha"):
        if getattr(config.task, field, 0):
            reason = "blends inputs on the first stage and targets on the last one, which draw other random numbers"
            yield contradiction(reason, f"write {field}: 0, or strategy: ddp", f"task.{field}", STRATEGY)


def _fused(config: ExperimentSchema) -> Iterator[Disagreement]:
    optimizer = config.optimizer
    if config.parallel.strategy == "fsdp" and getattr(optimizer, "fused", None) is True and not optimizer.fuses_slices:
        reason = f"torch's fused kernel of {optimizer.describe()} does not take weights that fsdp has cut up"
        yield contradiction(reason, "write fused: auto, or strategy: ddp", "optimizer.fused", STRATEGY)


def _small_buckets(config: ExperimentSchema) -> Iterator[Disagreement]:
    size = config.parallel.bucket_cap_mb
    if config.parallel.strategy == "ddp" and config.trainer.compile != "none" and size is not None and size < 1:
        reason = f"the compiler cuts the model at DDP's buckets, the first of which has 1 MiB, not {size:g}"
        hint = "write 1 or more, or compile: none"
        yield contradiction(reason, hint, "parallel.bucket_cap_mb", "trainer.compile")


def _elastic(config: ExperimentSchema) -> Iterator[Disagreement]:
    """Yield settings of an elastic run that do not allow the number of workers to change, and an invalid range."""
    fewest, most, parallel = config.scaling.min_workers, config.scaling.num_workers, config.parallel
    if fewest is None:
        return
    if fewest > most:
        reason = f"the fewest workers are {fewest}, and the most are {most}"
        yield contradiction(reason, f"write num_workers: [{max(most, 1)}, {fewest}]", MIN_WORKERS, WORKERS)
    elif config.scaling.is_elastic:
        yield from _fixed_strategy(config, fewest)
        if parallel.static_graph and parallel.strategy == "ddp":
            reason = "fewer workers accumulate, which DDP's static graph does not go with"
            yield contradiction(reason, "write static_graph: false", "parallel.static_graph", MIN_WORKERS)


def _fixed_strategy(config: ExperimentSchema, fewest: int) -> Iterator[Disagreement]:
    parallel = config.parallel
    if parallel.strategy in ("pipeline", "data_parallel"):
        reason = f"{parallel.strategy} needs the same number of workers throughout"
        yield contradiction(reason, "write min_workers: null, or strategy: ddp", MIN_WORKERS, STRATEGY)
    if parallel.strategy == "fsdp" and fewest < 2:
        reason = "fsdp cuts weights up over the workers, of which there may be 1"
        yield contradiction(reason, "write min_workers: 2, or strategy: ddp", MIN_WORKERS, STRATEGY)
    if parallel.strategy == "fsdp" and parallel.shard_size is not None:
        reason = f"groups of {parallel.shard_size} workers need a number of workers that does not change"
        yield contradiction(reason, "write shard_size: null", "parallel.shard_size", MIN_WORKERS)


PARALLEL_CHECKS: tuple[Callable[[ExperimentSchema], Iterator[Disagreement]], ...] = (
    _largest_micro_batch,
    _comm_hook,
    _static_graph,
    _gpus_per_worker,
    _data_parallel,
    _enough_workers,
    _shards,
    _gather_dtype,
    _stages,
    _whole_model,
    _fused,
    _small_buckets,
    _elastic,
)
