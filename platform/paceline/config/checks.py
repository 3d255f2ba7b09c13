"""Checks across sections of the config. All contradictions are found, not only the first."""

from collections.abc import Callable, Iterator
from typing import Any

from pydantic_core import PydanticCustomError

from paceline.config.base import Component
from paceline.config.batch_size_checks import SCHEDULE_CHECKS
from paceline.config.batch_size_schedule import SCHEDULE
from paceline.config.batch_sizes import ACCUMULATION, GLOBAL, MICRO, WORKERS, accumulation, largest_sizes
from paceline.config.disagreement import Disagreement
from paceline.config.disagreement import contradiction as _contradiction
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.monitor_checks import check_monitors
from paceline.config.parallel_checks import PARALLEL_CHECKS
from paceline.config.sweep_checks import SWEEP_CHECKS
from paceline.config.tuneup_checks import TUNEUP_CHECKS
from paceline.errors import ConfigError, Problem

ERROR_TYPE = "disagreement"
"""Type of the pydantic error that carries the disagreements in its context, under `found`."""


def check_agreement(config: ExperimentSchema) -> None:
    """Check all fields of a config against each other; called by its validator.

    Raises:
        PydanticCustomError: some disagree; `ctx["found"]` is the list of `Disagreement`.
    """
    found = [disagreement for check in _CHECKS for disagreement in check(config)]
    if found:
        reasons = "; ".join(f"{problem.key}: {problem.reason}" for problem, _ in found)
        raise PydanticCustomError(ERROR_TYPE, "{reasons}", {"reasons": reasons, "found": found})


def _batch(config: ExperimentSchema) -> Iterator[Disagreement]:
    try:
        largest_sizes(config)
    except ConfigError as error:
        keys = (GLOBAL, MICRO, ACCUMULATION, WORKERS, SCHEDULE)
        yield from (Disagreement(problem, keys) for problem in error.problems)


def _half_precision(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.trainer.precision == "16-mixed" and config.scaling.use_gpu is False:
        problem = Problem("fp16-on-cpu", "fp16 needs CUDA", "trainer.precision", hint="use bf16-mixed")
        yield Disagreement(problem, ("trainer.precision", "scaling.use_gpu"))


def _cudnn(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.trainer.cudnn_benchmark and config.trainer.deterministic:
        reason = "picks algorithms by their speed, which differs from run to run, while trainer.deterministic is true"
        yield _contradiction(reason, "set one of the two to false", "trainer.cudnn_benchmark", "trainer.deterministic")


def _compile(config: ExperimentSchema) -> Iterator[Disagreement]:
    trainer = config.trainer
    if trainer.activation_checkpointing == "budget" and trainer.compile == "none":
        reason = "is the compiler's choice of what to keep, while trainer.compile is none"
        hint = "write compile: default, or activation_checkpointing: selective"
        yield _contradiction(reason, hint, "trainer.activation_checkpointing", "trainer.compile")
    if trainer.compile == "max-autotune" and trainer.deterministic:
        reason = "picks kernels by their speed, which differs from run to run, while trainer.deterministic is true"
        hint = "write compile: default, or deterministic: false"
        yield _contradiction(reason, hint, "trainer.compile", "trainer.deterministic")


def _warmup(config: ExperimentSchema) -> Iterator[Disagreement]:
    names = ("warmup_epochs", "warmup_steps", "warmup_samples")
    given = [f"lr_scheduler.{name}" for name in names if getattr(config.lr_scheduler, name) is not None]
    if len(given) > 1:
        yield _contradiction(
            f"the warmup's length is given {len(given)} times", f"keep one of {', '.join(given)}", *given
        )


def _within_components(config: ExperimentSchema) -> Iterator[Disagreement]:
    for key, component in _components(config):
        for reason, hint, fields in component.contradictions():
            yield _contradiction(reason, hint, *(f"{key}.{field}" for field in fields))


def _components(config: ExperimentSchema) -> Iterator[tuple[str, Component]]:
    """Yield every component with its dotted key, such as `model` and `callbacks.0`."""
    for key in type(config).model_fields:
        section = getattr(config, key)
        if isinstance(section, Component):
            yield key, section
        elif isinstance(section, list):
            yield from ((f"{key}.{index}", part) for index, part in enumerate(section) if isinstance(part, Component))


def _adascale(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.optimizer.lr_scaling != "adascale":
        return
    key = "optimizer.lr_scaling"
    if config.optimizer.update_family != "sgd":
        reason = f"adascale's gain is derived for sgd alone, not for {config.optimizer.describe()}"
        yield _contradiction(reason, "write lr_scaling: sqrt or linear, or name: sgd", key, "optimizer.name")
    if config.trainer.noise_scale:
        reason = "adascale and noise_scale both set the gradients of a step's parts aside"
        yield _contradiction(reason, "write noise_scale: false, or another lr_scaling", "trainer.noise_scale", key)
    yield from _needs_parts(config, "adascale", key, "write lr_scaling: linear")


def _noise_scale(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.trainer.noise_scale:
        yield from _needs_parts(config, "noise_scale", "trainer.noise_scale", "write noise_scale: false")


def _needs_parts(config: ExperimentSchema, name: str, key: str, hint: str) -> Iterator[Disagreement]:
    """Check that a step has several gradients to compare, of workers or of micro batches."""
    if config.parallel.strategy != "ddp":
        reason = f"{name} needs the whole gradients of each worker, which {config.parallel.strategy} does not make"
        yield _contradiction(reason, f"{hint}, or strategy: ddp", key, "parallel.strategy")
    elif (config.scaling.num_workers <= 1 and accumulation(config) == 1) or (
        config.scaling.fewest_workers <= 1 and config.data.micro_batch_size == "max"
    ):
        reason = f"{name} compares the gradients of a step, and one worker without accumulation has only one"
        fix = f"{hint}, accumulate, or take more workers"
        if config.data.micro_batch_size == "max":
            reason = f"{name} compares the gradients of a step, and with {MICRO}: max one worker may have only one"
            fix = f"{hint}, write a number for {MICRO}, or take more workers"
        yield _contradiction(reason, fix, key, WORKERS, ACCUMULATION, MICRO, GLOBAL)
    if config.parallel.comm_hook == "powersgd":
        reason = f"{name} needs the norm of the mean gradient, which powersgd exchanges only a part of"
        yield _contradiction(reason, f"{hint}, or comm_hook: bf16", key, "parallel.comm_hook")


def _context(config: ExperimentSchema) -> Iterator[Disagreement]:
    has, takes = (getattr(part, "context_length", None) for part in (config.data, config.model))
    if has is not None and takes is not None and has > takes:
        reason = f"samples of {has} tokens are longer than the model's context of {takes}"
        hint = "make the model's context_length at least the data's"
        yield _contradiction(reason, hint, "data.context_length", "model.context_length")


def _gpus(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.scaling.use_gpu is False and config.scaling.gpus_per_worker != "auto":
        reason = f"asks for {config.scaling.gpus_per_worker:g} GPUs a worker, while scaling.use_gpu is false"
        hint = "write gpus_per_worker: auto, or use_gpu: true"
        yield _contradiction(reason, hint, "scaling.gpus_per_worker", "scaling.use_gpu")


def _cache(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.data.cache == "none":
        return
    augmentation: Any = getattr(config.data, "augmentation", None)
    # The first is only in that of photographs, which is made sample by sample. The other kind is made batch by batch.
    names = ("random_resized_crop", "horizontal_flip") if hasattr(augmentation, "random_resized_crop") else ()
    on = [name for name in names if getattr(augmentation, name)]
    if on:
        reason = f"keeps each image as it was loaded first, while {' and '.join(on)} should change it in each epoch"
        hint = f"write cache: none, or augmentation: {{{', '.join(f'{name}: false' for name in on)}}}"
        yield _contradiction(reason, hint, "data.cache", *(f"data.augmentation.{name}" for name in on))


def _metrics(config: ExperimentSchema) -> Iterator[Disagreement]:
    names = [metric.name for metric in config.metrics]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield _contradiction(f"{', '.join(twice)} is the name of two metrics", "rename one", "metrics")
    of_task = getattr(config.task, "evaluation_metrics", ())
    for index, metric in enumerate(config.metrics):
        if not metric.is_shipped and metric.name in of_task:
            reason = f"the task {config.task.describe()} reports a metric of this name itself"
            yield _contradiction(reason, "choose another name", f"metrics.{index}.name", "task.name")


def _checkpoint(config: ExperimentSchema) -> Iterator[Disagreement]:
    if config.checkpoint.every_n_steps is not None and config.checkpoint.every_n_epochs is not None:
        hint = "keep every_n_steps or every_n_epochs"
        reason = "the interval between checkpoints is given twice"
        yield _contradiction(reason, hint, "checkpoint.every_n_epochs", "checkpoint.every_n_steps")


_CHECKS: tuple[Callable[[ExperimentSchema], Iterator[Disagreement]], ...] = (
    _batch,
    _half_precision,
    _cudnn,
    _compile,
    _warmup,
    _within_components,
    _adascale,
    _noise_scale,
    _context,
    _gpus,
    _cache,
    _metrics,
    _checkpoint,
    check_monitors,
    *SCHEDULE_CHECKS,
    *PARALLEL_CHECKS,
    *SWEEP_CHECKS,
    *TUNEUP_CHECKS,
)
