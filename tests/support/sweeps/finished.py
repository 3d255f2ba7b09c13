"""Folders of sweeps as launches leave them behind."""

from collections.abc import Mapping
from pathlib import Path

from paceline.config import ExperimentConfig
from paceline.sweeps.sweep_folder import SweepFolder, claim_sweep
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking.journal import Journal
from paceline.tracking.run_record import RunRecord
from paceline.tracking.upload_cursor import UploadCursor

TRIALS = (
    Trial("0001", {"optimizer.lr": 0.1}, "finished", metrics={"val/accuracy": 0.7}, attempts=1),
    Trial("0000", {"optimizer.lr": 0.2}, "finished", metrics={"val/accuracy": 0.9}, attempts=2),
    Trial("0002", {"optimizer.lr": 0.3}, "running", attempts=1),
)


def leave_sweep(
    config: ExperimentConfig, storage: Path, status: str = "finished", trials: tuple[Trial, ...] = TRIALS[:2]
) -> SweepFolder:
    """Leave the folder and the journal of a sweep."""
    claimed = claim_sweep(config, storage, intent="new")
    claimed.folder.write(status=status)
    log = SweepLog(claimed.folder.path)
    for trial in trials:
        log.append([trial_entry(trial)])
    log.close()
    claimed.release()
    return claimed.folder


def record_sweep(folder: SweepFolder, uri: str, tags: Mapping[str, str], seconds: float = 7.0) -> None:
    """Leave the sweep's own record, which MLflow has as run `abc`."""
    folder.tracking.mkdir()
    record = RunRecord(folder.run_id, "compare", uri, "compare", start_time_ms=1_000_000)
    record.save(folder.tracking)
    journal = Journal(folder.tracking / "journal.jsonl")
    end = {"status": "FINISHED", "time_ms": round(1_000_000 + 1000 * seconds)}
    journal.append([("tags", {"tags": dict(tags)}), ("status", end)])
    journal.close()
    UploadCursor(run_id="abc", experiment_id="4").save(folder.tracking / "uploaded.json")
