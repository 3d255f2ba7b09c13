"""Detects files of user code: those outside of Python, installed packages and Paceline."""

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=1 << 16)  # more than a process imports: with fewer, a walk over all modules would find none of them
def is_own(file: str) -> bool:
    """Return True if a file contains user code. IPython cells count too."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PACKAGE, *_installed()))


def imported_files() -> dict[str, Any]:
    """Return the file of each module that this process has imported, by the module's name; None where it has none."""
    files = {}
    for name, module in sys.modules.copy().items():  # a thread may import something meanwhile
        try:  # `suppress` would take most of the time, for thousands of modules
            files[name] = object.__getattribute__(module, "__dict__").get("__file__")
        except Exception:  # one that is imported when it is looked at, or is not a module
            continue
    return files


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in names)


def shown(file: str, line: int) -> str:
    """Return `file:line` for messages; the path is relative if the file is below the working folder."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
