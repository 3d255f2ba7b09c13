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
"""How long a file may take to be seen on another machine; network file systems keep what they know for a while."""
GIB = 2**30


@dataclass(frozen=True)
class Questions:
    """What a node is asked."""

    packages: tuple[str, ...] = ()
    """Whose versions are reported."""
    storage: str = ""
    """Folder or address of the runs; empty: it is not looked at."""
    token: str = ""
    """Name of the file that the driver has written into that folder; its text is the name. Empty for an address."""
    places: tuple[str, ...] = ()
    """Files and folders of the data."""


@dataclass(frozen=True)
class Answers:
    """What it tells."""

    python: str
    versions: dict[str, str] = field(default_factory=dict)
    """By package, without what is behind a `+`."""
    build: str = ""
    """What torch was built for: `cpu`, or a version of CUDA."""
    storage_fault: str = ""
    """What is wrong with the storage as it is seen from here; empty: nothing."""
    missing: tuple[str, ...] = ()
    """Places of the data that are not there."""


def answer(questions: Questions, mark: str = "") -> Answers:
    """Look at this node.

    Args:
        questions: what is to be looked at.
        mark: what the name of the file ends with that this node writes into the storage.
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
    """Return what torch was built for, `cpu` or a version of CUDA, without importing it; empty if unknown."""
    spec = find_spec("torch")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else ""
    except OSError:
        return ""
    found = re.search(r"^cuda\b.*?= *(?:'([^']*)'|\"([^\"]*)\"|None)", text, re.MULTILINE)
    return "" if found is None else f"CUDA {found[1] or found[2]}" if found[1] or found[2] else "cpu"


def written_name(token: str, mark: str) -> str:
    """Name of the file that a node writes into the storage."""
    return f"{token}-{mark}"


def is_seen(file: Path) -> bool:
    """Return whether a file is there, or is seen soon."""
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
    """Return whether an object store can be used from here."""
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
    """Start a task that takes nothing, on a certain node.

    Args:
        node: its id.
        function: what runs there.
        arguments: of the function.
        options: more of Ray's own.
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
    """Look at this node. Imports torch, and takes seconds for it.

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
    """Return how many ordered pairs of GPUs `nvidia-smi topo -m` shows as joined by NVLink; None for another text."""
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
    """Free and total bytes."""
    import psutil

    told = psutil.virtual_memory()
    free, total = told.available, told.total
    limit = _container_limit()
    if limit is not None and limit < total:
        free, total = min(free, limit), limit
    return free, total


def memory_text() -> str:
    """Such as `12.0 GiB of 16.0 GiB free`."""
    free, total = memory()
    return f"{free / GIB:.1f} GiB of {total / GIB:.1f} GiB free"


def existing(folder: Path) -> Path:
    """The folder itself, or the closest one above it that exists."""
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
