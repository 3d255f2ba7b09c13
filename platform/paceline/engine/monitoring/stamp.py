"""Stamp of a run's speed: the hardware and settings that must be alike for two speeds to be compared."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from paceline.engine.monitoring.gpus import Gpu

CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Card:
    """Description of a rank, which the others receive once. Plain values only, since it is sent between processes."""

    host: str
    device: str
    """Name of the GPU or processor that it computes on."""
    threads: int
    """Number of torch's threads."""
    usable_cores: int
    """Cores that the process may use."""
    machine_cores: int
    cpu_mhz_max: float | None
    """Highest clock of the machine's cores; None where it is not reported."""
    gpus: tuple[tuple[str, int], ...] = ()
    """UUID and number of each GPU whose metrics it can read."""
    gpu_mhz_max: float | None = None
    gpu_count: int = 0
    """Number of GPUs that it computes on, including those whose metrics it cannot read."""


def make_card(device: torch.device, gpus: Sequence[Gpu], all_seen: bool) -> Card:
    """Return the card of this process."""
    clocks = [clock for gpu in gpus if (clock := gpu.max_clock()) is not None]
    count = torch.cuda.device_count() if all_seen else 1
    return Card(
        host=platform.node(),
        device=device_name(device),
        threads=torch.get_num_threads(),
        usable_cores=usable_cores(),
        machine_cores=psutil.cpu_count() or 1,
        cpu_mhz_max=_cpu_clocks()[1],
        gpus=tuple((gpu.identity, gpu.number) for gpu in gpus),
        gpu_mhz_max=min(clocks, default=None),
        gpu_count=count if device.type == "cuda" else 0,
    )


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """Return the model of the processor; its architecture if the model is not reported."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), "") or platform.machine()


def make_stamp(cards: Sequence[Card], device: torch.device, gpu_mhz: float | None) -> dict[str, Any]:
    """Return the stamp of the machines as JSON values; None for values that they do not report.

    `cpu_mhz` is the present clock.

    Args:
        gpu_mhz: mean clock of the GPUs over the training, in MHz.
    """
    first = cards[0]
    return {
        "device": " + ".join(sorted({card.device for card in cards})),
        "device_type": device.type,
        "nodes": len({card.host for card in cards}),
        "workers": len(cards),
        "gpus": sum(card.gpu_count for card in cards),
        "threads_per_worker": max(card.threads for card in cards),
        "usable_cores": min(card.usable_cores for card in cards),
        "machine_cores": first.machine_cores,
        "cpu": cpu_name(),
        "cpu_mhz": _cpu_clocks()[0],
        "cpu_mhz_max": first.cpu_mhz_max,
        "gpu_mhz": gpu_mhz,
        "gpu_mhz_max": first.gpu_mhz_max,
        "torch": str(torch.__version__),  # a TorchVersion would make every reader of the report import torch
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,  # type: ignore[no-untyped-call]
    }


def _cpu_clocks() -> tuple[float | None, float | None]:
    """Return the present and the highest clock of the cores in MHz; None where the machine does not report it."""
    try:
        clocks = psutil.cpu_freq()
    except (OSError, NotImplementedError, AttributeError):
        clocks = None
    return (clocks.current or None, clocks.max or None) if clocks is not None else (None, None)
