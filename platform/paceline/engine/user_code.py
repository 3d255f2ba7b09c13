"""Identity of the user code that a run was trained with, so that a resumed run reports when it has changed."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import has_import_paths, objects_in
from paceline.config.own_files import imported_files, is_own

KEY = "code"
"""Key of the digests in `state.json`."""
DIGITS = 16
_seen: WeakKeyDictionary[ModuleType, str] = WeakKeyDictionary()
_SITE, _DIST = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
"""Parts of the paths of installed packages; asked first, since that is faster than to resolve each path."""
_MAIN = ("__main__", "__mp_main__")
"""Names of the script itself, which may differ between two launches of one run."""


def code_record(config: ExperimentConfig) -> dict[str, Any]:
    """Return the digests as JSON values for a checkpoint; empty unless the config names user code.

    The config's components have to be built: modules count that have been imported by then.
    """
    tree = config.model_dump()
    return {KEY: digests()} if has_import_paths(tree) or objects_in(tree) else {}


def digests() -> dict[str, str]:
    """Return 16 hexadecimal characters of the file of each imported module that is user code, by the module's name.

    A file counts as it was when its module was first seen here: a process that has imported it keeps the old code.
    """
    found = {}
    for name, file in imported_files().items():
        if isinstance(file, str) and _is_of_the_user(file) and name not in _MAIN:
            with suppress(OSError, KeyError, TypeError):  # removed meanwhile, or not a module
                module = sys.modules[name]
                if module not in _seen:
                    _seen[module] = sha256(Path(file).read_bytes()).hexdigest()[:DIGITS]
                found[name] = _seen[module]
    return found


def _is_of_the_user(file: str) -> bool:
    """True if it is Python code, and not of a package, wherever that was installed, such as by `pip install --user`."""
    return file.endswith(".py") and _SITE not in file and _DIST not in file and is_own(file)


def changed_modules(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the modules that differ between two records, among those that both have."""
    before, after = saved.get(KEY, {}), now.get(KEY, {})
    return sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
