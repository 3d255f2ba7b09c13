"""Checkpoints that one trial takes over from another: pinned against pruning, and adopted."""

import shutil
from contextlib import suppress
from pathlib import Path

from paceline.cluster.run_identity import link_or_copy
from paceline.engine.manifest import MANIFEST, numbered
from paceline.private_files import make_folder, restrict

PINS = 3
"""How many pinned checkpoints of a trial stay: another one may be about to take over the last but one."""


def pin(checkpoint: Path, folder: Path, keep: int = PINS) -> Path | None:
    """A second name for a checkpoint, under which training does not prune it; None when it is gone.

    The files are linked where the file system can, so that they take no more room. Of the checkpoints pinned in
    `folder`, the `keep` that were pinned last stay.

    Raises:
        OSError: the disk is full or not writable. What was pinned before stays.
    """
    pinned = folder / checkpoint.name
    if not is_same(checkpoint, pinned) and not _place(checkpoint, pinned):
        return None
    pinned.touch()
    newest_first = sorted(numbered(folder), key=lambda entry: entry[1].stat().st_mtime_ns, reverse=True)
    for _, old in newest_first[keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return pinned


def adopt(pinned: Path, checkpoints: Path) -> bool:
    """Make a pinned checkpoint the one that training in `checkpoints` resumes from; returns whether it is.

    What is there stays when the pinned one is gone, or was pinned from there, as the newest of `checkpoints` is then
    at least as new.

    Raises:
        OSError: the disk is full or not writable. What is there stays.
    """
    own = [path for _, path in numbered(checkpoints)]
    if own and (own[0].name == pinned.name and is_same(pinned, own[0])):
        return True
    if own and pinned.parent.parent == checkpoints.parent:
        return True
    if not _place(pinned, checkpoints / pinned.name):
        return False
    for path in own:
        if path.name != pinned.name:
            shutil.rmtree(path)
    return True


def is_same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same checkpoint; their manifests vouch for every byte."""
    try:
        return (one / MANIFEST).read_bytes() == (other / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _place(checkpoint: Path, target: Path) -> bool:
    """Put a checkpoint in a place as a whole, over another one; False when it is gone."""
    temporary = target.with_name(f".{target.name}.linking")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        make_folder(target.parent)
        shutil.copytree(checkpoint, temporary, copy_function=link_or_copy)
        restrict(temporary)
        if not is_same(checkpoint, temporary):  # it was being pruned meanwhile
            return False
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except FileNotFoundError:
        return False
    except shutil.Error as error:  # what copytree makes of the errors about single files
        if not (checkpoint / MANIFEST).exists():
            return False
        raise OSError(f"{checkpoint} could not be linked or copied: {error}") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(temporary, ignore_errors=True)
    return True
