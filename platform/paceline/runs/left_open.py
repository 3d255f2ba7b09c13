"""Ending of a run whose process died before it was recorded: found by the files that it has left."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from paceline.cluster.final_report import read_outcome
from paceline.cluster.finished_training import has_finished
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.train_launch import to_record
from paceline.config.experiment import ExperimentConfig
from paceline.config.sweep import SweepConfig
from paceline.errors import EnvironmentFault, PacelineError
from paceline.sweeps.states import ENDED
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import SweepHistory, read_log
from paceline.sweeps.trial import Trial
from paceline.tracking.run_record import DamagedRecord
from paceline.tracking.run_recorder import TRIAL_STATUS, FinalStatus

if TYPE_CHECKING:
    from paceline.sweeps.launch import SweepLaunch

Kind = Literal["run", "sweep", "trial", "other"]

GONE = "its process is gone"
GOES_ON = f"{GONE}; the same command resumes it"
STOPPED = "stopped by the user"


class Launched(NamedTuple):
    """Parts of a sweep's launch that a note needs."""

    config: ExperimentConfig
    sweep: SweepConfig
    folder: SweepFolder


@dataclass(frozen=True)
class Ending:
    """Status and reason to close a record with."""

    status: FinalStatus
    reason: str | None = None
    trial_state: str = ""
    """State of a sweep's trial that has ended; empty for all other records."""


@dataclass
class Owner:
    """A run, a sweep or a trial, by its folder; `other` is a record that none of them has."""

    kind: Kind
    folder: Path
    histories: dict[Path, SweepHistory] = field(default_factory=dict, repr=False)
    """The journals of sweeps that were read already, by the sweep's folder."""

    @classmethod
    def of(cls, tracking: Path, histories: dict[Path, SweepHistory]) -> "Owner":
        """Return the owner of the record in a folder."""
        folder = tracking.parent
        if (folder / RunFolder.FILE).is_file():
            return cls("run", folder)
        if (folder / SweepFolder.FILE).is_file():
            return cls("sweep", folder)
        if folder.parent.name == "trials" and (folder.parent.parent / SweepFolder.FILE).is_file():
            return cls("trial", folder, histories)
        return cls("other", folder)

    @cached_property
    def launched(self) -> RunFolder:
        """Return the folder that a command starts or continues: of a run or a sweep itself, of a trial its sweep's."""
        if self.kind == "run":
            return RunFolder(self.folder)
        return SweepFolder(self.folder.parent.parent if self.kind == "trial" else self.folder)

    @property
    def home(self) -> Path:
        """`<storage>/<name>`, which one command at a time works in."""
        return self.folder if self.kind == "other" else self.launched.path.parent

    @property
    def may_be_running(self) -> bool:
        """True if a command that works in `home` may be working on this."""
        return self.kind != "other" and self._is_newest and self._status() == "running"

    @property
    def trial(self) -> Trial | None:
        """Trial as recorded in the sweep's journal; None unless the owner is a trial."""
        if self.kind != "trial":
            return None
        sweep = self.launched.path
        if sweep not in self.histories:
            self.histories[sweep] = read_log(sweep)
        return self.histories[sweep].trials.get(self.folder.name)

    def ending(self) -> Ending:
        """Return status and reason with which it ended, given that no process works on it.

        Raises:
            EnvironmentFault: its file is damaged.
        """
        if self.kind == "trial":
            trial = self.trial
            if trial is not None and trial.state in ENDED:
                return Ending(TRIAL_STATUS.get(trial.state, "KILLED"), trial.reason or None, trial.state)
            return self._gone()
        status = "running" if self.kind == "other" else self._status()
        outcome = (read_outcome(self.folder / "tracking") if self.kind == "run" else None) or {"status": ""}
        if status == "finished" or has_finished(outcome):
            return Ending("FINISHED")
        if status == "interrupted":
            return Ending("KILLED", STOPPED)
        if status == "failed":
            failure = outcome.get("failure", {})
            return Ending("FAILED", failure.get("reason") or "it failed")
        return self._gone()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of a run, for its note; none of a sweep or a trial.

        Raises:
            EnvironmentFault: its file is damaged.
        """
        return to_record(self.launched.read().get("warnings", ())) if self.kind == "run" else ()

    def note(self, ending: Ending) -> str | None:
        """Markdown for the page of a sweep's own run: the results of its trials; None for the summary of its points."""
        if self.kind != "sweep":
            return None
        from paceline.sweeps.planning.planned_trials import section_of
        from paceline.sweeps.results.record import note_of
        from paceline.sweeps.results.reopening import sweep_in

        try:
            result = sweep_in(self.folder)
            left = Launched(result.config, section_of(result.config), SweepFolder(self.folder))
            status = "finished" if ending.status == "FINISHED" else "interrupted"
            # `sweep_in` takes whoever holds the name for the sweep's own process; here it is this one
            trials = [replace(each, state="pending") if each.state == "running" else each for each in result.trials]
            return note_of(cast("SweepLaunch", left), trials, status, ending.reason or "", result.cost)
        except PacelineError:  # its config is that of another version
            return None

    def _gone(self) -> Ending:
        may_resume = self.kind != "other" and self._is_newest and self._status() != "finished"
        return Ending("KILLED", GOES_ON if may_resume else GONE)

    def _status(self) -> str:
        return str(self.launched.read().get("status", ""))

    @cached_property
    def _is_newest(self) -> bool:
        """True if it is the one that the same command would find: the ids begin with the time."""
        own = self.launched
        return own.run_id == max(file.parent.name for file in self.home.glob(f"*/{own.FILE}"))


def damaged(error: Exception) -> str:
    """Return the message about a record that cannot be read."""
    if isinstance(error, EnvironmentFault):
        return error.message
    if isinstance(error, DamagedRecord):
        return f"its record cannot be read: {error.message}"
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return f"its folder cannot be read or written to: {place}{error.strerror or error}"
    reason = f"{type(error).__name__}: {error}"
    return f"its record cannot be read: {reason}; put its folder back from a copy, or move it away"
