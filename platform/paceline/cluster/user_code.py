"""User code on its way to a cluster whose nodes do not have it.

A submitted job brings its folder along by itself; a driver that stays at home (`--address`) sends the folder of each
module that the config names. Ray leaves out what `.gitignore` and `.rayignore` name.
"""

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import called_components

STAYS_AT_HOME = ["/runs", "*.db", ".env", ".venv", ".git"]
"""What no worker needs, in the words of `.gitignore`."""


def runtime_env(modules: Sequence[Path]) -> dict[str, Any]:
    """Ray's runtime environment for the workers: this package, and the user's modules.

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
    """The folder of this package; it travels to nodes that do not have it installed."""
    return Path(__file__).resolve().parents[1]


def modules_by_key(config: ExperimentConfig) -> Iterator[tuple[str, Path]]:
    """File or package folder of each top-level module that a config names, with the key that names it, such as
    `task.path`. Installed ones are left out."""
    for key, component in called_components(config):
        if (place := module_of(component.import_path)) is not None:
            yield f"{key}.path", place


def module_of(import_path: str) -> Path | None:
    """File or package folder of the top-level module of an import path; None for an installed one."""
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
