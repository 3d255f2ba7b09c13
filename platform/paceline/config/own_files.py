"""Which files are the user's own: neither Python's, nor of an installed package, nor of this one."""

import sysconfig
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


@lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Whether a file holds the user's code."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in (_PACKAGE, *_installed()))


@lru_cache(maxsize=1)
def _installed() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(name)).resolve() for name in names)


def shown(file: str, line: int) -> str:
    """A line of a file as messages name it, below the working folder relative to it."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{line}"
