"""`paceline sync`: sends to MLflow what runs could not send while they were in progress.

records under a folder  ->  name by name, unless somebody works on it  ->  sweeps, then their trials  ->  a line each
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import groupby, repeat
from pathlib import Path
from typing import Any

from paceline.cluster.run_folder import RunFolder
from paceline.engine.manifest import numbered
from paceline.engine.unrecorded import UNRECORDED, metrics_of
from paceline.errors import EnvironmentFault
from paceline.redaction import redact
from paceline.runs.alone import alone_with
from paceline.runs.left_open import Owner, damaged
from paceline.runs.sync_progress import SyncProgress, ignore_progress
from paceline.storage.in_progress import nobody_works_on
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import SweepHistory
from paceline.tracking.costs import COST_FILE, Ledger
from paceline.tracking.journal import JOURNAL_FILE
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.mlflow_probe import HINT_OF_SILENCE, PROBE_SECONDS, damaged_text, probe
from paceline.tracking.run_record import RECORD_FILE, RunRecord, address_of, saved_elsewhere, trial_state_tags
from paceline.tracking.run_recorder import RunRecorder, append_late, has_ended
from paceline.tracking.sync import sync
from paceline.tracking.tracking_uri import is_http, is_sqlite, sqlite_file
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor, unsent

AT_ONCE = 4
"""Number of records that are sent at the same time, such as those of a sweep's trials."""
PATIENCE_SECONDS = 30.0
"""Seconds that a record waits for MLflow without progress."""
_WITHOUT_RECORDS = ("checkpoints", "artifacts", "ray", "pinned")
"""Subfolders of runs, sweeps and trials with many files but without a record. A run may also have such a name."""


@dataclass(frozen=True)
class Synced:
    """Result of one record."""

    folder: str
    """Folder of the run, the sweep or the trial."""
    state: str
    """`complete`: MLflow has all entries; `left`: some are missing; `in progress`: the run's process or another sync
    sends them; `copy`: the folder is a copy, and the run's original folder still exists."""
    sent: int = 0
    """Entries that were sent: points, tags, files and the status."""
    left: int | None = 0
    """Number of entries that MLflow lacks; None if the record cannot be read."""
    reason: str = ""
    """Reason why the record is not complete; empty if it is."""
    url: str | None = None
    """The run's page."""
    run_id: str | None = None
    """MLflow's own id of the run."""
    needs_ui: bool = False
    """True if that page is available only while `paceline ui` runs."""


@dataclass(frozen=True)
class SyncReport:
    """Results of all records."""

    records: tuple[Synced, ...]
    silent: tuple[str, ...] = ()
    """Reason and next step for each tracking store that does not answer."""
    damaged: tuple[str, ...] = ()
    """Description of each damaged database, and how to repair it."""

    @property
    def is_complete(self) -> bool:
        """True if all records are sent, except those of runs in progress."""
        return all(record.state != "left" for record in self.records)

    def to_json(self) -> dict[str, Any]:
        """As `paceline sync --json` prints it."""
        return {
            "records": [asdict(record) for record in self.records],
            "sent": sum(record.sent for record in self.records),
            "left": sum(record.state == "left" for record in self.records),
            "in_progress": sum(record.state == "in progress" for record in self.records),
            "copies": sum(record.state == "copy" for record in self.records),
            "silent": list(self.silent),
            "damaged": list(self.damaged),
        }


@dataclass(frozen=True)
class _Found:
    """A record that is to be sent."""

    tracking: Path
    record: RunRecord
    owner: Owner

    @property
    def folder(self) -> str:
        return str(self.tracking.parent)


def sync_folder(
    folder: str | Path, uri: str | None = None, tell: Callable[[str], object] = ignore_progress
) -> SyncReport:
    """Send the unsent entries of all runs, sweeps and trials whose records are in a folder or below it.

    Metrics that only the newest checkpoint has are recorded first: their recorder was unavailable when training ended.
    A record that its process could not close is closed: with its trial's final state, or else as killed. Runs in
    progress are left alone. Entries that MLflow has already are not sent again, unless it has lost them.

    Args:
        folder: folder of a run, a sweep, a trial or a whole storage.
        uri: address of MLflow, which replaces the one that each run was started with.
        tell: called with a text about each wait and the progress.

    Raises:
        EnvironmentFault: the folder contains no record.
    """
    place = Path(folder).expanduser().absolute()
    found, unreadable = _records(place)
    if not found and not unreadable:
        what = "no run is recorded in it" if place.is_dir() else "there is no such folder"
        told = f"{place}: {what}; name the folder that holds the runs, such as runs"
        raise EnvironmentFault(told, "no-record" if place.is_dir() else "no-folder", path=place)
    found = [replace(each, record=replace(each.record, uri=address_of(each.record, uri))) for each in found]
    uris = {each.record.uri for each in found}
    broken = _broken(uris)
    silent = _silent(uris - broken.keys(), tell)
    unusable = {**dict.fromkeys(silent, "MLflow does not answer"), **dict.fromkeys(broken, "its database is damaged")}
    synced = [*unreadable]
    for each in found:
        if (reason := unusable.get(each.record.uri)) is not None:
            synced.append(Synced(each.folder, "left", 0, _unsent(each.tracking), reason))
    answering = [each for each in found if each.record.uri not in unusable]
    with SyncProgress(len(answering), PATIENCE_SECONDS, tell) as progress:
        for home, group in groupby(answering, lambda each: each.owner.home):
            synced += _sync_home(home, list(group), progress)
    return SyncReport(tuple(synced), tuple(silent.values()), tuple(broken.values()))


def _unsent(tracking: Path) -> int | None:
    try:
        return unsent(tracking)
    except OSError:
        return None


def _records(place: Path) -> tuple[list[_Found], list[Synced]]:
    """The records in a folder, name by name, and those that cannot be read."""
    histories: dict[Path, SweepHistory] = {}
    found: list[_Found] = []
    unreadable: list[Synced] = []
    for tracking in _with_parents(_folders(place)):
        owner = Owner.of(tracking, histories)
        try:
            found.append(_Found(tracking, RunRecord.load(tracking), owner))
        except (OSError, ValueError, TypeError, KeyError) as error:
            unreadable.append(Synced(str(tracking.parent), "left", 0, None, damaged(error)))
    return sorted(found, key=lambda each: (str(each.owner.home), str(each.tracking))), unreadable


def _folders(place: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(place):
        without = _WITHOUT_RECORDS if _is_launched(Path(folder), files) else ()
        inner[:] = [name for name in inner if name not in without and not name.startswith(".")]
        if RECORD_FILE in files and (JOURNAL_FILE in files or Path(folder).name == "tracking"):
            yield Path(folder)
            inner.clear()


def _is_launched(folder: Path, files: list[str]) -> bool:
    """Return True if a folder belongs to a run, a sweep or a trial; False if it contains them."""
    is_trial = folder.parent.name == "trials" and (folder.parents[1] / SweepFolder.FILE).is_file()
    return RunFolder.FILE in files or SweepFolder.FILE in files or is_trial


def _with_parents(folders: Iterable[Path]) -> list[Path]:
    """A trial that is named alone needs its sweep's own run in MLflow, too."""
    given = list(folders)
    sweeps = {
        each.parents[2] / "tracking" for each in given if len(each.parents) > 2 and each.parents[1].name == "trials"
    }
    return [*given, *(each for each in sweeps if each not in given and (each / RECORD_FILE).is_file())]


def _broken(uris: set[str]) -> dict[str, str]:
    """Return the addresses of damaged databases, and how to repair each. A missing database is created again."""
    found = {uri: damaged_text(file) for uri in sorted(uris) if (file := sqlite_file(uri)) is not None}
    return {uri: f"{text}, and sync again: it makes a new one with all runs" for uri, text in found.items() if text}


def _silent(uris: set[str], tell: Callable[[str], object]) -> dict[str, str]:
    """Return the addresses at which MLflow does not answer, with the reason and the next step."""
    silent = {}
    for uri in sorted(uris):
        if not is_sqlite(uri):  # a file answers at once
            tell(f"waiting for {redact(uri)} (up to {PROBE_SECONDS:g} s)")
        try:
            probe(uri)
        except EnvironmentFault as error:
            reason = error.message.removesuffix(f"; {HINT_OF_SILENCE}")
            silent[uri] = f"{reason}; start the server, or name the address that it has now with --uri"
    return silent


# --- the runs of one name ----------------------------------------------------------------------------------------


def _sync_home(home: Path, found: list[_Found], progress: SyncProgress) -> list[Synced]:
    try:
        with nobody_works_on(home) as nobody:
            return _sync_all(found, nobody, progress)
    except OSError as error:
        return [Synced(each.folder, "left", 0, None, f"{home} cannot be written to: {error}") for each in found]


def _sync_all(found: list[_Found], nobody: bool, progress: SyncProgress) -> list[Synced]:
    synced: dict[Path, Synced] = {}
    ready: list[_Found] = []
    for each in found:
        if (own := saved_elsewhere(each.tracking, each.record)) is not None:
            reason = f"a copy of {own.parent}, which is still there; sync that one, or move it away"
            synced[each.tracking] = Synced(each.folder, "copy", 0, None, reason)
            continue
        try:
            is_left_alone = not nobody and each.owner.may_be_running
        except EnvironmentFault as error:
            synced[each.tracking] = Synced(each.folder, "left", 0, None, damaged(error))
            continue
        if is_left_alone:
            reason = "it is in progress, and sends this itself"
            synced[each.tracking] = Synced(each.folder, "in progress", 0, None, reason)
        else:
            ready.append(each)
    with ThreadPoolExecutor(AT_ONCE, "sync") as threads:
        for are_children in (False, True):
            now = [each for each in ready if bool(each.record.parent) == are_children]
            missing = {each.record.run_id for each in ready if _is_missing(synced.get(each.tracking))}
            sent = threads.map(_sync_one, now, repeat(missing), repeat(progress))
            synced |= zip((each.tracking for each in now), sent, strict=False)
    return [synced[each.tracking] for each in found]


def _is_missing(synced: Synced | None) -> bool:
    """Return True if a record was tried, and has no run in MLflow for all that."""
    return synced is not None and synced.state == "left" and synced.run_id is None


def _sync_one(found: _Found, missing: set[str], progress: SyncProgress) -> Synced:
    try:
        with alone_with(found.tracking) as is_alone:
            synced = _send(found, missing) if is_alone else _sent_by_another(found)
    except OSError as error:
        synced = Synced(found.folder, "left", 0, None, redact(damaged(error)))
    progress.note(synced.sent)
    return synced


def _sent_by_another(found: _Found) -> Synced:
    return Synced(found.folder, "in progress", 0, None, "another sync sends this")


def _send(found: _Found, missing: set[str]) -> Synced:
    if found.record.parent in missing:
        return Synced(found.folder, "left", 0, None, "its sweep's own run has to be in MLflow first")
    if not (found.tracking / JOURNAL_FILE).is_file():
        reason = f"its {JOURNAL_FILE} is missing; put it back from a copy, into {found.tracking}"
        run_id = UploadCursor.load(found.tracking / CURSOR_FILE).run_id or None
        return Synced(found.folder, "left", 0, None, reason, run_id=run_id)
    try:
        lost = _take_up_unrecorded(found)
        _close_if_open(found)
        report = sync(found.tracking, found.record.uri, PATIENCE_SECONDS)
    except (OSError, ValueError, TypeError, KeyError, EnvironmentFault) as error:
        return Synced(found.folder, "left", 0, None, redact(damaged(error)))
    reason = report.error or lost
    state = "left" if report.unsent or reason else "complete"
    numbers, is_local = (report.sent, report.unsent), not is_http(found.record.uri)
    return Synced(found.folder, state, *numbers, reason, report.url, report.run_id, is_local)


def _take_up_unrecorded(found: _Found) -> str:
    """Record the metrics that only the newest checkpoint has. Resuming the run does the same.

    Returns the reason why they cannot be read; empty text if they can, or if there is no checkpoint.
    """
    newest = next((path for _, path in numbered(found.tracking.parent / "checkpoints")), None)
    if newest is None:
        return ""
    try:
        points = [MetricPoint.from_json(point) for reading in metrics_of(newest) for point in reading]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{newest / UNRECORDED} holds metrics, and cannot be read ({error}); remove it to do without them"
    if points:
        append_late(found.tracking, points)
    return ""


def _close_if_open(found: _Found) -> None:
    """Record the final state if the run's own process did not. A run that is resumed later opens its record again."""
    if has_ended(found.tracking):
        return
    ending = found.owner.ending()
    recorder = RunRecorder(found.tracking, RunRecord.load(found.tracking))
    if ending.trial_state:
        recorder.set_tags(trial_state_tags(ending.trial_state))
    ledger = Ledger.read(found.tracking)
    if ledger is not None:
        _record_cost(recorder, ledger)
    recorder.conclude(ending.status, ending.reason, found.owner.note(ending), ledger, found.owner.warnings)
    recorder.abandon()


def _record_cost(recorder: RunRecorder, ledger: Ledger) -> None:
    """Record the cost as a run does at its end, from the ledger that the run wrote last."""
    step = max((point.step for point in recorder.history()), default=0)
    now = int(time.time() * 1000)
    recorder.add_artifact(COST_FILE, json.dumps(ledger.to_json(), indent=1).encode())
    recorder.append([MetricPoint(key, value, step, now) for key, value in ledger.metrics().items()])
