"""Python objects in a config in place of the components that it names."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Imported, objects_in
from paceline.errors import ConfigError, Problem


def with_objects(config: ExperimentConfig, *, model: Any, data: Any, task: Any) -> ExperimentConfig:
    """The config with Python objects in place of components. A callable gets the `args` that the config has for it.

    Raises:
        ConfigError: an object is a model, task or data set itself, not what builds it.
    """
    if problems := [*_instances(model=model, task=task), *_lone_sets(data)]:
        raise ConfigError(problems)
    overrides: dict[str, Any] = {}
    if model is not None:
        kept = {"weights": config.model.initial_weights, "weights_skip": config.model.weights_skip}
        overrides["model"] = {"path": model, "args": _args(config.model), **kept}
    if task is not None:
        overrides["task"] = {"path": task, "args": _args(config.task)}
    if data is not None:
        fixed = data if isinstance(data, Mapping) else tuple(data) if not callable(data) else None
        overrides["data.path"] = data if fixed is None else _returning(fixed)
        overrides["data.args"] = _args(config.data) if callable(data) else {}
    return config.with_overrides(overrides) if overrides else config


def with_parts(
    config: ExperimentConfig,
    optimizer: Any = None,
    lr_scheduler: Any = None,
    metrics: Mapping[str, Any] | None = None,
    callbacks: Sequence[Any] = (),
) -> ExperimentConfig:
    """The config with further Python objects: see `train`."""
    overrides: dict[str, Any] = {}
    if optimizer is not None:
        overrides |= {"optimizer.path": optimizer, "optimizer.args": _args(config.optimizer)}
    if lr_scheduler is not None:
        overrides |= {"lr_scheduler.path": lr_scheduler, "lr_scheduler.args": _args(config.lr_scheduler)}
    if metrics:
        overrides["metrics"] = [*config.metrics, *({"name": name, "path": each} for name, each in metrics.items())]
    if callbacks:
        overrides["callbacks"] = [*config.callbacks, *({"path": each} for each in callbacks)]
    return config.with_overrides(overrides) if overrides else config


def _instances(**given: Any) -> Iterator[Problem]:
    for key, value in given.items():
        if value is not None and (_is_module(value) or not (callable(value) or isinstance(value, str))):
            yield Problem(
                "not-a-builder",
                f"must be a class, or a function that returns the {key}; this is an instance of {type(value).__name__}",
                key,
                hint=f"pass the class itself ({key}={type(value).__name__}) or a function: each worker builds its own",
            )


def _lone_sets(data: Any) -> Iterator[Problem]:
    is_pair = isinstance(data, tuple | list) and len(data) == 2
    if not (data is None or callable(data) or isinstance(data, Mapping) or is_pair):
        yield Problem(
            "not-two-sets",
            f"must be (train, validation), or a function that returns them; this is a {type(data).__name__}",
            "data",
            hint="split it with torch.utils.data.random_split, or pass (dataset, []) to train without validation",
        )


def _is_module(value: Any) -> bool:
    """True for an instance of `torch.nn.Module`. Does not import torch."""
    bases = type(value).__mro__
    return any((each.__module__, each.__name__) == ("torch.nn.modules.module", "Module") for each in bases)


def _args(component: Any) -> dict[str, Any]:
    return dict(component.args) if isinstance(component, Imported) else {}


def _returning(value: Any) -> Callable[[], Any]:
    def data() -> Any:
        return value

    return data


def python_objects(config: ExperimentConfig) -> dict[str, Any]:
    """The Python objects that travel beside the config's JSON."""
    return objects_in(config.model_dump())
