"""Speed and memory of this process, measured without making the device wait."""

import resource
import sys
from pathlib import Path
from time import perf_counter

import torch

STATUS = Path("/proc/self/status")


class Meter:
    """Counts steps, samples and time between two readings, and over the whole run. Evaluation does not count."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start = perf_counter()
        self._excluded = 0.0
        self._steps = self._samples = 0
        self._waited = 0.0
        self._first_window: tuple[int, float] | None = None
        self._later_samples, self._later_seconds = 0, 0.0

    def count(self, samples: int) -> None:
        """Count one optimizer step over `samples` samples of the global batch."""
        self._steps += 1
        self._samples += samples

    def exclude(self, seconds: float) -> None:
        """Leave time out that was not spent on training."""
        self._excluded += seconds

    def rate(self) -> float:
        """Samples per second since the last reading."""
        return self._samples / max(perf_counter() - self._start - self._excluded, 1e-9)

    def read(self, waited_seconds: float) -> dict[str, float]:
        """Metrics since the last reading; `waited_seconds` is the time spent waiting for data since the start."""
        now = perf_counter()
        seconds = max(now - self._start - self._excluded, 1e-9)
        values = {
            "samples_per_second": self._samples / seconds,
            "step_seconds": seconds / max(self._steps, 1),
            "data_wait_fraction": min((waited_seconds - self._waited) / seconds, 1.0),
            "peak_memory_bytes": float(peak_memory_bytes(self._device)),
        }
        self._remember(seconds)
        self._start, self._excluded, self._waited = now, 0.0, waited_seconds
        self._steps = self._samples = 0
        return values

    def overall_rate(self) -> float:
        """Samples per second over the run so far; without its first window, in which things warm up, if it has more."""
        samples, seconds = self._later_samples, self._later_seconds
        if not seconds:
            samples, seconds = self._first_window or (0, 0.0)
        return samples / seconds if seconds else 0.0

    def _remember(self, seconds: float) -> None:
        if self._first_window is None:
            self._first_window = self._samples, seconds
            return
        self._later_samples += self._samples
        self._later_seconds += seconds


def peak_memory_bytes(device: torch.device) -> int:
    """Peak of the memory allocated on a GPU, or of the process's resident memory on CPU, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return _peak_resident_bytes()


def _peak_resident_bytes() -> int:
    """Where Linux tells it, since the peak was last forgotten: see `free_memory.forget_peak`. Else since the start."""
    try:
        status = STATUS.read_text()
        return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
