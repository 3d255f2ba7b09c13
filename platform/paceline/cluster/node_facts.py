"""Facts that each node of a cluster reports to `doctor`; gathered on the node itself."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from paceline.cluster.local_machine import GIB, existing, memory_text
from paceline.cluster.network_interfaces import INTERFACES, interface_of, megabits
from paceline.cluster.node_probe import Answers, Questions, answer
from paceline.storage.address import is_address
from paceline.tracking.provenance import usable_cores


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
    """How many ordered pairs of GPUs `nvidia-smi topo -m` shows as joined by NVLink; None for another text."""
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
    text = f"{name}, {f'{speed / 1000:g} Gbit/s' if speed else 'speed not told'}"
    return text + (f"; the environment names {', '.join(sorted(told))}" if told else "")
