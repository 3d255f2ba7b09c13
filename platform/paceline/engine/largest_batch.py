"""`data.micro_batch_size: max`: the largest micro batch that fits into memory on every rank.

Sizes are tried by disposable steps before training: doubled until one does not fit, then bisected. The ranks agree
after each trial, so all of them find the same size.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline.config.batch_sizes import BatchSizes, OpenBatchSizes
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.free_memory import Memory, forget_peak, memory_of
from paceline.engine.manifest import STATE
from paceline.engine.reporter import Reporter
from paceline.engine.trial_steps import Parts, independent, quick_release, ran_out, release, trial_steps, undisturbed
from paceline.errors import TrainingError

START = 2
"""First size that is tried: with a single sample, BatchNorm may raise an error, since it cannot compute a variance."""
KEY = "largest_batch"
"""Key of the search's result in a checkpoint."""
SETTINGS = (
    "precision",
    "activation_checkpointing",
    "activation_checkpointing_blocks",
    "activation_memory_budget",
    "memory_format",
    "compile",
    "compile_scope",
    "remove_redundant_bias",
    "zero_grad",
)
"""Trainer settings that change the memory per sample, and that may differ in a run branched off another one."""


class LargestBatch:
    """The search of one run, and its record in the run's checkpoints."""

    def __init__(self, config: ExperimentConfig, asked: OpenBatchSizes, ranks: DistContext, reporter: Reporter) -> None:
        self._config = config
        self._asked = asked
        self._ranks = ranks
        self._reporter = reporter

    def settle(self, checkpoint: Path | None, parts: Parts) -> BatchSizes:
        """Return the batch sizes to train with. Every rank must call it.

        Args:
            checkpoint: valid checkpoint that training resumes from. The size that it records is used again: free
                memory varies a little from day to day, and another micro batch would change the last bits.
            parts: parts to make trial steps with.

        Raises:
            TrainingError: not even one sample fits.
        """
        saved = self._saved(checkpoint)
        sizes = self._asked.settled(saved or self._search(parts))
        self._report("batch", **asdict(sizes), text=sizes.text())
        if saved is None:
            self._report("stage", text="building the model and loading the data")
        return sizes

    def values(self, sizes: BatchSizes) -> dict[str, Any]:
        """Return the record for each checkpoint, as JSON values."""
        return {KEY: {"micro_batch_size": sizes.micro_batch_size, "found_for": self._circumstances()}}

    def _report(self, kind: str, **details: Any) -> None:
        if self._ranks.is_first:
            self._reporter.event(kind, **details)

    def _circumstances(self) -> dict[str, Any]:
        """Return the settings that the size depends on and that may change between two starts of a run."""
        device = self._ranks.device
        return {
            "world_size": self._ranks.world_size,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "cache": self._config.data.cache,
            "comm_hook": self._config.parallel.comm_hook,
            **self._config.trainer.model_dump(mode="json", include=set(SETTINGS)),
        }

    def _saved(self, checkpoint: Path | None) -> int | None:
        """Return the size recorded in a checkpoint under the same circumstances, else None; rank 0 reads it for all."""
        found = 0
        if checkpoint is not None and self._ranks.is_first:
            with suppress(KeyError):  # of a run that had a number
                saved = json.loads((checkpoint / STATE).read_bytes())[KEY]
                found = saved["micro_batch_size"] if saved["found_for"] == self._circumstances() else 0
        return int(self._ranks.from_first([float(found)])[0]) or None

    def _search(self, parts: Parts) -> int:
        self._report("stage", text="finding the largest micro batch that fits into memory")
        with quick_release():
            largest, failed = self._try_sizes(parts)
            release(self._ranks.device)
        if largest is None:
            workers = self._ranks.world_size
            raise TrainingError(
                self._nothing_fits(failed), "no-batch-fits", failed=failed, workers=workers
            ) from MemoryError()
        return largest

    def _try_sizes(self, parts: Parts) -> tuple[int | None, int]:
        """Return the largest size that fits, and the number of ranks on which the last size tried did not fit."""
        memory = memory_of(self._ranks)
        with undisturbed(self._ranks.device):
            own, (train_loader, validation_loaders) = independent(parts), parts.loaders()

        def steps(size: int) -> int:
            return trial_steps(self._config, own, train_loader, self._ranks, size)

        trials = Trials(steps, memory, self._ranks)
        try:
            return largest_that_fits(usable_sizes(self._asked.share), trials.fits), trials.failed
        finally:
            for loader in (train_loader, *validation_loaders.values()):
                loader.close()
            _forget_peak(self._ranks.device)

    def _nothing_fits(self, failed: int) -> str:
        trainer = self._config.trainer
        hints = ["take a smaller model"]
        if trainer.precision in ("32-true", "64-true"):
            hints.insert(0, "set trainer.precision: bf16-mixed")
        if trainer.activation_checkpointing == "none":
            hints.insert(0, "set trainer.activation_checkpointing: full")
        where = f" on {failed} of {self._ranks.world_size} workers" if self._ranks.world_size > 1 else ""
        return f"data.micro_batch_size max: not even one sample fits into memory{where}; {', or '.join(hints)}"


class Trials:
    """Trial steps on all ranks at once. Every rank must ask for the same sizes in the same order."""

    def __init__(self, steps: Callable[[int], int], memory: Memory, ranks: DistContext) -> None:
        self._steps = steps
        self._memory = memory
        self._ranks = ranks
        self.failed = 0
        """Number of ranks on which the last size did not fit."""

    def fits(self, size: int) -> bool:
        """Return True if steps with a micro batch of `size` samples fit on every rank."""
        return (
            self._on_every_rank(self._memory.expects(size))
            and self._on_every_rank(self._got_through(size))
            # the ranks have just synchronised, so all of them have released their memory
            and self._on_every_rank(self._memory.holds(size))
        )

    def _on_every_rank(self, yes: bool) -> bool:
        self.failed = int(self._ranks.sum_numbers([float(not yes)])[0])
        return self.failed == 0

    def _got_through(self, size: int) -> bool:
        def steps() -> None:
            extra = self._steps(size)
            self._memory.end(size, extra)

        self._memory.begin()
        try:
            return not ran_out(steps, self._ranks.device)
        except Exception as error:
            error.add_note(f"in a trial step with micro batches of {size} samples, for data.micro_batch_size max")
            raise


def usable_sizes(share: int) -> list[int]:
    """Return the micro batch sizes worth trying, ascending: each splits a share of samples into another number of them.

    They are the distinct ceil(share / n). Any other size takes as many micro batches as the next smaller size of these,
    so it need not be tried.
    """
    sizes, count = [], 1
    while (size := -(-share // count)) > 1:
        sizes.append(size)
        count = -(-share // (size - 1))
    return [1, *reversed(sizes)]


def largest_that_fits(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest of ascending sizes that fits; None if none fits. If a size fits, so must all smaller ones."""
    fitting, failing = -1, len(sizes)
    index = bisect_right(sizes, START) - 1
    while fitting + 1 < failing:
        if fits(sizes[index]):
            fitting = index
        else:
            failing = index
        if failing == len(sizes):
            index = max(bisect_right(sizes, 2 * sizes[fitting]) - 1, fitting + 1)
        else:
            index = (fitting + failing) // 2
    return sizes[fitting] if fitting >= 0 else None


def _forget_peak(device: torch.device) -> None:
    """Reset the peak memory, so that a run reports the peak of its training."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        forget_peak()
