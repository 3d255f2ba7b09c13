"""Looks at what a run needs from its environment, and says what is missing and how to get it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from paceline.cluster.check import Check
from paceline.cluster.machine import GIB, existing, memory, memory_text
from paceline.cluster.session import answers
from paceline.errors import EnvironmentFault, PacelineError
from paceline.places import default_storage
from paceline.storage.address import is_address, parse

PYTHON_RANGE = ((3, 11), (3, 14))
FLOORS = {"torch": (2, 11), "torchvision": (0, 26), "ray": (2, 58), "mlflow": (3, 15)}
"""Oldest versions with the fixes that Paceline counts on."""
LOW_DISK_BYTES = 2 * GIB
LOW_MEMORY_BYTES = 2 * GIB
CONNECT_SECONDS = 2.0


def diagnose(address: str | None = None, uri: str | None = None, storage: str | Path | None = None) -> list[Check]:
    """Look at versions, hardware, Ray, MLflow and disk. Starts nothing, changes nothing, takes seconds.

    Args:
        address: a Ray cluster to look at; by default the one that RAY_ADDRESS or Ray's own file names.
        uri: MLflow's address, see `tracking.store.tracking_uri`; without one it is not looked at.
        storage: the folder or the object store for runs; by default `./runs`.
    """
    checks: list[Callable[[], Check]] = [
        _python,
        *(partial(_package, name) for name in ("paceline", *FLOORS)),
        _bytecode,
        _gpus,
        _cores,
        _memory,
        partial(_ray, address),
        partial(_tracking, uri),
        *_storage(storage),
    ]
    return [check() for check in checks]


def _storage(storage: str | Path | None) -> list[Callable[[], Check]]:
    storage = storage or default_storage()
    if is_address(storage):
        return [partial(_store, str(storage))]
    folder = Path(storage) if storage else Path("runs")
    return [partial(_writable, folder), partial(_disk, folder)]


def _store(address: str) -> Check:
    from paceline.storage.remote import RemoteFolder

    try:
        RemoteFolder(parse(address)).probe()
    except PacelineError as fault:
        return Check("storage", False, fault.message, "see docs/reference/run_folder.md, In an object store")
    return Check("storage", True, parse(address).bare)


def _python() -> Check:
    lowest, above = PYTHON_RANGE
    fine = lowest <= sys.version_info[:2] < above
    wanted = f"{lowest[0]}.{lowest[1]} to {above[0]}.{above[1] - 1}"
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", fine, version, "" if fine else f"use Python {wanted}, for example `uv python install 3.12`")


def _package(name: str) -> Check:
    from paceline.tracking.environment import package_version

    version = package_version(name)
    if version is None:
        return Check(name, False, "not installed", "uv sync")
    floor = FLOORS.get(name, (0,))
    fine = _numbers(version)[: len(floor)] >= floor
    wanted = ".".join(str(part) for part in floor)
    return Check(name, fine, version, "" if fine else f"needs {wanted} or newer: uv sync")


def _numbers(version: str) -> tuple[int, ...]:
    digits = ("".join(character for character in part if character.isdigit()) for part in version.split(".")[:3])
    return tuple(int(part or 0) for part in digits)


def _bytecode() -> Check:
    """Whether each process has to compile all modules again, which doubles the seconds that it takes to start."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None or Path(cache_from_source(spec.origin)).exists():
        return Check("bytecode", True, "packages are compiled")
    if not sys.dont_write_bytecode:
        return Check("bytecode", None, "packages are compiled when they are first imported")
    hint = "run `uv sync --compile-bytecode` once, or unset PYTHONDONTWRITEBYTECODE: processes start twice as fast"
    return Check("bytecode", None, "each process compiles all packages again (PYTHONDONTWRITEBYTECODE is set)", hint)


def _gpus() -> Check:
    seen = _driver_gpus()
    try:
        import torch
    except ImportError:
        return Check("gpus", None, "; ".join(seen) or "none seen by nvidia-smi", "install torch to use them: uv sync")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return Check("gpus", True, "; ".join(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for gpu in names))
    if seen:
        detail = f"torch {torch.__version__} does not reach {'; '.join(seen)}"
        return Check("gpus", False, detail, "install a torch build for CUDA, and see that the driver is new enough")
    return Check("gpus", None, "none; training runs on the CPU")


def _driver_gpus() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _cores() -> Check:
    from paceline.tracking.provenance import usable_cores

    return Check("cores", True, str(usable_cores()))


def _memory() -> Check:
    free, _ = memory()
    detail = memory_text()
    if free < LOW_MEMORY_BYTES:
        return Check("memory", None, detail, "Ray and torch take about 2 GiB before the model: close other programs")
    return Check("memory", True, detail)


def _ray(address: str | None) -> Check:
    if address and address not in ("auto", "local"):
        return _ray_cluster(address, "--address")
    if address != "local" and (variable := os.environ.get("RAY_ADDRESS")) and variable != "local":
        return _ray_cluster(variable, "RAY_ADDRESS") if variable != "auto" else _ray_file()
    return Check("ray cluster", None, "a local one per run") if address == "local" else _ray_file()


def _ray_file() -> Check:
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        found = file.read_text().strip()
    except OSError:
        return Check("ray cluster", None, "none is running here; each run starts its own")
    if answers(found, CONNECT_SECONDS):
        return Check("ray cluster", True, f"running at {found}")
    hint = f"a cluster ended without cleaning up: remove {file}; runs on a private Ray ignore it"
    return Check("ray cluster", None, f"{file} names {found}, which does not answer", hint)


def _ray_cluster(address: str, source: str) -> Check:
    if answers(address, CONNECT_SECONDS):
        return Check("ray cluster", True, f"{address} answers ({source})")
    hint = "start the cluster, open a tunnel to it, or correct the address"
    return Check("ray cluster", False, f"{address} does not answer ({source})", hint)


def _tracking(uri: str | None) -> Check:
    from paceline.redaction import redact
    from paceline.tracking.probing import probe

    if uri is None:
        return Check("tracking", None, "not checked: no address given")
    try:
        probe(uri)
    except EnvironmentFault as fault:
        reason, _, hint = fault.message.partition("; ")
        return Check("tracking", False, reason, hint)
    return Check("tracking", True, redact(uri))


def _writable(folder: Path) -> Check:
    nearest = existing(folder)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Check("storage", True, str(folder.absolute()))
    return Check("storage", False, f"{nearest} cannot be written to", "set storage.path to a folder of yours")


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(existing(folder)).free
    detail = f"{free / GIB:.1f} GiB free"
    if free < LOW_DISK_BYTES:
        return Check("disk", None, detail, "checkpoints need room: free some, or set storage.path to a larger disk")
    return Check("disk", True, detail)
