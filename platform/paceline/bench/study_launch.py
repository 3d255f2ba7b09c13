"""Launch of a study: the checks before it, its folder and journal, and the status it leaves when it is interrupted."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from paceline.bench.job_log import JobLog
from paceline.bench.jobs import StudyKind
from paceline.bench.machine_load import warn_of_load
from paceline.bench.study_folder import StudyFolder
from paceline.cluster.listener import Stages
from paceline.cluster.preflight import check_this_machine, require_shared_places, warn_of_fixed_size
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import SUMMARY, storage_folder, writable
from paceline.cluster.train import close_seconds_of
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, Unfinished, claim
from paceline.config.experiment import ExperimentConfig
from paceline.errors import first_line
from paceline.redaction import redact
from paceline.tracking.tracking_uri import start_creating, tracking_uri

F = TypeVar("F", bound=StudyFolder)


@dataclass(frozen=True)
class StudyLaunch:
    """The study to work on, and the place where it is measured."""

    intent: Intent
    address: str | None
    wait_seconds: float


@dataclass(frozen=True)
class StudyPlace(Generic[F]):
    """Everything that is settled before the first process is started."""

    config: ExperimentConfig
    """With the initial weights pinned."""
    folder: F
    log: JobLog
    uri: str
    close_seconds: float
    notes: tuple[str, ...] = ()
    """Notes on the machine, from this launch and the earlier ones."""


def claim_study(
    unfinished: Unfinished[F], config: ExperimentConfig, storage: Path, intent: Intent = "continue"
) -> ClaimedRun[F]:
    """Continue the newest unfinished study of a kind and of the config's name, or start a new one.

    Raises:
        EnvironmentFault: the storage is not writable, or a run, sweep or study of this name is running.
        ConfigError: the unfinished study has another config, or there is none to resume.
    """
    return claim(storage / config.name, lambda home: unfinished.choose(home, config, intent))


@contextmanager
def opened_study(
    config: ExperimentConfig,
    study: StudyKind,
    unfinished: Unfinished[F],
    launch: StudyLaunch,
    listener: Stages,
    failures: tuple[type[BaseException], ...],
) -> Iterator[StudyPlace[F]]:
    """Check the place, and claim the folder of the newest unfinished study, or of a new one. The body sets the status
    of one that has finished.

    Args:
        failures: exceptions of the body after which the study cannot be resumed; after any other it can.

    Raises:
        EnvironmentFault: the machine, the cluster, the storage or MLflow cannot be used, or a command is at work on
            the name.
        ConfigError: the unfinished study has another config, or there is none to resume.
    """
    notes = warn_of_load(launch.address, listener)
    storage = storage_folder(config)
    warn_of_fixed_size(config, f"a {study.noun}", listener)
    if on_cluster(launch.address):
        require_shared_places(config)
    else:
        check_this_machine(config)
    pinned = unfinished.with_weights(config, storage / config.name, launch.intent)
    uri = tracking_uri(config.tracking, Path.cwd())
    close_seconds = close_seconds_of(uri, config.tracking.offline, listener)
    claimed = claim_study(unfinished, pinned, storage, launch.intent)
    try:
        start_creating(uri)
        with closing(JobLog(claimed.folder.path, config.scaling.num_workers == 0)) as log:
            yield StudyPlace(pinned, claimed.folder, log, uri, close_seconds, _noted(claimed.folder, notes))
    except BaseException as error:
        with suppress(OSError):
            has_failed = isinstance(error, failures)
            reason = redact(first_line(error)) if has_failed else ""
            claimed.folder.write(status="failed" if has_failed else "interrupted", **{SUMMARY: reason})
            if has_failed:
                claimed.folder.clear()
        if isinstance(error, KeyboardInterrupt):
            hint = "--resume in place of --new" if launch.intent == "new" else "the same command"
            listener.stage(f"interrupted: {hint} resumes {claimed.folder.run_id}")
        raise
    finally:
        claimed.release()


def _noted(folder: StudyFolder, notes: list[str]) -> tuple[str, ...]:
    """Add notes to the folder, and return all that it has."""
    known = folder.read().get("notes", [])
    if notes:
        with writable(folder.path):
            folder.write(notes=[*known, *notes])
    return (*known, *notes)
