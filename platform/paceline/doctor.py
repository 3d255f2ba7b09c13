"""Checks of the environment of a run, each with a hint if something is missing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from paceline.cluster.cluster_doctor import DoctorCheck
from paceline.cluster.node_probe import GIB, existing, memory, memory_text
from paceline.cluster.ray_session import answers
from paceline.errors import EnvironmentFault, PacelineError
from paceline.places import default_storage
from paceline.storage.address import is_address, parse

PYTHON_RANGE = ((3, 11), (3, 14))
FLOORS = {"torch": (2, 11), "torchvision": (0, 26), "ray": (2, 58), "mlflow": (3, 15)}
"""Oldest versions with the fixes that Paceline counts on."""
LOW_DISK_BYTES = 2 * GIB
LOW_MEMORY_BYTES = 2 * GIB
CONNECT_SECONDS = 2.0


def diagnose(
    address: str | None = None, uri: str | None = None, storage: str | Path | None = None
) -> list[DoctorCheck]:
    """Check versions, hardware, Ray, MLflow and disk. Starts nothing, changes nothing, takes seconds.

    Args:
        address: a Ray cluster to check; by default the one that RAY_ADDRESS or Ray's own file names.
        uri: MLflow's address, see `tracking.store.tracking_uri`; None skips the check of MLflow.
        storage: the folder or the object store for runs; by default `./runs`.
    """
    checks: list[Callable[[], DoctorCheck]] = [
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


def _storage(storage: str | Path | None) -> list[Callable[[], DoctorCheck]]:
    storage = storage or default_storage()
    if is_address(storage):
        return [partial(_store, str(storage))]
    folder = Path(storage) if storage else Path("runs")
    return [partial(_writable, folder), partial(_disk, folder)]


def _store(address: str) -> DoctorCheck:
    from paceline.storage.remote_folder import RemoteFolder

    try:
        RemoteFolder(parse(address)).probe()
    except PacelineError as fault:
        return DoctorCheck("storage", False, fault.message, "see docs/reference/run_folder.md, In an object store")
    return DoctorCheck("storage", True, parse(address).bare)


def _python() -> DoctorCheck:
    lowest, above = PYTHON_RANGE
    fine = lowest <= sys.version_info[:2] < above
    wanted = f"{lowest[0]}.{lowest[1]} to {above[0]}.{above[1] - 1}"
    version = ".".join(str(part) for part in sys.version_info[:3])
    return DoctorCheck(
        "python", fine, version, "" if fine else f"use Python {wanted}, for example `uv python install 3.12`"
    )


def _package(name: str) -> DoctorCheck:
    from paceline.tracking.environment import package_version

    version = package_version(name)
    if version is None:
        return DoctorCheck(name, False, "not installed", "uv sync")
    floor = FLOORS.get(name, (0,))
    fine = _numbers(version)[: len(floor)] >= floor
    wanted = ".".join(str(part) for part in floor)
    return DoctorCheck(name, fine, version, "" if fine else f"needs {wanted} or newer: uv sync")


def _numbers(version: str) -> tuple[int, ...]:
    digits = ("".join(character for character in part if character.isdigit()) for part in version.split(".")[:3])
    return tuple(int(part or 0) for part in digits)


def _bytecode() -> DoctorCheck:
    """Check whether each process has to compile all modules again, which doubles its start time."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None or Path(cache_from_source(spec.origin)).exists():
        return DoctorCheck("bytecode", True, "packages are compiled")
    if not sys.dont_write_bytecode:
        return DoctorCheck("bytecode", None, "packages are compiled when they are first imported")
    hint = "run `uv sync --compile-bytecode` once, or unset PYTHONDONTWRITEBYTECODE: processes start twice as fast"
    return DoctorCheck(
        "bytecode", None, "each process compiles all packages again (PYTHONDONTWRITEBYTECODE is set)", hint
    )


def _gpus() -> DoctorCheck:
    seen = _driver_gpus()
    try:
        import torch
    except ImportError:
        return DoctorCheck(
            "gpus", None, "; ".join(seen) or "none seen by nvidia-smi", "install torch to use them: uv sync"
        )
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        return DoctorCheck("gpus", True, "; ".join(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for gpu in names))
    if seen:
        detail = f"torch {torch.__version__} does not reach {'; '.join(seen)}"
        return DoctorCheck(
            "gpus", False, detail, "install a torch build for CUDA, and see that the driver is new enough"
        )
    return DoctorCheck("gpus", None, "none; training runs on the CPU")


def _driver_gpus() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _cores() -> DoctorCheck:
    from paceline.tracking.provenance import usable_cores

    return DoctorCheck("cores", True, str(usable_cores()))


def _memory() -> DoctorCheck:
    free, _ = memory()
    detail = memory_text()
    if free < LOW_MEMORY_BYTES:
        return DoctorCheck(
            "memory", None, detail, "Ray and torch take about 2 GiB before the model: close other programs"
        )
    return DoctorCheck("memory", True, detail)


def _ray(address: str | None) -> DoctorCheck:
    if address and address not in ("auto", "local"):
        return _ray_cluster(address, "--address")
    if address != "local" and (variable := os.environ.get("RAY_ADDRESS")) and variable != "local":
        return _ray_cluster(variable, "RAY_ADDRESS") if variable != "auto" else _ray_file()
    return DoctorCheck("ray cluster", None, "a local one per run") if address == "local" else _ray_file()


def _ray_file() -> DoctorCheck:
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    try:
        found = file.read_text().strip()
    except OSError:
        return DoctorCheck("ray cluster", None, "none is running here; each run starts its own")
    if answers(found, CONNECT_SECONDS):
        return DoctorCheck("ray cluster", True, f"running at {found}")
    hint = f"a cluster ended without cleaning up: remove {file}; runs on a private Ray ignore it"
    return DoctorCheck("ray cluster", None, f"{file} names {found}, which does not answer", hint)


def _ray_cluster(address: str, source: str) -> DoctorCheck:
    if answers(address, CONNECT_SECONDS):
        return DoctorCheck("ray cluster", True, f"{address} answers ({source})")
    hint = "start the cluster, open a tunnel to it, or correct the address"
    return DoctorCheck("ray cluster", False, f"{address} does not answer ({source})", hint)


def _tracking(uri: str | None) -> DoctorCheck:
    from paceline.redaction import redact
    from paceline.tracking.mlflow_probe import probe

    if uri is None:
        return DoctorCheck("tracking", None, "not checked: no address given")
    try:
        probe(uri)
    except EnvironmentFault as fault:
        reason, _, hint = fault.message.partition("; ")
        return DoctorCheck("tracking", False, reason, hint)
    return DoctorCheck("tracking", True, redact(uri))


def _writable(folder: Path) -> DoctorCheck:
    nearest = existing(folder)
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return DoctorCheck("storage", True, str(folder.absolute()))
    return DoctorCheck("storage", False, f"{nearest} cannot be written to", "set storage.path to a folder of yours")


def _disk(folder: Path) -> DoctorCheck:
    free = shutil.disk_usage(existing(folder)).free
    detail = f"{free / GIB:.1f} GiB free"
    if free < LOW_DISK_BYTES:
        return DoctorCheck(
            "disk", None, detail, "checkpoints need room: free some, or set storage.path to a larger disk"
        )
    return DoctorCheck("disk", True, detail)
