"""Read-only copies of stored runs: only the files that are needed, apart from working copies."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from paceline.durable import write_durably
from paceline.engine.manifest import MANIFEST, BrokenCheckpoint
from paceline.errors import EnvironmentFault
from paceline.private_files import file_mode, make_folder
from paceline.storage.address import StoreAddress, parse
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_checkpoints import StoredCheckpoints
from paceline.storage.stored_record import RecordCopy
from paceline.storage.working_copies import CHECKPOINTS, STATUS, TRACKING, RunStore, cache_folder

COPIES = "copies"
SHOWN_NAMES = 8
"""Names that an error lists, at the most."""


def copied_run(text: str) -> tuple[Path, RunStore]:
    """A copy of a run's status, its record, and the manifests of its checkpoints; as they are now.

    Args:
        text: address of the run, or of the runs of a name: then it is the newest.

    Raises:
        ConfigError: it is no address that can be used.
        EnvironmentFault: the store cannot be used, or there is no run at the address; it says what there is.
    """
    run, status = _found(parse(text, "RUN"))
    folder = _folder_of(run)
    make_folder(folder)
    with FileLock(folder.parent / f".{run.run_id}.lock", mode=file_mode(folder.parent)):
        RecordCopy(RemoteFolder(run.address), folder / TRACKING).replace()
        checkpoints = folder / CHECKPOINTS
        kept = {f"step-{step}": data for step, _, data in StoredCheckpoints(run, checkpoints).kept()}
        for path in checkpoints.glob("step-*"):
            if path.name not in kept:
                shutil.rmtree(path)
        for name, data in kept.items():
            write_durably(checkpoints / name / MANIFEST, data)
        write_durably(folder / STATUS, status)
    return folder, run


def runs_below(address: StoreAddress) -> Iterator[RunStore]:
    """The run at an address, or all runs below it, name by name, the oldest of each first."""
    here = RemoteFolder(address.pinned())
    if here.read(STATUS) is not None:
        yield _run_at(address)
        return
    for name in here.folders():
        if (here / name).read(STATUS) is not None:
            yield _run_at(address / name)
            continue
        for run_id in (here / name).folders():
            if (here / name / run_id).read(STATUS) is not None:
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
        ConfigError: it is no address that can be used.
        EnvironmentFault: the store cannot be used, or there is no whole checkpoint at the address.
    """
    address = parse(text, "checkpoint")
    number = address.name.removeprefix("step-")
    if not number.isdigit() or address.parent.name != CHECKPOINTS:
        message = f"{address.bare} is no checkpoint's address, which ends with {CHECKPOINTS}/step-<n>"
        raise EnvironmentFault(message, "not-a-checkpoint", address=address.bare)
    try:
        return bring(_run_at(address.parent.parent), int(number))
    except BrokenCheckpoint as error:
        message = f"there is no whole checkpoint at {address.bare}: {error}"
        raise EnvironmentFault(message, "no-checkpoint", address=address.bare) from None


def _run_at(address: StoreAddress) -> RunStore:
    home = address.parent
    return RunStore(str(home.parent.pinned()), home.name, address.name, str(home.parent))


def _folder_of(run: RunStore) -> Path:
    return cache_folder() / COPIES / parse(run.storage).digest / run.name / run.run_id


def _found(address: StoreAddress) -> tuple[RunStore, bytes]:
    """The run at an address, or the newest one below it, and its file."""
    here = RemoteFolder(address.pinned())
    if (status := here.read(STATUS)) is not None:
        return _run_at(address), status
    names = here.folders()
    for run_id in reversed(names):
        if (status := (here / run_id).read(STATUS)) is not None:
            return _run_at(address / run_id), status
    there = f"there are {', '.join(names[-SHOWN_NAMES:])}" if names else "nothing is there"
    message = f"there is no run at {address.bare}: {there}; write STORAGE/NAME, or STORAGE/NAME/ID"
    raise EnvironmentFault(message, "no-run", address=address.bare, names=names)
