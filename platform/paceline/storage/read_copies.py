"""Read-only copies of stored runs: only the files that are needed, apart from working copies."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from filelock import FileLock

from paceline.durable import write_durably
from paceline.engine.manifest import MANIFEST, STATE, BrokenCheckpoint
from paceline.errors import EnvironmentFault
from paceline.private_files import file_mode, make_folder
from paceline.storage.address import (
    CHECKPOINTS,
    STATUS,
    SWEEP_BEST,
    SWEEP_LOG,
    SWEEP_STATUS,
    TRACKING,
    TRIALS,
    RunStore,
    StoreAddress,
    cache_folder,
    parse,
)
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_checkpoints import StoredCheckpoints, files_of
from paceline.storage.stored_record import AT_ONCE, RecordCopy, StoredLog

Kind = Literal["run", "sweep", "trial"]
COPIES = "copies"
SHOWN_NAMES = 8
"""Names that an error lists, at the most."""


def copied_run(text: str) -> tuple[Kind, Path, RunStore]:
    """A copy of a run, a sweep or a trial as it is now: its status, its record, and the manifests of its checkpoints;
    of a sweep its log and the records of its trials.

    Args:
        text: address of the run, or of the runs of a name: then it is the newest.

    Returns:
        What it is, its folder, and its place in the store.

    Raises:
        ConfigError: the address cannot be used.
        EnvironmentFault: the store cannot be used, or there is no run at the address; it says what there is.
    """
    kind, run = _found(parse(text, "RUN"))
    folder = _folder_of(run)
    if kind == "trial":
        _copy_sweep(_run_at(run.address.parent.parent), with_trials=False)
        return kind, copied_trial(run), run
    if kind == "sweep":
        _copy_sweep(run)
    else:
        with _alone_with(folder):
            status = RemoteFolder(run.address).read(STATUS) or b""
            _copy_record(run, may_remember=_has_origin(status))
            write_durably(folder / STATUS, status)
    return kind, folder, run


def _has_origin(status: bytes) -> bool:
    """Return True for the file of a run that began with another one's checkpoint."""
    try:
        return not {"extended_from", "forked_from"}.isdisjoint(json.loads(status))
    except (ValueError, TypeError):
        return False


def copied_trial(trial: RunStore) -> Path:
    """A copy of the record of a trial, and of the manifests of its checkpoints.

    Raises:
        EnvironmentFault: the store cannot be used.
    """
    folder = _folder_of(trial)
    with _alone_with(folder):
        _copy_record(trial)
    return folder


def _copy_sweep(sweep: RunStore, with_trials: bool = True) -> None:
    folder, remote = _folder_of(sweep), RemoteFolder(sweep.address)
    with _alone_with(folder):
        for name in (SWEEP_STATUS, SWEEP_BEST):
            if data := remote.read(name):
                write_durably(folder / name, data)
            else:
                (folder / name).unlink(missing_ok=True)
        StoredLog(remote / SWEEP_LOG, folder / SWEEP_LOG).take_over(may_be_ahead=False)
        RecordCopy(remote, folder / TRACKING).replace()
        if with_trials:
            copies = [
                RecordCopy(remote / TRIALS / name, folder / TRIALS / name / TRACKING)
                for name in (remote / TRIALS).folders()
            ]
            with ThreadPoolExecutor(AT_ONCE, "copy-record") as threads:
                list(threads.map(RecordCopy.replace, copies))


def _copy_record(run: RunStore, may_remember: bool = False) -> None:
    """Copy what a run has recorded, and the manifests of its checkpoints.

    Args:
        may_remember: copy the values in its newest checkpoint as well, which tell the best evaluations of a run that it
            began with.
    """
    folder = _folder_of(run)
    RecordCopy(RemoteFolder(run.address), folder / TRACKING).replace()
    checkpoints = folder / CHECKPOINTS
    found = StoredCheckpoints(run, checkpoints).kept()
    kept = {f"step-{step}": data for step, _, data in found}
    for path in checkpoints.glob("step-*"):
        if path.name not in kept:
            shutil.rmtree(path)
    for name, data in kept.items():
        write_durably(checkpoints / name / MANIFEST, data)
    for step, _, data in found[:1] if may_remember else []:
        state = (RemoteFolder(run.address) / CHECKPOINTS / f"step-{step}").read(STATE)
        if state is not None and len(state) == files_of(data).get(STATE):
            write_durably(checkpoints / f"step-{step}" / STATE, state)


def _alone_with(folder: Path) -> FileLock:
    make_folder(folder)
    return FileLock(folder.parent / f".{folder.name}.lock", mode=file_mode(folder.parent))


def runs_below(address: StoreAddress, sweeps: bool = False) -> Iterator[RunStore]:
    """The run at an address, or all runs below it, name by name, the oldest of each first.

    Args:
        sweeps: sweeps as well; a trial stands for its sweep.
    """
    files = (STATUS, SWEEP_STATUS) if sweeps else (STATUS,)
    sweep = _sweep_of(address) if sweeps else None
    if sweep is not None:
        yield _run_at(sweep)
        return

    def is_run(place: StoreAddress) -> bool:
        return any(RemoteFolder(place.pinned()).read(file) is not None for file in files)

    if is_run(address):
        yield _run_at(address)
        return
    for name in RemoteFolder(address.pinned()).folders():
        if is_run(address / name):
            yield _run_at(address / name)
            continue
        for run_id in RemoteFolder((address / name).pinned()).folders():
            if is_run(address / name / run_id):
                yield _run_at(address / name / run_id)


def bring(run: RunStore, step: int) -> Path:
    """The copy of a checkpoint, whose every byte is as its manifest says.

    Raises:
        BrokenCheckpoint: the one in the store is not whole.
        EnvironmentFault: the store cannot be used.
    """
    return StoredCheckpoints(run, _folder_of(run) / CHECKPOINTS).bring(step)


def brought(text: str) -> Path:
    """The copy of the checkpoint at an address.

    Raises:
        ConfigError: the address cannot be used.
        EnvironmentFault: the store cannot be used, or there is no whole checkpoint at the address.
    """
    address = parse(text, "checkpoint")
    number = address.name.removeprefix("step-")
    if not number.isdigit() or address.parent.name != CHECKPOINTS:
        message = f"{address.bare} is not the address of a checkpoint, which ends with {CHECKPOINTS}/step-<n>"
        raise EnvironmentFault(message, "not-a-checkpoint", address=address.bare)
    try:
        return bring(_run_at(address.parent.parent), int(number))
    except BrokenCheckpoint as error:
        message = f"there is no whole checkpoint at {address.bare}: {error}"
        raise EnvironmentFault(message, "no-checkpoint", address=address.bare) from None


def _run_at(address: StoreAddress) -> RunStore:
    sweep = _sweep_of(address)
    if sweep is not None:
        return _run_at(sweep).trial(address.name)
    home = address.parent
    return RunStore(str(home.parent.pinned()), home.name, address.name, str(home.parent))


def _folder_of(run: RunStore) -> Path:
    return cache_folder() / COPIES / parse(run.storage).digest / run.name / run.run_id


def _sweep_of(address: StoreAddress) -> StoreAddress | None:
    """Place of the sweep that a trial's place is below; None for any other place. A run may be named `trials`."""
    sweep = address.parent.parent
    if address.parent.name != TRIALS or RemoteFolder(sweep.pinned()).read(SWEEP_STATUS) is None:
        return None
    return sweep


def trial_at(address: StoreAddress) -> RunStore | None:
    """Return the trial at an address, which may be written without `trials`; None where there is none."""
    for trial in (address, address.parent / TRIALS / address.name):
        if _sweep_of(trial) is not None and RemoteFolder(trial.pinned()).folders():
            return _run_at(trial)
    return None


def _kind_at(here: RemoteFolder) -> Kind | None:
    if here.read(STATUS) is not None:
        return "run"
    return "sweep" if here.read(SWEEP_STATUS) is not None else None


def _found(address: StoreAddress) -> tuple[Kind, RunStore]:
    """The run at an address, or the newest one below it."""
    here = RemoteFolder(address.pinned())
    if (kind := _kind_at(here)) is not None:
        return kind, _run_at(address)
    if (trial := trial_at(address)) is not None:
        return "trial", trial
    names = here.folders()
    for run_id in reversed(names):
        if (kind := _kind_at(here / run_id)) is not None:
            return kind, _run_at(address / run_id)
    there = f"there are {', '.join(names[-SHOWN_NAMES:])}" if names else "nothing is there"
    message = f"there is no run at {address.bare}: {there}; write STORAGE/NAME, or STORAGE/NAME/ID"
    raise EnvironmentFault(message, "no-run", address=address.bare, names=names)
