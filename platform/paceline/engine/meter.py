"""Speed and memory of this process, measured without making the device wait."""

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

STATUS = Path("/proc/self/status")


class Stretch(NamedTuple):
    """A part of the training over which speed is measured."""

    samples: int = 0
    seconds: float = 0.0
    steps: int = 0


class Meter:
    """Counts steps, samples and time between two readings, and over the whole run. Evaluation does not count."""

    def __init__(self, drain: Callable[[], None] | None = None) -> None:
        """Args:
        drain: waits for the work queued on the device; None if the device has no queue.
        """
        self._drain = drain
        self._start = perf_counter()
        self._excluded = 0.0
        self._steps = self._samples = 0
        self._waited = 0.0
        self._first_window: Stretch | None = None
        self._later = Stretch()
        self._others: dict[str, float] = {}
        self._loop: tuple[float, float] | None = None

    def count(self, samples: int) -> None:
        """Count one optimizer step over `samples` samples of the global batch."""
        self._steps += 1
        self._samples += samples

    def exclude(self, seconds: float, spent_on: str) -> None:
        """Leave out time that was spent on something other than training, such as `evaluation`."""
        self._excluded += seconds
        self._others[spent_on] = self._others.get(spent_on, 0.0) + seconds

    @contextmanager
    def excluded(self, spent_on: str) -> Iterator[None]:
        """Leave out the time of the body. Waits for the device first, so that queued training counts as training."""
        if self._drain is not None:
            self._drain()
        start = perf_counter()
        try:
            yield
        finally:
            if self._drain is not None:
                self._drain()
            self.exclude(perf_counter() - start, spent_on)

    def end_loop(self, begun: float) -> None:
        """Note the end of the training loop, which began at `begun`, a time of `perf_counter`."""
        self._loop = begun, perf_counter()

    def split(self) -> dict[str, float]:
        """Return the seconds since the loop began, by activity.

        These are `training`, `evaluation`, `checkpoints`, `waiting` for answers at rungs, and `closing`, all time since
        the end of the loop.
        """
        if self._loop is None:
            return {}
        begun, over = self._loop
        training = over - begun - sum(self._others.values())
        return {"training": training, **self._others, "closing": perf_counter() - over}

    def rate(self) -> float:
        """Return the samples per second since the last reading."""
        return self._samples / max(perf_counter() - self._start - self._excluded, 1e-9)

    def read(self, waited_seconds: float) -> dict[str, float]:
        """Return metrics since the last reading; `waited_seconds` are those spent waiting for data since the start."""
        now = perf_counter()
        seconds = max(now - self._start - self._excluded, 1e-9)
        values = {
            "samples_per_second": self._samples / seconds,
            "step_seconds": seconds / max(self._steps, 1),
            "data_wait_fraction": min((waited_seconds - self._waited) / seconds, 1.0),
        }
        self._remember(seconds)
        self._start, self._excluded, self._waited = now, 0.0, waited_seconds
        self._steps = self._samples = 0
        return values

    def waited(self, waited_seconds: float) -> float:
        """Return the seconds waited for data since the last reading.

        Args:
            waited_seconds: seconds waited for data since the start.
        """
        return waited_seconds - self._waited

    def overall_rate(self) -> float:
        """Return the samples per second over the run so far, without the first window (warm-up) if there are more."""
        _, measured = self._warm_up_and_measured()
        return measured.samples / measured.seconds if measured.seconds else 0.0

    def overall(self) -> dict[str, float]:
        """Return the overall rate as a metric; empty if nothing was measured."""
        rate = self.overall_rate()
        return {"samples_per_second_overall": rate} if rate else {}

    def stretches(self) -> dict[str, float]:
        """Return the extent of the warm-up that `overall_rate` leaves out, and of the part that it measures.

        These are `warm_up_steps`, `warm_up_seconds`, `measured_steps` and `measured_seconds`.
        """
        warm_up, measured = self._warm_up_and_measured()
        return {
            "warm_up_steps": warm_up.steps,
            "warm_up_seconds": warm_up.seconds,
            "measured_steps": measured.steps,
            "measured_seconds": measured.seconds,
        }

    def _warm_up_and_measured(self) -> tuple[Stretch, Stretch]:
        first = self._first_window or Stretch()
        return (first, self._later) if self._later.seconds else (Stretch(), first)

    def _remember(self, seconds: float) -> None:
        if self._first_window is None:
            self._first_window = Stretch(self._samples, seconds, self._steps)
            return
        samples, later_seconds, steps = self._later
        self._later = Stretch(samples + self._samples, later_seconds + seconds, steps + self._steps)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak of the memory allocated on a GPU, or of the process's resident memory on CPU, in bytes."""
    return memory_bytes(device)[0]


def memory_bytes(device: torch.device) -> tuple[int, int]:
    """Return the peak, and the memory that is allocated now, in bytes; on CPU the resident memory."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device)), int(torch.cuda.memory_allocated(device))
    return _resident_bytes()


def _resident_bytes() -> tuple[int, int]:
    """Return the peak of the resident memory and its present value, in bytes.

    On Linux, the peak is that since `free_memory.forget_peak` was last called. Elsewhere, both are the peak since the
    start.
    """
    try:
        with STATUS.open("rb", buffering=0) as file:  # half the time of `read_text`
            status = file.read()
        return _kibibytes(status, b"VmHWM:") * 1024, _kibibytes(status, b"VmRSS:") * 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return peak, peak


def _kibibytes(status: bytes, key: bytes) -> int:
    return int(status.partition(key)[2].split(maxsplit=1)[0])
