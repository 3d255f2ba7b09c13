"""Settings that are valid but have no effect beside the others, such as a prefetch without loader processes."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.config.hints import show
from paceline.config.imports import Called
from paceline.data._torchvision_sets import SMALL

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig


class Rule(NamedTuple):
    """Fields that one setting leaves without effect."""

    applies: "Callable[[ExperimentConfig], bool]"
    because: str
    keys: tuple[str, ...]


def ignored_settings(config: "ExperimentConfig") -> list[str]:
    """A sentence for each setting that was changed from its default and is ignored.

    What equals its default is passed over: a saved config writes every field out.
    """
    return [
        f"{key}: {show(value)} has no effect: {rule.because}"
        for rule in _RULES
        if rule.applies(config)
        for key, value in _changed(config, rule.keys)
    ]


def _changed(config: "ExperimentConfig", keys: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key in keys:
        section_name, _, name = key.partition(".")
        section = getattr(config, section_name)
        value, default = getattr(section, name), type(section).model_fields[name].get_default()
        # null and false both ask for nothing
        if (value or None) != (default or None):
            yield key, value


def _may_decay(config: "ExperimentConfig") -> bool:
    optimizer = config.optimizer
    # an imported optimizer may decay by default
    return bool(optimizer.weight_decay or any(group.weight_decay for group in optimizer.param_groups)) or isinstance(
        optimizer, Called
    )


LAYERWISE = ("lars", "lamb", "nvlamb")
"""Optimizers that give what does not decay no trust ratio either."""
DDP_ALONE = tuple(
    f"parallel.{name}"
    for name in ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")
)
"""Fields that only DDP reads."""
IN_MEMORY = ("mnist5k", "synthetic", "text_file")
"""Data sets that are held in memory anyway, beside torchvision's small ones."""

_RULES = (
    Rule(
        lambda config: config.model.initial_weights is None,
        "model.weights names no run and no file",
        ("model.weights_skip",),
    ),
    Rule(
        lambda config: config.data.num_workers == 0,
        "data.num_workers is 0",
        ("data.prefetch_factor", "data.persistent_workers"),
    ),
    Rule(
        lambda config: config.data.cache == "device" and config.data.num_workers > 0,
        "with data.cache device the loader processes end before training",
        ("data.prefetch_factor", "data.persistent_workers"),
    ),
    Rule(
        lambda config: config.data.cache == "device" and config.scaling.use_gpu is not False,
        "with data.cache device nothing is copied to the device during training",
        ("data.pin_memory",),
    ),
    Rule(
        lambda config: config.data.cache == "memory" and config.data.describe() in (*IN_MEMORY, *SMALL),
        "the data set is in memory already",
        ("data.cache",),
    ),
    Rule(
        lambda config: config.scaling.use_gpu is False,
        "scaling.use_gpu is false",
        ("data.pin_memory", "trainer.cudnn_benchmark", "trainer.cudnn_allow_tf32"),
    ),
    Rule(
        lambda config: config.data.micro_batch_size == "max",
        "it follows from data.micro_batch_size max",
        ("trainer.gradient_accumulation_steps",),
    ),
    Rule(
        lambda config: config.trainer.precision == "64-true",
        "with trainer.precision 64-true there are no float32 products",
        ("trainer.float32_matmul_precision",),
    ),
    Rule(
        lambda config: config.trainer.compile == "none",
        "trainer.compile is none",
        ("trainer.compile_scope",),
    ),
    Rule(
        lambda config: config.trainer.activation_checkpointing != "budget",
        "trainer.activation_checkpointing is not budget",
        ("trainer.activation_memory_budget",),
    ),
    Rule(
        lambda config: config.trainer.activation_checkpointing not in ("full", "selective"),
        "trainer.activation_checkpointing is neither full nor selective",
        ("trainer.activation_checkpointing_blocks",),
    ),
    Rule(
        lambda config: config.optimizer.lr_scaling == "none",
        "optimizer.lr_scaling is none",
        ("optimizer.base_batch_size",),
    ),
    Rule(
        lambda config: not _may_decay(config) and config.optimizer.describe() not in LAYERWISE,
        "optimizer.weight_decay is 0",
        ("optimizer.weight_decay_exclude",),
    ),
    Rule(
        lambda config: config.optimizer.describe() == "nvlamb",
        "nvlamb divides by the gradient's norm anyway",
        ("trainer.max_grad_norm",),
    ),
    Rule(
        lambda config: config.checkpoint.monitor is None,
        "checkpoint.monitor is null",
        ("checkpoint.mode",),
    ),
    Rule(
        lambda config: config.scaling.num_workers <= 1,
        "one process exchanges no gradients",
        (
            "parallel.comm_hook",
            "parallel.bucket_cap_mb",
            "parallel.gradient_as_bucket_view",
            "parallel.static_graph",
            "parallel.find_unused_parameters",
        ),
    ),
    Rule(
        lambda config: config.parallel.comm_hook != "powersgd",
        "parallel.comm_hook is not powersgd",
        ("parallel.powersgd_rank", "parallel.powersgd_start_step"),
    ),
    Rule(
        lambda config: config.parallel.strategy != "ddp",
        "parallel.strategy is not ddp",
        (
            "parallel.bucket_cap_mb",
            "parallel.gradient_as_bucket_view",
            "parallel.static_graph",
            "parallel.find_unused_parameters",
        ),
    ),
    Rule(
        lambda config: config.parallel.strategy != "fsdp",
        "parallel.strategy is not fsdp",
        ("parallel.shard_size", "parallel.gather_dtype"),
    ),
    Rule(
        lambda config: config.parallel.strategy != "pipeline",
        "parallel.strategy is not pipeline",
        ("parallel.pipeline_stages",),
    ),
    Rule(
        lambda config: config.scaling.num_workers == 0,
        "with scaling.num_workers 0 there are no workers",
        ("parallel.timeout_seconds", "scaling.placement", "scaling.max_failures"),
    ),
    Rule(
        lambda config: config.parallel.strategy == "data_parallel" and config.scaling.num_workers == 0,
        "with scaling.num_workers 0 data_parallel takes all GPUs of this process",
        ("scaling.gpus_per_worker",),
    ),
    Rule(
        lambda config: config.sweep is not None and config.sweep.scheduler == "none",
        "sweep.scheduler is none",
        ("sweep.budget_unit", "sweep.first_rung", "sweep.rung_factor"),
    ),
    Rule(
        lambda config: config.sweep is not None and config.sweep.scheduler in ("median", "pbt"),
        "only asha has rungs farther and farther apart",
        ("sweep.rung_factor",),
    ),
)
