"""`paceline sync` for an address: the runs and sweeps of an object store, in working copies of this machine.

runs below the address  ->  lease on the name  ->  the newest record here  ->  sync, while the store is kept up
"""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from paceline.cluster.run_folder import RunFolder, writable
from paceline.durable import write_durably
from paceline.engine.unrecorded import UNRECORDED
from paceline.errors import EnvironmentFault
from paceline.runs.sync import Synced, SyncReport, sync_folder
from paceline.runs.sync_progress import ignore_progress
from paceline.storage.address import LAUNCH, TRIALS, RunStore, parse
from paceline.storage.lease import Lease
from paceline.storage.read_copies import runs_below
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.run_keeper import RunKeeper
from paceline.storage.store_faults import LeaseLost
from paceline.storage.stored_checkpoints import StoredCheckpoints
from paceline.storage.stored_record import RecordCopy
from paceline.sweeps.stored_sweep import SweepCopy
from paceline.sweeps.sweep_folder import SweepFolder

Tell = Callable[[str], object]


def sync_address(text: str, uri: str | None = None, tell: Tell = ignore_progress) -> SyncReport:
    """Send what is left of all runs at an address or below it, see `sync_folder`.

    Args:
        text: address of a run, of the runs of a name, or of a whole storage.

    Raises:
        ConfigError: the address cannot be used.
        EnvironmentFault: the store cannot be used, or there is no run.
    """
    records: list[Synced] = []
    silent: list[str] = []
    damaged: list[str] = []
    for run in runs_below(parse(text, "DIR"), sweeps=True):
        for report in _sync_run(replace(run, launch=secrets.token_hex(8)), uri, tell):
            records += [replace(record, folder=_shown_place(run, record)) for record in report.records]
            silent += report.silent
            damaged += report.damaged
    if not records:
        told = f"{text}: no run is recorded in it; name the address that holds the runs"
        raise EnvironmentFault(told, "no-record", path=text)
    return SyncReport(tuple(records), tuple(dict.fromkeys(silent)), tuple(dict.fromkeys(damaged)))


def _shown_place(run: RunStore, record: Synced) -> str:
    """Address of a run, a sweep or a trial, whose folder on this machine is synced."""
    own = Path(record.folder).relative_to(run.folder).as_posix() if record.folder else "."
    address = run.shown_address()
    return str(address if own == "." else address / own)


def _sync_run(run: RunStore, uri: str | None, tell: Tell) -> Iterator[SyncReport]:
    lease = Lease(RemoteFolder(run.home), run.launch)
    try:
        lease.take(tell)
    except (EnvironmentFault, LeaseLost) as fault:
        yield SyncReport((Synced("", "in progress", reason=fault.message),))
        return
    keeper: RunKeeper | None = None
    try:
        with writable(run.folder), lease.renewed():
            keeper = _prepared(run, lease)
        keeper.start()
        yield sync_folder(run.folder, uri, tell)
        keeper.settle(tell)
    except LeaseLost as fault:
        yield SyncReport((Synced("", "in progress", reason=fault.message),))
    except EnvironmentFault as fault:
        if fault.code != "no-record":  # a launch that was refused at once, or died, has left none
            yield SyncReport((Synced("", "left", reason=fault.message),))
    finally:
        if keeper is None:
            lease.release()
        else:
            keeper.release()


def _prepared(run: RunStore, lease: Lease) -> RunKeeper:
    """Return the keeper of the store for the working copy, which is made or brought up to date."""
    remote = RemoteFolder(run.address)
    status = remote.read(RunFolder.FILE)
    is_sweep = status is None
    folder = SweepFolder(run.folder) if is_sweep else RunFolder(run.folder)
    status = (remote.read(folder.FILE) if is_sweep else status) or b"{}"
    copy = SweepCopy(run, may_resend=True) if is_sweep else RecordCopy(remote, folder.tracking)
    copy.take_over(may_be_ahead=folder.read().get(LAUNCH) == json.loads(status).get(LAUNCH))
    write_durably(folder.path / folder.FILE, status)
    trials = [run.trial(trial_id) for trial_id in (remote / TRIALS).folders()] if is_sweep else [run]
    for each in trials:
        _bring_unrecorded(each)
    return RunKeeper(run, folder.path / folder.FILE, copy, lease)


def _bring_unrecorded(run: RunStore) -> None:
    """Bring the newest checkpoint of a run or a trial if it has metrics that nothing else has."""
    checkpoints = StoredCheckpoints(run)
    for step, _, manifest in checkpoints.kept()[:1]:
        if UNRECORDED.encode() in manifest:
            checkpoints.bring(step)
