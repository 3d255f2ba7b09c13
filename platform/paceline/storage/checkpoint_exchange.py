"""Checkpoints that change hands between the trials of a stored sweep: copied by the store itself, manifest last.

trials/0001/checkpoints/step-40  --pin-->  trials/0001/pinned/step-40  --adopt-->  trials/0002/checkpoints/step-40
"""

import json
import secrets

from paceline.engine.manifest import MANIFEST, BrokenCheckpoint
from paceline.storage.address import StoreAddress
from paceline.storage.lease import Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.stored_checkpoints import ADOPTED, FINAL_SECONDS, StoredCheckpoints, files_of
from paceline.storage.working_copies import CHECKPOINTS, RunStore

PINNED = "pinned"
ORDER = "order.json"
"""The steps that are pinned, in the order in which they were."""


def pin_stored(trial: RunStore, step: int, keep: int) -> StoreAddress | None:
    """Copy a checkpoint of a trial to where training does not prune it; None when it is gone.

    Of the checkpoints that are pinned, the `keep` that were pinned last stay.

    Raises:
        StoreFault: the store cannot be used.
    """
    home = RemoteFolder(trial.address, FINAL_SECONDS)
    pinned = home / PINNED
    source, target = home / CHECKPOINTS / f"step-{step}", pinned / f"step-{step}"
    if not _is_same(source, target) and not _place(source, target):
        return None
    order = [each for each in _order(pinned) if each != step] + [step]
    for old in order[:-keep]:
        _remove(pinned / f"step-{old}")
    pinned.write(ORDER, json.dumps(order[-keep:]).encode())
    return target.address


def adopt_stored(pinned: StoreAddress, trial: RunStore) -> bool:
    """Make a pinned checkpoint the one that a trial resumes from; returns True if it is.

    What is there stays when the pinned one is gone, or was pinned by the trial itself: its newest one is at least as
    new then.

    Raises:
        StoreFault: the store cannot be used. The pinned one stays.
        LeaseLost: another machine continues with the sweep.
    """
    source = RemoteFolder(pinned, FINAL_SECONDS)
    checkpoints = RemoteFolder(trial.address, FINAL_SECONDS) / CHECKPOINTS
    target = checkpoints / pinned.name
    own = StoredCheckpoints(trial).whole_steps()
    if own and (pinned.parent.parent.place == trial.address.place or _is_newest(own, source, target)):
        return True
    if source.read(MANIFEST) is None:
        return False
    Lease(RemoteFolder(trial.home), trial.launch).require()
    checkpoints.write(ADOPTED, secrets.token_hex(8).encode())  # copies on other machines count no more
    if not _place(source, target):
        return False
    for step in own:
        if f"step-{step}" != pinned.name:
            _remove(checkpoints / f"step-{step}")
    return True


def _is_newest(own: list[int], source: RemoteFolder, target: RemoteFolder) -> bool:
    return f"step-{own[0]}" == target.address.name and _is_same(source, target)


def _is_same(one: RemoteFolder, other: RemoteFolder) -> bool:
    """Return True if two places hold the same checkpoint: their manifests vouch for every byte."""
    manifest = one.read(MANIFEST)
    return manifest is not None and manifest == other.read(MANIFEST)


def _place(source: RemoteFolder, target: RemoteFolder) -> bool:
    """Copy a whole checkpoint over another one; False when it is gone."""
    manifest = source.read(MANIFEST)
    if manifest is None:
        return False
    _remove(target)
    try:
        for name, size in files_of(manifest).items():
            source.copy(name, target, size)
    except (FileNotFoundError, BrokenCheckpoint):
        return False
    if source.read(MANIFEST) != manifest:  # it was being pruned meanwhile
        return False
    target.write(MANIFEST, manifest)
    return True


def _remove(checkpoint: RemoteFolder) -> None:
    checkpoint.remove(MANIFEST)
    checkpoint.remove_all()


def _order(pinned: RemoteFolder) -> list[int]:
    try:
        return [int(step) for step in json.loads(pinned.read(ORDER) or b"[]")]
    except (ValueError, TypeError):
        return []
