"""Build the checkpointer and the checkpoint writer of a run, and resume from the newest checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.engine.checkpoint import Checkpointer
from paceline.engine.checkpoint_files import CheckpointStore, CheckpointWriter, Elsewhere, Files, newest_valid
from paceline.engine.data_stream import DataStream
from paceline.engine.dataset_identity import DataRecord
from paceline.engine.dist_context import DistContext, round_seconds_of
from paceline.engine.iterable_stream import IterableStream
from paceline.engine.reporter import Reporter
from paceline.engine.sharded_writing import ShardedWriter, can_share_files
from paceline.engine.state import TrainState
from paceline.engine.trainer import Trainer
from paceline.engine.unrecorded import UNRECORDED, as_file, metrics_of
from paceline.errors import text_of

RECORDED_SECONDS = 30.0
"""Seconds that a checkpoint waits at most until the metrics before it are recorded."""


def build_checkpointer(
    config: ExperimentConfig,
    state: TrainState,
    data: DataStream,
    settled: Mapping[str, Any],
    data_record: DataRecord | None,
    checkpoints: Path | None,
    ranks: DistContext,
    reporter: Reporter,
    store: CheckpointStore | None,
) -> Checkpointer:
    """Build the checkpointer of a rank; rank 0's writes.

    Args:
        settled: JSON values that every checkpoint keeps.
        data_record: record of the run's data, on rank 0.
        checkpoints: folder of the run's checkpoints; None saves none.
        store: where checkpoints count; None: the folder itself.
    """
    writer = build_writer(config, checkpoints, reporter, store) if checkpoints is not None and ranks.is_first else None
    timeout_seconds = config.parallel.timeout_seconds
    sharded = None
    # An object store takes whole files, which rank 0 uploads from its machine's copy of the run. Other machines have
    # copies of their own, so the state is gathered.
    if checkpoints is not None and store is None and state.layout.is_sliced and ranks.world_size > 1:
        sharded = _build_sharded_writer(checkpoints, ranks, reporter, timeout_seconds)
    is_enabled = checkpoints is not None
    checkpointer = Checkpointer(
        state, ranks, writer, is_enabled, data.identity, settled, timeout_seconds, data_record, sharded
    )
    if isinstance(data, IterableStream):
        checkpointer.register("data", data)
    return checkpointer


def _build_sharded_writer(
    checkpoints: Path, ranks: DistContext, reporter: Reporter, timeout_seconds: float
) -> ShardedWriter | None:
    """Build the writer with which all ranks write one checkpoint; None where the file system does not allow it."""
    if can_share_files(checkpoints, ranks, round_seconds_of(timeout_seconds)):
        return ShardedWriter(checkpoints, ranks)
    if ranks.is_first:
        message = (
            f"checkpoints are gathered on rank 0, which needs memory for the whole state: {checkpoints} is on a file "
            "system where workers cannot write to one file at the same time. Use another storage.path"
        )
        reporter.event("warning", message=message, code="checkpoints-gathered")
    return None


def build_writer(
    config: ExperimentConfig, checkpoints: Path, reporter: Reporter, store: CheckpointStore | None = None
) -> CheckpointWriter:
    """Build rank 0's writer, whose commits and failures are reported."""

    def wait_for_metrics() -> Files:
        if reporter.recorded(RECORDED_SECONDS) or not (left := reporter.unrecorded()):
            return {}
        kept = "they are kept in it, and recorded when training resumes from there"
        reporter.event(
            "warning",
            message=f"a checkpoint was saved before its metrics were recorded: {kept}",
            code="unrecorded-metrics",
        )
        return {UNRECORDED: as_file(checkpoints.parent.name, left)}

    def failed(step: int, error: Exception) -> None:
        if isinstance(error, OSError):
            code = "checkpoint-not-written"
            message = f"the checkpoint of step {step} could not be written: {error}; training continues without it"
        else:
            code = "checkpoint-not-stored"
            message = f"the checkpoint of step {step} is not in its store: {text_of(error)}; training continues"
        reporter.event("warning", message=message, code=code, step=step)

    def committed(step: int, path: Path) -> None:
        reporter.event("checkpoint", step=step, path=str(path) if store is None else store.place_of(step))

    elsewhere = None if store is None else Elsewhere(store, lambda: reporter.stored(RECORDED_SECONDS))
    return CheckpointWriter(checkpoints, config.checkpoint.keep, wait_for_metrics, committed, failed, elsewhere)


def find_newest(
    checkpoints: Path,
    ranks: DistContext,
    reporter: Reporter,
    config: ExperimentConfig,
    store: CheckpointStore | None = None,
) -> Path | None:
    """Return the newest valid checkpoint, or None; rank 0 chooses for all. Every rank must call it."""

    def warn_broken(path: Path, reason: str) -> None:
        message = f"checkpoint {path.name} is broken and was set aside: {reason}"
        reporter.event("warning", message=message, code="broken-checkpoint", checkpoint=path.name)

    def find() -> Path | None:
        if not ranks.is_first:
            return None
        if store is None:
            return newest_valid(checkpoints, warn_broken)
        return store.newest(warn_broken, lambda: reporter.stored(RECORDED_SECONDS))

    round_seconds = round_seconds_of(config.parallel.timeout_seconds)
    found = find() if store is None else ranks.each(find, round_seconds)
    step = int(ranks.from_first([float(found.name.removeprefix("step-")) if found else -1.0])[0])
    if step >= 0 and store is not None:
        ranks.each(lambda: store.fetch(step), round_seconds)
    return checkpoints / f"step-{step}" if step >= 0 else None


def resume(trainer: Trainer, checkpoint: Path) -> Mapping[str, Any]:
    """Resume from a valid checkpoint, and return its values. Every rank must call it."""
    values = trainer.checkpointer.load(checkpoint)
    writer = trainer.checkpointer.writer
    if writer is not None:
        if unrecorded := metrics_of(checkpoint):
            trainer.reporter.record_again(unrecorded)
        place = writer.place_of(checkpoint)
        trainer.reporter.event("resumed", step=trainer.state.position.step, path=place)
    return values


def continue_if_extended(state: TrainState, extended_from_step: int | None) -> bool:
    """Let a run continue that a callback had stopped and that the user extends; returns True if it had."""
    is_extended = extended_from_step is not None and state.position.step <= extended_from_step
    was_stopped_early = is_extended and state.is_stopped_early
    if was_stopped_early:
        state.is_stopped_early, state.stop_reason = False, ""
    return was_stopped_early
