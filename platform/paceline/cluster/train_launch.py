"""One launch of a run: everything that is settled before the first process starts, and how it ended."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from paceline.cluster.listener import WarningLog
from paceline.cluster.resume_rules import EXTENDED_FROM_STEP
from paceline.cluster.run_coordinator import Status
from paceline.cluster.run_costs import CostUnits, unit_of
from paceline.cluster.run_folder import SUMMARY, RunFolder, run_removed
from paceline.cluster.unfinished_runs import ClaimedRun
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.derived import Derived
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault
from paceline.redaction import redact
from paceline.tracking.costs import goal_of
from paceline.tracking.run_record import RunRecord

ABOUT_RECORDING = ("mlflow-offline", "unsent", "record-not-stored")
"""Codes of warnings that are out of date once somebody reads them in MLflow."""
CLOSE_SECONDS = 60.0
"""Seconds that the end of a run waits for MLflow; unsent entries stay in the journal."""


@dataclass(frozen=True)
class TrainLaunch:
    """Everything that is settled before the first process is started."""

    config: ExperimentConfig
    run: ClaimedRun[RunFolder]
    record: RunRecord
    derived: Derived
    address: str | None
    listener: WarningLog
    close_seconds: float = CLOSE_SECONDS
    """Seconds that the end of the run waits for MLflow."""
    began: float = field(default_factory=time.monotonic)
    """Time at which the command began with it, of `time.monotonic`."""
    wait_seconds: float = 0.0
    """Seconds to wait for a cluster that lacks free resources."""
    ending: dict[str, Any] | None = None
    """End of training in an earlier launch that died before it concluded the run; None: there is training left."""

    def note_ending(self, ending: dict[str, Any]) -> dict[str, Any]:
        """Write down that training was interrupted or has failed, before anything else can go wrong.

        Training that has finished is in the coordinator's outcome; the run itself is finished once it is concluded.

        Returns:
            How the run ended: as training did, or failed, with the `error`, if its folder is gone.
        """
        if self.run.folder.is_removed:
            error = run_removed(self.run.folder.path, ending.get("checkpoint", ""), self.run.store is not None)
            return {"status": "failed", "failure": {"reason": error.message}, "error": error}
        if ending["status"] != "finished":
            is_failed = ending["status"] != "stopped"
            reason = redact(ending["failure"]["reason"]) if is_failed else ""
            self._write("failed" if is_failed else "interrupted", next(iter(reason.splitlines()), ""))
        return ending

    def keep_warnings(self) -> tuple[str, ...]:
        """Write the warnings so far into the run's file; return them and those of earlier launches."""
        return self.run.folder.add_warnings(self.listener.warnings)

    def warnings_to_record(self) -> tuple[str, ...]:
        """Return the warnings for the run's note in MLflow; those of this launch alone if the run's file is damaged."""
        try:
            return to_record(self.keep_warnings())
        except EnvironmentFault:  # reported once the record is closed
            return to_record(self.listener.warnings)

    def conclude(self) -> None:
        """Write down that the run is finished: its command has answered, and the same command starts a new one."""
        self._write("finished")

    def _write(self, status: str, summary: str = "") -> None:
        try:
            self.run.folder.write(status=status, **{SUMMARY: summary})
        except OSError as error:
            message = f"that the run is {status} could not be written to {self.run.folder.path}: {error}"
            self.listener.event("warning", {"code": "not-written", "message": message})


def to_record(warnings: Iterable[str]) -> tuple[str, ...]:
    """Return the warnings without those about the recording itself."""
    return tuple(text for text in warnings if not text.endswith(tuple(f"[{code}]" for code in ABOUT_RECORDING)))


def closing_status(ending: dict[str, Any]) -> tuple[Status, str | None]:
    """Return MLflow's status for the end of a run, and the reason."""
    if ending["status"] == "finished":
        return "FINISHED", None
    if ending["status"] == "stopped":
        return "KILLED", "stopped by the user"
    return "FAILED", redact(ending["failure"]["reason"])  # a worker elsewhere does not know this machine's secrets


def counting(launch: TrainLaunch, use_gpu: bool, since: float) -> CostUnits:
    """Return the units in which the run's cost is counted.

    Args:
        since: time at which its processes were asked for, of `time.monotonic`.
    """
    tracking = launch.config.tracking
    unit, units = unit_of(launch.config, use_gpu)
    workers = max(1, launch.config.scaling.num_workers)
    return CostUnits(unit, units, tracking.price_per_hour, goal_of(launch.config), since, workers=workers)


def worker_spec(launch: TrainLaunch) -> WorkerSpec:
    """Return the work of each training process."""
    return WorkerSpec.of(
        launch.config,
        launch.address,
        checkpoints=str(launch.run.folder.checkpoints),
        store=launch.run.store,
        extended_from_step=launch.run.folder.read().get(EXTENDED_FROM_STEP),
    )
