"""Settings that are valid but have no effect beside the others, such as a prefetch without loader processes.

Most are declared beside the fields, see `effects`. The rules here look at several fields, or at the component chosen.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from paceline.config.base import Section
from paceline.config.components import COMPONENT_SECTIONS
from paceline.config.effects import NotWith, OnlyWith
from paceline.config.experiment_schema import ExperimentSchema
from paceline.config.hints import show
from paceline.config.lightning import BECAUSE, uses_own_optimizer


class Rule(NamedTuple):
    """Fields that several settings together leave without effect."""

    applies: Callable[[ExperimentSchema], bool]
    because: str
    keys: tuple[str, ...]


def ignored_settings(config: ExperimentSchema) -> list[str]:
    """A sentence for each setting that was changed from its default and is ignored.

    What equals its default is passed over: a saved config writes every field out.
    """
    ignored = [*_declared(config), *_by_component(config), *_by_rule(config)]
    fields = [
        f"{key}: {show(value_of(config, key))} has no effect: {because}"
        for key, because in ignored
        if _is_changed(config, key)
    ]
    return [*_unused_optimizer(config), *_unused_callbacks(config), *fields]


def _unused_optimizer(config: ExperimentSchema) -> list[str]:
    default = ExperimentSchema.model_fields["optimizer"].get_default(call_default_factory=True)
    if not uses_own_optimizer(config) or config.optimizer == default:
        return []
    return [f"optimizer: the section has no effect: {BECAUSE}"]


def _unused_callbacks(config: ExperimentSchema) -> list[str]:
    trainer = config.trainer
    if trainer.evaluate_every_n_epochs > 0 or trainer.evaluate_every_n_steps is not None:
        return []
    because = "with trainer.evaluate_every_n_epochs 0 the only evaluation is that at the end"
    unused = [(index, each.describe()) for index, each in enumerate(config.callbacks) if each.metric_fields]
    return [f"callbacks.{index}: {name} has no effect: {because}" for index, name in unused]


def value_of(config: ExperimentSchema, key: str) -> Any:
    """The value of a field by its dotted key; None where its section is."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name, None)


def _declared(config: ExperimentSchema) -> Iterator[tuple[str, str]]:
    """Fields that another one leaves without effect, and why."""
    for name in type(config).model_fields:
        section = getattr(config, name)
        if not isinstance(section, Section):
            continue
        for field, info in type(section).model_fields.items():
            declared = (each for each in info.metadata if isinstance(each, OnlyWith | NotWith))
            if because := next(filter(None, (each.reason(value_of(config, each.key)) for each in declared)), ""):
                yield f"{name}.{field}", because


def _by_component(config: ExperimentSchema) -> Iterator[tuple[str, str]]:
    for section in COMPONENT_SECTIONS:
        yield from getattr(config, section).no_effect.items()


def _by_rule(config: ExperimentSchema) -> Iterator[tuple[str, str]]:
    return ((key, rule.because) for rule in _RULES if rule.applies(config) for key in rule.keys)


def _is_changed(config: ExperimentSchema, key: str) -> bool:
    section, _, name = key.partition(".")
    default = type(getattr(config, section)).model_fields[name].get_default()
    # null and false both ask for nothing
    return (value_of(config, key) or None) != (default or None)


def _decays(config: ExperimentSchema) -> bool:
    """True if `weight_decay_exclude` can make a difference."""
    optimizer = config.optimizer
    return bool(optimizer.excluded_options() or any(group.weight_decay for group in optimizer.param_groups))


_RULES = (
    Rule(
        lambda config: config.model.initial_weights is None,
        "model.weights names no run and no file",
        ("model.weights_skip",),
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
        lambda config: config.data.cache == "memory" and config.data.is_in_memory,
        "the data set is in memory already",
        ("data.cache",),
    ),
    Rule(
        lambda config: not _decays(config),
        "optimizer.weight_decay is 0",
        ("optimizer.weight_decay_exclude",),
    ),
    Rule(
        lambda config: config.parallel.strategy == "data_parallel" and config.scaling.num_workers == 0,
        "with scaling.num_workers 0 data_parallel takes all GPUs of this process",
        ("scaling.gpus_per_worker",),
    ),
)
