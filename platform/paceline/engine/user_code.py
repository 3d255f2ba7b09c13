"""Identity of the user code that a run was trained with, so that a resumed run reports when it has changed."""

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import has_import_paths
from paceline.config.own_files import imported_files, is_own

KEY = "code"
"""Key of the digests in `state.json`."""
DIGITS = 16
_MAIN = ("__main__", "__mp_main__")
"""Names of the script itself, which may differ between two launches of one run."""


def code_record(config: ExperimentConfig) -> dict[str, Any]:
    """Return the digests as JSON values for a checkpoint; empty unless the config names user code.

    The config's components have to be built: modules count that have been imported by then.
    """
    return {KEY: digests()} if has_import_paths(config.model_dump()) else {}


def digests() -> dict[str, str]:
    """Return 16 hexadecimal characters of the file of each imported module that is user code, by the module's name."""
    found = {}
    for name, file in imported_files().items():
        if isinstance(file, str) and file.endswith(".py") and name not in _MAIN and is_own(file):
            with suppress(OSError):
                found[name] = sha256(Path(file).read_bytes()).hexdigest()[:DIGITS]
    return found


def changed_modules(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of the modules that differ between two records, among those that both have."""
    before, after = saved.get(KEY, {}), now.get(KEY, {})
    return sorted(name for name in before.keys() & after.keys() if before[name] != after[name])
