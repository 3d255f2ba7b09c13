"""Questions to a node: its software, its view of the storage and the data, and for `doctor` its machine.

Asked in a task on the node itself. Imports nothing that takes time; only `facts_of` needs torch.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import Any

from paceline.cluster.network import INTERFACES, interface_of, megabits
from paceline.errors import EnvironmentFault
from paceline.private_files import write_private
from paceline.storage.address import is_address
from paceline.tracking.environment import package_version
from paceline.tracking.provenance import usable_cores

SIGHT_SECONDS = 3.0
"""Seconds that a file may take to be seen on another machine; network file systems cache their entries for a while."""
GIB = 2**30


@dataclass(frozen=True)
class Questions:
    """Questions to a node."""

    packages: tuple[str, ...] = ()
    """Names of the packages whose versions are reported."""
    storage: str = ""
    """Folder or address of the runs; empty: it is not checked."""
    token: str = ""
    """Name of the file that the driver has written into that folder; its text is the name. Empty for an address."""
    places: tuple[str, ...] = ()
    """Files and folders of the data."""


@dataclass(frozen=True)
class Answers:
    """Answers of a node to `Questions`."""

    python: str
    versions: dict[str, str] = field(default_factory=dict)
    """Version of each package, without the part after a `+`."""
    build: str = ""
    """Platform that torch was built for: `cpu`, or a version of CUDA; empty if unknown."""
    storage_fault: str = ""
    """Problem with the storage as this node sees it; empty if it can be used."""
    missing: tuple[str, ...] = ()
    """Places of the data that do not exist here."""


def answer(questions: Questions, mark: str = "") -> Answers:
    """Check this node.

    Args:
        questions: what to check.
        mark: suffix of the file that this node writes into the storage.
    """
    versions = {name: package_version(name) for name in questions.packages}
    return Answers(
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        versions={name: (version or "missing").partition("+")[0] for name, version in versions.items()},
        build=torch_build(),
        storage_fault=_look_at_storage(questions, mark),
        missing=tuple(place for place in questions.places if not os.path.exists(place)),
    )


def torch_build() -> str:
    """Return the platform that torch was built for, `cpu` or a version of CUDA, without importing it; empty if
    unknown."""
    spec = find_spec("torch")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else ""
    except OSError:
        return ""
    found = re.search(r"^cuda\b.*?= *(?:'([^']*)'|\"([^\"]*)\"|None)", text, re.MULTILINE)
    return "" if found is None else f"CUDA {found[1] or found[2]}" if found[1] or found[2] else "cpu"


def written_name(token: str, mark: str) -> str:
    """Return the name of the file that a node writes into the storage."""
    return f"{token}-{mark}"


def is_seen(file: Path) -> bool:
    """Return True if a file exists, or appears within `SIGHT_SECONDS`."""
    end = time.monotonic() + SIGHT_SECONDS
    while not file.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _look_at_storage(questions: Questions, mark: str) -> str:
    if not questions.storage:
        return ""
    if not questions.token:
        return _look_at_address(questions.storage)
    folder = Path(questions.storage)
    try:
        if not folder.is_dir():
            return "is not there"
        if not is_seen(folder / questions.token):
            return "is another folder there"
        if (folder / questions.token).read_text() != questions.token:
            return "is another folder there"
        write_private(folder / written_name(questions.token, mark), questions.token.encode())
    except OSError as error:
        return f"cannot be used there: {error.strerror or error}"
    return ""


def _look_at_address(address: str) -> str:
    """Return the problem with an object store as this node sees it; empty if it can be used."""
    from paceline.storage.address import parse
    from paceline.storage.remote_folder import RemoteFolder

    try:
        RemoteFolder(parse(address)).probe()
    except EnvironmentFault as fault:
        return f"cannot be used there: {fault.message}"
    return ""


def forget(storage: str, name: str) -> None:
    """Remove a file from a folder of this node, if it is there."""
    Path(storage, name).unlink(missing_ok=True)


def run_on(node: str, function: Any, *arguments: Any, **options: Any) -> Any:
    """Start a task that reserves no resources, on a certain node.

    Args:
        node: its id.
        function: to run there.
        arguments: of the function.
        options: further options of a Ray task.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there, **options)(function).remote(*arguments)


def all_of(tasks: Sequence[Any], seconds: float) -> list[Any]:
    """Return the result of each task, or the exception that it raised; a TimeoutError where it took too long."""
    import ray

    done, _ = ray.wait(list(tasks), num_returns=len(tasks), timeout=seconds) if tasks else ([], [])
    found: list[Any] = []
    for task in tasks:
        if task not in done:
            ray.cancel(task, force=True)
            found.append(TimeoutError())
            continue
        try:
            found.append(ray.get(task))
        except Exception as error:  # Ray's, or what the task raised
            found.append(error)
    return found


@dataclass(frozen=True)
class NodeFacts:
    """A node as `doctor` shows it, each fact as text."""

    answers: Answers
    machine: str
    gpus: str
    disk: str
    network: str


def facts_of(questions: Questions, mark: str, address: str) -> NodeFacts:
    """Check this node for `doctor`. Imports torch, which takes seconds.

    Args:
        questions: as for every launch.
        mark: as for every launch.
        address: by which the others know this node.
    """
    # Ray hides the GPUs from what has asked for none
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    return NodeFacts(
        answers=answer(questions, mark),
        machine=f"{usable_cores()} CPU cores, {memory_text()}",
        gpus=_gpus(),
        disk=_disk(questions.storage),
        network=_network(address),
    )


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none"
    count = torch.cuda.device_count()
    found = [torch.cuda.get_device_properties(index) for index in range(count)]
    names = "; ".join(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB" for gpu in found)
    nccl = _nccl_version(torch) if torch.distributed.is_nccl_available() else "none"
    driver = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0] or "unknown"
    versions = f"driver {driver}, CUDA {torch.version.cuda}, NCCL {nccl}"
    return f"{names}; {versions}" + (f"; {_links(torch, count)}" if count > 1 else "")


def _nccl_version(torch: Any) -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _links(torch: Any, count: int) -> str:
    pairs = list(permutations(range(count), 2))
    direct = sum(bool(torch.cuda.can_device_access_peer(one, other)) for one, other in pairs)
    reach = {0: "no pair reaches", len(pairs): "all pairs reach"}.get(direct, f"{direct} of {len(pairs)} pairs reach")
    nvlink = nvlinks(_nvidia_smi("topo", "-m"))
    over = {None: "", 0: "; none over NVLink"}.get(nvlink, f"; {nvlink} of {len(pairs)} over NVLink")
    return f"{reach} each other's memory{over}"


def nvlinks(table: str) -> int | None:
    """Return the number of ordered pairs of GPUs that `nvidia-smi topo -m` shows as joined by NVLink; None for other
    text."""
    rows = [line.split() for line in table.splitlines() if re.match(r"\s*GPU\d+\s", line)]
    rows = [row for row in rows if "X" in row]
    if not rows:
        return None
    return sum(bool(re.fullmatch(r"NV\d+", cell)) for row in rows for cell in row[1 : len(rows) + 1])


def _nvidia_smi(*arguments: str) -> str:
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def _disk(storage: str) -> str:
    folder = Path("/" if not storage or is_address(storage) else storage)
    return f"{shutil.disk_usage(existing(folder)).free / GIB:.1f} GiB free in {folder}"


def _network(address: str) -> str:
    name = interface_of(address)
    told = {os.environ[variable] for variable in INTERFACES if os.environ.get(variable)}
    if name is None:
        return f"no interface has the address {address}"
    speed = megabits(name)
    text = f"{name}, {f'{speed / 1000:g} Gbit/s' if speed else 'speed unknown'}"
    return text + (f"; the environment names {', '.join(sorted(told))}" if told else "")


def memory() -> tuple[int, int]:
    """Return free and total bytes of memory, at most those that the container may use."""
    import psutil

    told = psutil.virtual_memory()
    free, total = told.available, told.total
    limit = _container_limit()
    if limit is not None and limit < total:
        free, total = min(free, limit), limit
    return free, total


def memory_text() -> str:
    """Return the memory as text, such as `12.0 GiB of 16.0 GiB free`."""
    free, total = memory()
    return f"{free / GIB:.1f} GiB of {total / GIB:.1f} GiB free"


def existing(folder: Path) -> Path:
    """Return the folder itself, or the closest one above it that exists."""
    absolute = folder.absolute()
    return next(place for place in (absolute, *absolute.parents) if place.exists())


def _container_limit() -> int | None:
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None
