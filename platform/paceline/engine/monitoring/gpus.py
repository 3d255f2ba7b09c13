"""Metrics of a rank's GPUs from NVIDIA's management library (package `nvidia-ml-py`), if it is installed."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

GPU_METRICS = (
    "memory_usage_percentage",
    "memory_usage_megabytes",
    "utilization_percentage",
    "power_usage_watts",
    "power_usage_percentage",
    "temperature_celsius",
    "clock_megahertz",
)
"""Names of a GPU's metrics, the first five as in `mlflow.system_metrics`; `tracking.metrics` describes them."""


def own_gpus(device: torch.device, all_seen: bool) -> list["Gpu"]:
    """Return the GPUs that this process computes on; empty if the library cannot read them.

    GPUs are found by their UUID, since CUDA may see only some of them, and in another order.

    Args:
        all_seen: True if the process computes on all GPUs that it sees, not only on `device`.
    """
    if device.type != "cuda":
        return []
    try:
        import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore]

        pynvml.nvmlInit()
        return [Gpu(pynvml, uuid) for uuid in _identities(device, all_seen)]
    except Exception:  # missing package, library or permission, or a part of a GPU: errors of many classes
        return []


def _identities(device: torch.device, all_seen: bool) -> list[str]:
    own = torch.cuda.current_device() if device.index is None else device.index
    numbers = range(torch.cuda.device_count()) if all_seen else [own]
    return [f"GPU-{torch.cuda.get_device_properties(number).uuid}" for number in numbers]


class Gpu:
    """One GPU."""

    def __init__(self, library: Any, identity: str) -> None:
        """Raises: the library's error if there is no such GPU."""
        self._library = library
        self._handle = library.nvmlDeviceGetHandleByUUID(identity)
        self.identity = identity
        self.number = int(library.nvmlDeviceGetIndex(self._handle))
        """Number of the GPU in `nvidia-smi`."""
        self.begin()

    def begin(self) -> None:
        """Start to count the energy."""
        self._first_millijoules = self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption)

    def sample(self) -> dict[str, float]:
        """Return the values of `GPU_METRICS`, without those that this GPU does not report."""
        library = self._library
        values: dict[str, float | None] = {}
        memory = self._ask(library.nvmlDeviceGetMemoryInfo)
        if memory is not None:
            values["memory_usage_percentage"] = 100 * memory.used / memory.total
            values["memory_usage_megabytes"] = memory.used / 1e6
        usage = self._ask(library.nvmlDeviceGetUtilizationRates)
        values["utilization_percentage"] = None if usage is None else usage.gpu
        power, limit = self._ask(library.nvmlDeviceGetPowerUsage), self._ask(library.nvmlDeviceGetEnforcedPowerLimit)
        values["power_usage_watts"] = None if power is None else power / 1000
        values["power_usage_percentage"] = 100 * power / limit if power is not None and limit else None
        values["temperature_celsius"] = self._ask(library.nvmlDeviceGetTemperature, library.NVML_TEMPERATURE_GPU)
        values["clock_megahertz"] = self._ask(library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_SM)
        return {name: float(value) for name, value in values.items() if value is not None}

    def joules(self) -> float | None:
        """Return the energy since `begin` in joules; None if the GPU does not report it."""
        now = self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption)
        if now is None or self._first_millijoules is None:
            return None
        return float(now - self._first_millijoules) / 1000

    def max_clock(self) -> float | None:
        """Return the highest clock of the GPU's processors in MHz; None if the GPU does not report it."""
        found = self._ask(self._library.nvmlDeviceGetMaxClockInfo, self._library.NVML_CLOCK_SM)
        return None if found is None else float(found)

    def _ask(self, question: Callable[..., Any], *more: Any) -> Any:
        with suppress(self._library.NVMLError):
            return question(self._handle, *more)
        return None


def joules_of(gpus: Sequence[Gpu]) -> float | None:
    """Return the energy of all GPUs together in joules; None without GPUs, or if one does not report it."""
    told = [gpu.joules() for gpu in gpus]
    known = [joules for joules in told if joules is not None]
    return sum(known) if known and len(known) == len(told) else None
