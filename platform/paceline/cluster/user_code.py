"""User code: Python objects in place of components of a config, and the modules that travel to a cluster.

A submitted job brings its folder along by itself; a driver outside the cluster (`--address`) sends the folder of each
module that the config names. Ray leaves out the files that `.gitignore` and `.rayignore` name.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from paceline.config.components import COMPONENT_LISTS, ROOMS
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Imported, called_components, is_path, objects_in
from paceline.config.overrides import SELECTORS, ConfigWarning
from paceline.config.own_techniques import own_techniques
from paceline.errors import ConfigError, Problem

STAYS_AT_HOME = ["/runs", "*.db", ".env", ".venv", ".git"]
"""Files that no worker needs, as patterns in the syntax of `.gitignore`."""


def runtime_env(modules: Sequence[Path]) -> dict[str, Any]:
    """Return Ray's runtime environment for the workers: this package, and the user's modules.

    The folder of the first module becomes the working folder of the workers; Ray allows one. From any other folder the
    module or package alone is sent.
    """
    environment: dict[str, Any] = {"py_modules": [str(package_folder())]}
    if modules:
        home = modules[0].parent
        environment["working_dir"] = str(home)
        environment["excludes"] = STAYS_AT_HOME
        environment["py_modules"] += [str(module) for module in modules if module.parent != home]
    return environment


def package_folder() -> Path:
    """Return the folder of this package; it is sent to nodes that do not have it installed."""
    return Path(__file__).resolve().parents[1]


def modules_by_key(config: ExperimentConfig) -> Iterator[tuple[str, Path]]:
    """Yield the file or package folder of each top-level module that a config names, with the key that names it, such
    as `task.path`. Installed ones are left out."""
    for key, component in called_components(config):
        if (place := module_of(component.import_path)) is not None:
            yield f"{key}.path", place


def module_of(import_path: str) -> Path | None:
    """Return the file or package folder of the top-level module of an import path; None for an installed one."""
    place = _place(import_path.partition(":")[0].partition(".")[0])
    return None if place is None or _is_installed(place) else place


def _place(module: str) -> Path | None:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # __main__ has no spec: its functions are pickled whole
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None


def _is_installed(place: Path) -> bool:
    return any(place.is_relative_to(Path(prefix).resolve()) for prefix in {sys.prefix, sys.base_prefix})


Kind = Literal["train", "sweep", "scale", "tuneup"]
"""The command that a job runs."""


def modules_of_job(config: ExperimentConfig, kind: Kind) -> Iterator[tuple[str, Path]]:
    """Yield keys and modules of the config, of the axes of a sweep, and of the custom techniques of a tune-up."""
    own = list(modules_by_key(config))
    yield from own
    if kind == "tuneup":
        for key, changed in own_techniques(config):
            yield from ((key, place) for used_at, place in modules_by_key(changed) if (used_at, place) not in own)
    if kind == "sweep" and config.sweep is not None:
        for axis, values in config.sweep.lists.items():
            if _chooses_code(axis):
                yield from dict.fromkeys((axis, place) for value in values for place in _of_value(config, axis, value))


def sent_modules(config: ExperimentConfig, kind: Kind) -> list[Path]:
    """Return each module once, those of the config itself first."""
    return list(dict.fromkeys(place for _, place in modules_of_job(config, kind)))


def _chooses_code(axis: str) -> bool:
    """Return True if a value of an axis may be a component, or the name or import path of one."""
    section, *below = axis.split(".")
    below = below[1:] if section in COMPONENT_LISTS else below
    return section in ROOMS and (not below or below[-1] in SELECTORS)


def _of_value(config: ExperimentConfig, axis: str, value: Any) -> Iterator[Path]:
    """Yield the modules of a value: those of the import paths in it, and of the component that its name stands for."""
    yield from filter(None, map(module_of, _import_paths(axis, value)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            changed = config.model_copy(update={"sweep": None}).with_overrides({axis: value})
    except ConfigError:
        return  # reported by the check of the trials; beside other axes it may be right
    component = axis.rpartition(".")[0] if axis.rpartition(".")[2] in SELECTORS else axis
    for key, place in modules_by_key(changed):
        if key.startswith(f"{component}."):
            yield place


def _import_paths(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _import_paths(str(name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _import_paths(key, inner)
    elif key.rpartition(".")[2] == "path" and is_path(value):
        yield value


def with_objects(config: ExperimentConfig, *, model: Any, data: Any, task: Any) -> ExperimentConfig:
    """Return the config with Python objects in place of components. A callable gets the `args` that the config has for
    it.

    Raises:
        ConfigError: the config is a mapping or the path of a file; or an object is a model, task or data set itself,
            not a callable that builds it.
    """
    if not isinstance(config, ExperimentConfig):
        reason = f"the config is a {type(config).__name__}, which was not loaded"
        raise ConfigError([Problem("not-a-config", reason, "config", hint="pass load_config(...) of it")])
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
    """Return the config with further Python objects, see `train`."""
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
    """Return True for an instance of `torch.nn.Module`. Does not import torch."""
    bases = type(value).__mro__
    return any((each.__module__, each.__name__) == ("torch.nn.modules.module", "Module") for each in bases)


def _args(component: Any) -> dict[str, Any]:
    return dict(component.args) if isinstance(component, Imported) else {}


def _returning(value: Any) -> Callable[[], Any]:
    def data() -> Any:
        return value

    return data


def python_objects(config: ExperimentConfig) -> dict[str, Any]:
    """Return the Python objects that are sent beside the config's JSON."""
    return objects_in(config.model_dump())
