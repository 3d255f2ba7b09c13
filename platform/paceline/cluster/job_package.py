"""The package of a job: its runtime environment, and the files of the working folder, with their sizes and archive."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import yaml

from paceline._compat.ray import UV_HOOK, walk_working_dir
from paceline.cluster.user_code import STAYS_AT_HOME, package_folder
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.places import STORAGE_VARIABLE, place_of
from paceline.redaction import redact, redact_values
from paceline.storage.address import ENDPOINTS, REGIONS
from paceline.tracking.tracking_uri import ENVIRONMENT_VARIABLE

DEFAULT_FILE = Path("configs/deploy/runtime_env.yaml")
"""File that is used if it exists, relative to the folder in which the command is run."""
STOP_SECONDS = 300
"""Seconds that a stopped job may take to save its state; Ray kills it after 3 s by default."""
_STOP_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
_OWN_KEYS = ("working_dir", "py_modules", "excludes", "env_vars")
MOST_BYTES = 95 * 2**20
"""Limit in bytes, below the 100 MiB that Ray's dashboard takes in one piece, since an archive adds some bytes to each
file."""
MOST_BYTES_OF_DRIVER = 2 * 2**30
"""Largest working folder in bytes that a driver outside the cluster may send. Ray's own limit is 500 MiB packed, but it
packs everything before it checks."""
SHOWN_ENTRIES = 3
_ALWAYS_OUT = (*STAYS_AT_HOME, "venv", "__pycache__")
_IGNORE_GITIGNORE = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Earliest time that an archive can hold. All files get it, so that equal files make equal archives, which are sent
once."""


@dataclass(frozen=True)
class JobEnvironment:
    """Ray's runtime environment, but for the archive of the working folder."""

    folder: Path
    """The working folder, absolute."""
    modules: tuple[str, ...]
    """The user's own `py_modules`: absolute paths of folders and wheels, and addresses."""
    excludes: tuple[str, ...]
    """Patterns of files in the working folder that are not sent, in the syntax of `.gitignore`."""
    env_vars: Mapping[str, str]
    others: Mapping[str, Any]
    """`pip`, `conda` and the like, as they were written."""
    taken_along: tuple[str, ...] = ()
    """Variables of this command's own environment that the job gets."""
    place: str = ""
    """File of the runtime environment, as it is named in messages; empty for none."""

    def to_ray(self, archive: str) -> dict[str, Any]:
        """Return the runtime environment as Ray's client takes it.

        Args:
            archive: a zip file with the working folder. Its excludes are applied already: Ray would apply them to the
                package as well, which has a folder `data` of its own.
        """
        modules = [str(package_folder()), *self.modules]
        own = {"working_dir": archive, "py_modules": modules, "excludes": ["__pycache__"]}
        return {**self.others, **own, "env_vars": dict(self.env_vars)}

    def shown(self) -> dict[str, Any]:
        """Return it without secrets, to be shown before anything is sent."""
        return {**self.to_ray(str(self.folder)), "env_vars": redact_values(self.env_vars)}

    def open_secrets(self) -> list[str]:
        """Names of variables that hold a secret: whoever may list the cluster's jobs can read them."""
        return [name for name, value in redact_values(self.env_vars).items() if value != self.env_vars[name]]


def job_environment(file: Path | None = None) -> JobEnvironment:
    """Read the user's file, and add the entries that a job of Paceline needs.

    Args:
        file: of a runtime environment; None: `DEFAULT_FILE`, if it exists.

    Raises:
        ConfigError: the file does not exist, or holds something else.
    """
    if file is None and DEFAULT_FILE.is_file():
        file = DEFAULT_FILE
    place = str(file) if file is not None else ""
    entries = _read(file) if file is not None else {}
    written = _mapping(entries, "env_vars", place)
    taken = {name: value for name, value in _taken_along().items() if name not in written}
    return JobEnvironment(
        folder=_working_folder(entries.get("working_dir", "."), place),
        modules=_modules(_listed(entries, "py_modules", place), place),
        excludes=tuple(_listed(entries, "excludes", place)),
        env_vars={UV_HOOK: "0", _STOP_VARIABLE: str(STOP_SECONDS), **taken, **written},
        others={key: value for key, value in entries.items() if key not in _OWN_KEYS},
        taken_along=tuple(taken),
        place=place,
    )


def check_with_ray(environment: JobEnvironment) -> None:
    """Have Ray check the runtime environment. Imports Ray, and starts nothing.

    Raises:
        ConfigError: Ray does not accept an entry.
    """
    from ray.runtime_env import RuntimeEnv

    try:
        RuntimeEnv(**environment.others, env_vars=dict(environment.env_vars))
    except (TypeError, ValueError, OSError) as error:
        raise _problem(environment.place, redact(str(error)).replace("\n", " ")) from None


def _taken_along() -> dict[str, str]:
    names = ENVIRONMENT_VARIABLE, STORAGE_VARIABLE, *ENDPOINTS, *REGIONS
    return {name: value for name in names if (value := os.environ.get(name, "").strip())}


def _read(file: Path) -> dict[str, Any]:
    try:
        entries = yaml.safe_load(place_of(file).read_text("utf-8"))
    except FileNotFoundError:
        raise _problem(str(file), "there is no such file") from None
    except (OSError, ValueError) as error:
        raise _problem(str(file), f"the file cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise _problem(str(file), f"is not YAML: {' '.join(str(error).split())}") from None
    if entries is None:
        return {}
    if not isinstance(entries, dict) or not all(isinstance(key, str) for key in entries):
        raise _problem(str(file), "must hold keys and values, such as pip: [transformers]")
    return entries


def _working_folder(written: Any, place: str) -> Path:
    if not isinstance(written, str) or "://" in written:
        raise _problem(place, "must be a folder of this machine, since the config file lies in it", "working_dir")
    folder = place_of(written).resolve()
    if not folder.is_dir():
        raise _problem(place, f"there is no folder {folder}", "working_dir")
    return folder


def _modules(written: Sequence[str], place: str) -> tuple[str, ...]:
    """Return the modules without this package, which is sent from where it is installed."""
    absolute = (each if "://" in each else str(place_of(each).resolve()) for each in written)
    found = tuple(path for path in absolute if Path(path).name != package_folder().name)
    for path in found:
        if "://" not in path and not (Path(path).is_dir() or path.endswith(".whl")):
            raise _problem(place, f"{path} is neither a package's folder nor a wheel, which Ray takes", "py_modules")
    return found


def _listed(entries: Mapping[str, Any], key: str, place: str) -> list[str]:
    value = entries.get(key) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _problem(place, "must be a list of texts", key)
    return value


def _mapping(entries: Mapping[str, Any], key: str, place: str) -> dict[str, str]:
    value = entries.get(key) or {}
    if not isinstance(value, dict):
        raise _problem(place, "must hold names and values", key)
    wrong = [str(name) for name, each in value.items() if not isinstance(name, str) or not isinstance(each, str)]
    if wrong:
        hint = f'write it in quotes, such as {wrong[0]}: "1"'
        raise _problem(place, f"{', '.join(wrong)}: variables are texts", key, hint)
    return value


def _problem(place: str, reason: str, key: str = "", hint: str = "") -> ConfigError:
    return ConfigError([Problem("runtime-env", reason, key, place, hint)])


@dataclass(frozen=True)
class JobFolder:
    """Files of a folder that are sent."""

    folder: Path
    files: Mapping[str, int]
    """Name within the folder, with `/`, to size in bytes."""

    @property
    def size_bytes(self) -> int:
        """Total size of the files in bytes."""
        return sum(self.files.values())

    def leaves_out(self, place: Path) -> bool:
        """Return True for a file that is not sent, or a folder of which no file is sent, if it is in this folder."""
        if not place.is_relative_to(self.folder):
            return False
        inside = place.relative_to(self.folder)
        return inside.as_posix() not in self.files and not any(Path(name).is_relative_to(inside) for name in self.files)

    def write(self, archive: Path) -> None:
        """Write the files into a zip archive, as Ray unpacks it.

        Raises:
            OSError: a file cannot be read, or the archive not be written.
        """
        with ZipFile(archive, "w") as packed:
            for name in sorted(self.files):
                file = self.folder / name
                entry = ZipInfo(name, _EARLIEST)
                entry.external_attr = (file.stat().st_mode & 0xFFFF) << 16
                packed.writestr(entry, file.read_bytes())


def require_sendable(runtime_env: Mapping[str, Any]) -> None:
    """Refuse a working folder that is too large to be sent, before Ray packs it.

    Raises:
        EnvironmentFault: it is too large.
        OSError: something in it cannot be accessed.
    """
    if "working_dir" in runtime_env:
        look_through(Path(runtime_env["working_dir"]), runtime_env.get("excludes", ()), MOST_BYTES_OF_DRIVER)


def look_through(folder: Path, excludes: Sequence[str] = (), most_bytes: int | None = None) -> JobFolder:
    """Find the files to send: all but those that `.gitignore`, `.rayignore` and `excludes` name, and those that no job
    needs.

    Args:
        folder: absolute.
        excludes: patterns in the syntax of `.gitignore`.
        most_bytes: limit of the total size; None: the size that Ray's dashboard takes.

    Raises:
        EnvironmentFault: the files are larger.
        OSError: something cannot be accessed.
    """
    files: dict[str, int] = {}
    total, most = 0, MOST_BYTES if most_bytes is None else most_bytes

    def take(path: Path) -> None:
        nonlocal total
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = size = path.stat().st_size
            total += size
            if total > most:
                raise _too_large(folder, files, most)

    use_gitignore = os.environ.get(_IGNORE_GITIGNORE) != "1"
    walk_working_dir(folder, [*_ALWAYS_OUT, *excludes], take, use_gitignore=use_gitignore, logger=_quiet())
    return JobFolder(folder, files)


def _too_large(folder: Path, files: Mapping[str, int], most_bytes: int) -> EnvironmentFault:
    entries: dict[str, int] = {}
    for name, size in files.items():
        top = name.partition("/")[0]
        entries[top] = entries.get(top, 0) + size
    largest = sorted(entries, key=lambda name: -entries[name])[:SHOWN_ENTRIES]
    shown = ", ".join(f"{name} ({size_text(entries[name])})" for name in largest)
    return EnvironmentFault(
        f"the working folder {folder} has more than {size_text(most_bytes)} to send, among it {shown}: name what the "
        "job does not need in .rayignore or .gitignore, or go to the folder of the project",
        "folder-too-large",
        folder=str(folder),
        limit_bytes=most_bytes,
        largest=largest,
    )


def size_text(size_bytes: int) -> str:
    """Return a size as text, in bytes, KiB or MiB."""
    if size_bytes < 2**10:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 2**10:,.0f} KiB" if size_bytes < 2**20 else f"{size_bytes / 2**20:,.1f} MiB"


def _quiet() -> logging.Logger:
    """Return a silent logger for Ray, which would log each folder with a `.gitignore`, and errors that are reported
    here."""
    logger = logging.getLogger("paceline.job_folder")
    logger.setLevel(logging.CRITICAL + 1)
    return logger
