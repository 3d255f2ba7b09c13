"""Runs in an object store: claim one on this machine, in its working copy, and in the store.

probe  ->  lock here  ->  lease there  ->  newest unfinished run, by its run.json  ->  its record  ->  keeper

A working copy is used as it is when nobody else has worked on the run since (the `launch` in the run's file is the one
that this machine has), and its journal continues where the store's ends. Then its checkpoints count, too, although they
are not in the store yet. Otherwise it is replaced by what the store has.
"""

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from paceline.cluster.initial_weights import adopt_weights, pin_weights
from paceline.cluster.resume_rules import (
    EXTENDED_FROM_STEP,
    Origin,
    TrainedTo,
    Warn,
    check_start_from_scratch,
    config_difference,
    extension_of,
    forks,
    nothing_to_resume,
    require_extendable,
    require_not_cut_short,
)
from paceline.cluster.run_folder import Folder, RunFolder, place_checkpoint, writable
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, new_run
from paceline.config.experiment import ExperimentConfig
from paceline.config.shareable import shareable
from paceline.durable import write_durably
from paceline.engine.manifest import MANIFEST, STATE
from paceline.errors import EnvironmentFault
from paceline.storage.address import CHECKPOINTS, LAUNCH, RunStore, StoreAddress, home_of
from paceline.storage.in_progress import lock_home
from paceline.storage.lease import Lease
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.run_keeper import RunKeeper
from paceline.storage.stored_checkpoints import StoredCheckpoints, copy_older
from paceline.storage.stored_record import RecordCopy
from paceline.tracking.upload_cursor import note_stored

Tell = Callable[[str], object]


@dataclass
class ClaimedStoredRun(ClaimedRun[Folder]):
    """A run or a sweep that this process may work on, in its working copy; kept in a store."""

    keeper: RunKeeper = field(kw_only=True)

    @property
    def store(self) -> RunStore:
        return self.keeper.run

    @property
    def lost(self) -> str:
        return self.keeper.lost

    def settle(self, tell: Tell) -> None:
        self.keeper.settle(tell)

    def release(self) -> None:
        try:
            self.keeper.release()
        finally:
            super().release()


def claim_stored_run(
    config: ExperimentConfig,
    storage: StoreAddress,
    intent: Intent,
    tell: Tell,
    warn: Warn = lambda message: None,
) -> ClaimedStoredRun[RunFolder]:
    """Continue the newest unfinished run of this name, or start a new one, in an object store.

    Args:
        tell: is called with what is waited for.
        warn: see `claim_run`.

    Raises:
        EnvironmentFault: the store or the working copy cannot be used, or a run of this name is in progress.
        ConfigError: see `claim_run`.
    """
    name = HeldName.hold(storage, config.name, tell)
    claiming = _Claiming(config, name.base, name.home)
    with name.kept():
        run, copy = claiming.extension(tell) if intent == "extend" else claiming.choose(intent, tell, warn)
    keeper = RunKeeper(run, run.folder / RunFolder.FILE, copy, name.lease)
    keeper.start()
    return ClaimedStoredRun(RunFolder(run.folder), claiming.resumed, name.lock, keeper=keeper)


@dataclass
class HeldName:
    """A name in an object store that nobody else works on: locked on this machine, leased in the store."""

    base: RunStore
    """Place of a run of that name, but for its id."""
    home: Path
    """Folder of this machine's working copies."""
    lock: IO[str]
    lease: Lease

    @classmethod
    def hold(cls, storage: StoreAddress, name: str, tell: Tell) -> "HeldName":
        """Keep others from working on a name, as soon as nobody does.

        Args:
            tell: is called with what is waited for.

        Raises:
            EnvironmentFault: the store or the working copy cannot be used, or somebody works on the name.
        """
        shown, storage = storage, storage.pinned()
        RemoteFolder(storage).probe()
        home = home_of(storage, name)
        with writable(home):
            lock = lock_home(home)
        base = RunStore(str(storage), name, "", str(shown), secrets.token_hex(8))
        lease = Lease(RemoteFolder(base.home), base.launch)
        try:
            lease.take(tell)
        except BaseException:
            lock.close()
            raise
        return cls(base, home, lock, lease)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep others from working on the name during the body, however long it takes; release it if the body fails.

        Raises:
            EnvironmentFault: the body could not write to the working copies.
            LeaseLost: another one works on the name by now.
        """
        try:
            with writable(self.home), self.lease.renewed():
                yield
        except BaseException:
            try:
                self.lease.release()
            finally:
                self.lock.close()
            raise


class _Claiming:
    """Chooses the run, and makes its working copy.

    Args:
        base: the run's place, but for its id.
        home: of this machine's working copies.
    """

    def __init__(self, config: ExperimentConfig, base: RunStore, home: Path) -> None:
        self.base = base
        self.resumed = False
        self._newest_id = ""
        self._config = config
        self._home = home

    def choose(self, intent: Intent, tell: Tell, warn: Warn) -> tuple[RunStore, RecordCopy]:
        """The run to work on, and the copy of its record in the store."""
        found = None if intent == "new" else self._newest()
        content = {} if found is None else found[1]
        if found is None or content.get("status") == "finished":
            if intent == "resume":
                raise nothing_to_resume("run", self.base.home)
            self._config = pin_weights(self._config)
            if found is not None:
                check_start_from_scratch(found[0].run_id, content, self._config, intent == "fork", warn)
            return self._begin()
        run, asked = found[0], self._config
        self._config = adopt_weights(asked, content.get("config", {}))
        if intent != "resume" and not self._is_resumable(run, content):
            self._config = pin_weights(asked)
            return self._begin()
        run = self._trusting(run, content)
        if forks(RunFolder(run.folder), content, self._config, intent == "fork"):
            origin = Origin(run.run_id, "forked_from", content.get(EXTENDED_FROM_STEP))
            return self._begin(origin, self._newest_checkpoint(run, tell))
        self._require_not_cut_short(run, content)
        return self._resume(run, content)

    def extension(self, tell: Tell) -> tuple[RunStore, RecordCopy]:
        """Return them for a run that extends the newest one."""
        found = self._newest()
        content = {} if found is None else found[1]
        self._config = adopt_weights(self._config, content.get("config", {}))
        require_extendable(self._config, None if found is None else found[0].run_id, content)
        assert found is not None
        run = found[0]
        run = self._trusting(run, content)
        if content["status"] != "finished":
            self._require_not_cut_short(run, content)
            return self._resume(run, content)
        checkpoint = self._newest_checkpoint(run, tell)
        return self._begin(extension_of(self._config, run.run_id, checkpoint), checkpoint)

    def _require_not_cut_short(self, run: RunStore, content: Mapping[str, Any]) -> None:
        def done() -> TrainedTo | None:
            checkpoints = RemoteFolder(run.address) / CHECKPOINTS
            steps = StoredCheckpoints(run).whole_steps()
            state = (checkpoints / f"step-{steps[0]}").read(STATE) if steps else None
            return None if state is None else TrainedTo.of(json.loads(state))

        require_not_cut_short(self._config, run.run_id, content, done)

    def _trusting(self, run: RunStore, content: Mapping[str, Any]) -> RunStore:
        """The run with the launches whose checkpoints count although they are on this machine alone."""
        here = str(RunFolder(run.folder).read().get(LAUNCH, "")) == content.get(LAUNCH)
        return replace(run, trusted=(str(content[LAUNCH]),) if here else ())

    def _newest(self) -> tuple[RunStore, dict[str, Any]] | None:
        found = newest_stored(self.base, RunFolder.FILE)
        self._newest_id = "" if found is None else found[0].run_id
        return found

    def _is_resumable(self, run: RunStore, content: Mapping[str, Any]) -> bool:
        """Return whether to resume a run: one that has not saved anything only with the same config."""
        if not config_difference(content.get("config", {}), self._config.model_dump(mode="json")):
            return True
        return any(path.endswith(f"/{MANIFEST}") for path in (RemoteFolder(run.address) / CHECKPOINTS).files())

    def _resume(self, run: RunStore, content: Mapping[str, Any]) -> tuple[RunStore, RecordCopy]:
        self.resumed = True
        copy = _copy_of(run)
        if not copy.take_over(may_be_ahead=bool(run.trusted)):
            run = replace(run, trusted=())
        stored = shareable(self._config).model_dump(mode="json")
        self._claim(run, {**content, "status": "running", "config": stored})
        return run, copy

    def _begin(self, origin: Origin | None = None, checkpoint: Path | None = None) -> tuple[RunStore, RecordCopy]:
        """A run that starts again, or from a checkpoint of another one."""
        folder = new_run(self._home, self._config, RunFolder, origin, after=self._newest_id)
        run = replace(self.base, run_id=folder.run_id)
        if checkpoint is not None:
            assert origin is not None
            own = place_checkpoint(checkpoint, folder.checkpoints)
            copy_older(replace(self.base, run_id=origin.run_id), run, int(own.name.removeprefix("step-")))
            stored = StoredCheckpoints(run)
            stored.put(own, lambda: True)
            stored.mark()
        note_stored(folder.tracking, 0)
        self._claim(run, folder.read())  # last: without its file it is not a run yet
        return run, _copy_of(run)

    def _newest_checkpoint(self, origin: RunStore, tell: Tell) -> Path | None:
        """The working copy of a run's newest whole checkpoint."""

        def broken(path: Path, reason: str) -> None:
            tell(f"checkpoint {path.name} of {origin.run_id} is broken: {reason}")

        return StoredCheckpoints(origin).newest(broken, lambda: True)

    def _claim(self, run: RunStore, content: Mapping[str, Any]) -> None:
        note_claim(run, RunFolder.FILE, content)


def newest_stored(base: RunStore, file: str) -> tuple[RunStore, dict[str, Any]] | None:
    """Return the newest run or sweep of a name, and what its file in the store says; None where there is none.

    Args:
        base: its place, but for its id.
        file: name of the file that marks its kind.

    Raises:
        EnvironmentFault: the store cannot be used, or the file is damaged.
    """
    home = RemoteFolder(base.home)
    for run_id in reversed(home.folders()):
        data = (home / run_id).read(file)
        if data is None:
            continue
        try:
            return replace(base, run_id=run_id), dict(json.loads(data))
        except (ValueError, TypeError):
            place = ((home / run_id).address / file).bare
            hint = "put it back from a copy, or remove the run to start again"
            raise EnvironmentFault(f"{place} is damaged: {hint}", "run-file-damaged", file=place) from None
    return None


def note_claim(run: RunStore, file: str, content: Mapping[str, Any]) -> None:
    """Write into the file of a run or a sweep, there and then here, that this launch works on it."""
    data = json.dumps({**content, LAUNCH: run.launch}, indent=1).encode()
    RemoteFolder(run.address).write(file, data)
    write_durably(run.folder / file, data)


def _copy_of(run: RunStore) -> RecordCopy:
    return RecordCopy(RemoteFolder(run.address), RunFolder(run.folder).tracking)
