"""A run's checkpoints in its object store.

put:     files, then (once the store has their metrics, and nobody else has taken the run over) the manifest
newest:  what is to be resumed: from the store, or from here where that is newer and counts
fetch:   the same step on the other nodes

Trials of a sweep exchange checkpoints, which the store itself copies, the manifest last:

trials/0001/checkpoints/step-40  --pin-->  trials/0001/pinned/step-40  --adopt-->  trials/0002/checkpoints/step-40
"""

import json
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath

from filelock import FileLock

from paceline.durable import sync_folder, write_durably
from paceline.engine.manifest import MANIFEST, BrokenCheckpoint, numbered, set_aside, verify
from paceline.private_files import file_mode, make_folder, write_private
from paceline.storage.address import CHECKPOINTS, RunStore, StoreAddress
from paceline.storage.lease import Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import StoreFault

BROKEN = "BROKEN.json"
"""Lies beside the files of a checkpoint that turned out to be damaged, and says why: it counts no more."""
ADOPTED = "ADOPTED"
"""Beside a trial's checkpoints: tells its history from the one before it took over another trial's checkpoint."""
LAUNCH = ".launch"
"""In the working copy: the launch that its checkpoints are of, and the history of the trial."""
LOCK = ".fetching.lock"
FINAL_SECONDS = 60.0
"""Time for which a store that is away is tried again where nothing can continue without it: for the last checkpoint of
a run, and for the one that it resumes from."""
PINNED = "pinned"
ORDER = "order.json"
"""The steps that are pinned, in the order in which they were."""
OnBroken = Callable[[Path, str], None]


class StoredCheckpoints:
    """Copies checkpoints to and from the store. Lives in each training process; only rank 0 puts something there.

    Args:
        folder: of this machine's copies; by default those that the run is worked on in.
    """

    def __init__(self, run: RunStore, folder: Path | None = None) -> None:
        self._run = run
        self._remote = RemoteFolder(run.address) / CHECKPOINTS
        self._patient = self._remote.patient(FINAL_SECONDS)
        self._lease = Lease(RemoteFolder(run.home), run.launch)
        self.folder = folder or run.folder / CHECKPOINTS
        """This machine's copies."""

    def place_of(self, step: int) -> str:
        """Address of a checkpoint."""
        return str(self._run.shown_address() / CHECKPOINTS / f"step-{step}")

    def put(self, checkpoint: Path, is_recorded: Callable[[], bool], is_last: bool = False) -> None:
        """Put a whole checkpoint into the store, in place of an older one of that step.

        Args:
            is_recorded: whether the store has all metrics until then; may wait for it.
            is_last: training is over, so that nothing waits: it is tried for longer.

        Raises:
            StoreFault: the store cannot be used, or does not have the metrics.
            LeaseLost: another machine continues with the run.
            OSError: the checkpoint cannot be read.
        """
        remote = self._remote / checkpoint.name
        if is_last:
            remote = remote.patient(FINAL_SECONDS)
        data = (checkpoint / MANIFEST).read_bytes()
        self._lease.require()  # before anything is removed
        for name in sorted(remote.files(), key=lambda name: name != MANIFEST):
            remote.remove(name)
        for name in files_of(data):
            remote.upload(name, checkpoint / name)
        if not is_recorded():
            raise StoreFault(f"{self._run.address.bare} does not have the run's record yet", "record-behind")
        self._lease.require()
        remote.write(MANIFEST, data)

    def prune(self, keep: int, protected: Collection[int] = ()) -> None:
        """Remove all but the newest `keep` whole checkpoints and those of the protected steps, and what others have
        not finished to put there."""
        kept = 0
        for step, names in self._steps():
            if BROKEN in names:
                continue
            kept += MANIFEST in names
            if (kept > keep and step not in protected) or MANIFEST not in names:
                remote = self._remote / f"step-{step}"
                remote.remove(MANIFEST)
                remote.remove_all()

    def newest(self, on_broken: OnBroken, is_recorded: Callable[[], bool]) -> Path | None:
        """The newest whole checkpoint, brought to this machine; broken ones on the way are marked and reported.

        One that is here alone and counts is put into the store first, see `put`.

        Raises:
            StoreFault: the store cannot be used.
        """
        make_folder(self.folder)
        with self._alone():
            self._drop_strange_copies()
            self._set_broken_copies_aside(on_broken)
        whole = self.whole_steps()
        own = next((step for step, _ in numbered(self.folder)), -1)
        if own > max(whole, default=-1):  # it did not get into the store
            self.put(self.folder / f"step-{own}", is_recorded)
            whole = [own, *whole]
        found = next((path for step in whole if (path := self._bring_if_whole(step, on_broken)) is not None), None)
        self._drop_newer_copies(found)
        return found

    def fetch(self, step: int) -> Path:
        """Bring the checkpoint of a step to this machine, unless it is there.

        Raises:
            StoreFault: the store cannot be used, or the checkpoint arrives broken.
        """
        try:
            found = self.bring(step)
        except BrokenCheckpoint as error:
            message = f"{self.place_of(step)} arrived broken: {error}; start the command again"
            raise StoreFault(message, "broken-checkpoint", step=step) from None
        self._drop_newer_copies(found)
        return found

    def kept(self) -> list[tuple[int, str, bytes]]:
        """Step, address and manifest of each whole checkpoint, the newest first."""
        return [
            (step, self.place_of(step), (self._remote / f"step-{step}").read(MANIFEST) or b"")
            for step in self.whole_steps()
        ]

    def whole_steps(self) -> list[int]:
        """The steps of the whole checkpoints, the newest first."""
        return [step for step, names in self._steps() if MANIFEST in names and BROKEN not in names]

    def _steps(self) -> list[tuple[int, set[str]]]:
        """The steps of which the store has something, the newest first, and the names of their files."""
        names: dict[int, set[str]] = {}
        for path in self._patient.files():
            folder, _, name = path.partition("/")
            number = folder.removeprefix("step-")
            if name and number.isdigit() and folder.startswith("step-"):
                names.setdefault(int(number), set()).add(name)
        return sorted(names.items(), reverse=True)

    def _bring_if_whole(self, step: int, on_broken: OnBroken) -> Path | None:
        try:
            return self.bring(step)
        except BrokenCheckpoint as error:
            reason = json.dumps({"reason": str(error)})
            (self._remote / f"step-{step}").write(BROKEN, reason.encode())
            on_broken(self.folder / f"step-{step}", str(error))
            return None

    def bring(self, step: int) -> Path:
        """The whole checkpoint on this machine; copied at most once, whoever else of this machine wants it.

        Raises:
            BrokenCheckpoint: the one in the store is not whole.
        """
        remote, final = self._patient / f"step-{step}", self.folder / f"step-{step}"
        make_folder(self.folder)
        with self._alone():
            data = remote.read(MANIFEST)
            if data is None:
                raise BrokenCheckpoint(f"{MANIFEST} is not there")
            if _is_copy(final, data):
                return final
            temporary = self.folder / f".step-{step}.fetching"
            shutil.rmtree(temporary, ignore_errors=True)
            make_folder(temporary)
            try:
                _download(remote, data, temporary)
                shutil.rmtree(final, ignore_errors=True)
                temporary.rename(final)
                sync_folder(self.folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return final

    def _drop_strange_copies(self) -> None:
        """Remove what a launch has left here that does not count: what the run did since, or what its record has, is
        not known here."""
        mark = self.folder / LAUNCH
        launch, _, history = (mark.read_text() if mark.exists() else "").partition(" ")
        history_there = (self._patient.read(ADOPTED) or b"").decode()
        if launch not in (self._run.launch, *self._run.trusted) or history != history_there:
            for _, path in numbered(self.folder):
                shutil.rmtree(path)
        self.mark(history_there)

    def mark(self, history: str = "") -> None:
        """Note that the copies on this machine are of this launch.

        Args:
            history: of a trial that has taken over another one's checkpoint.
        """
        write_durably(self.folder / LAUNCH, f"{self._run.launch} {history}".encode())

    def _set_broken_copies_aside(self, on_broken: OnBroken) -> None:
        for _, path in numbered(self.folder):
            try:
                verify(path)
            except BrokenCheckpoint as error:
                set_aside(path)
                on_broken(path, str(error))

    def _drop_newer_copies(self, found: Path | None) -> None:
        """Remove copies of later steps: to the writer, they would be newer than what it writes."""
        step = int(found.name.removeprefix("step-")) if found is not None else -1
        with self._alone():
            for number, path in numbered(self.folder):
                if number > step:
                    shutil.rmtree(path, ignore_errors=True)

    def _alone(self) -> FileLock:
        return FileLock(self.folder / LOCK, mode=file_mode(self.folder))


def files_of(manifest: bytes) -> Mapping[str, int]:
    """Sizes of the files that a manifest names.

    Raises:
        BrokenCheckpoint: it is none.
    """
    try:
        sizes = {str(name): int(entry["size_bytes"]) for name, entry in json.loads(manifest)["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenCheckpoint(f"{MANIFEST} is not readable: {error}") from None
    for name in sizes:
        if PurePosixPath(name).name != name or name.startswith("."):
            raise BrokenCheckpoint(f"{MANIFEST} names {name!r}, which is not a file name")
    return sizes


def _is_copy(folder: Path, manifest: bytes) -> bool:
    try:
        if (folder / MANIFEST).read_bytes() != manifest:
            return False
        verify(folder)
    except (OSError, BrokenCheckpoint):
        return False
    return True


def _download(remote: RemoteFolder, manifest: bytes, folder: Path) -> None:
    there = remote.files()
    for name, size in files_of(manifest).items():
        if there.get(name) != size:  # not worth to be brought
            found = f"has {there[name]} bytes instead of {size}" if name in there else "is not readable: not there"
            raise BrokenCheckpoint(f"{name} {found}")
    for name in files_of(manifest):
        remote.download(name, folder / name)
    write_private(folder / MANIFEST, manifest)
    verify(folder)


def copy_older(origin: RunStore, run: RunStore, newest: int) -> None:
    """Copy the checkpoints of a run that another one extends or forks, before the newest one, which it begins with. The
    best may be among them.

    Raises:
        StoreFault: the store cannot be used.
    """
    source, target = (RemoteFolder(each.address, FINAL_SECONDS) / CHECKPOINTS for each in (origin, run))
    for step in StoredCheckpoints(origin).whole_steps():
        if step < newest:
            _place(source / f"step-{step}", target / f"step-{step}")


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
