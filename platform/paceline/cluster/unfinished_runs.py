"""Unfinished runs: whether a command continues an unfinished run, sweep or tune-up, or starts a new one."""

import calendar
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Generic, Literal

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
    last_whole_checkpoint,
    nothing_to_resume,
    other_config,
    require_extendable,
    require_not_cut_short,
)
from paceline.cluster.run_folder import Folder, RunFolder, place_checkpoint, remove_unused, writable
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import remember_folders
from paceline.config.shareable import shareable
from paceline.engine.manifest import numbered
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.private_files import make_folder
from paceline.storage.address import RunStore
from paceline.storage.in_progress import lock_home

Intent = Literal["continue", "resume", "new", "fork", "extend"]
"""Run, sweep or tune-up that a command works on, given the newest one of its name.

`continue`: the unfinished one, or a new one. `resume`: only the unfinished one. `new`: always a new one. `fork`: a new
run that begins with the newest checkpoint of an unfinished one whose config differs. `extend`: a new run that begins
with the last checkpoint of a finished one, or an unfinished one that did.
"""


def intent_of(*, resume: bool = False, new: bool = False, fork: bool = False, extend: bool = False) -> Intent:
    """Return the intent that the options of a command express.

    Raises:
        ConfigError: they contradict each other.
    """
    options: dict[Intent, bool] = {"resume": resume, "new": new, "fork": fork, "extend": extend}
    if wrong := [intent for intent, value in options.items() if not isinstance(value, bool)]:
        reason = f"{wrong[0]} takes True or False, not {options[wrong[0]]!r}"
        raise ConfigError([Problem("wrong-type", reason, hint="new=True starts a new run")])
    chosen = [intent for intent, is_set in options.items() if is_set]
    if len(chosen) > 1:
        reason = f"{' and '.join(chosen)} contradict each other"
        raise ConfigError([Problem("contradiction", reason, hint=f"leave out {chosen[0]} or {chosen[1]}")])
    return chosen[0] if chosen else "continue"


MAKING = ".new-"
"""Prefix of the folder of a run that is being made, from another one's checkpoints for example."""


@dataclass
class ClaimedRun(Generic[Folder]):
    """A run that this process may work on; no other process may until it is released."""

    folder: Folder
    resumed: bool
    _lock: IO[str]

    @property
    def store(self) -> RunStore | None:
        """Place of a run that is kept in an object store; None for a run in a folder."""
        return None

    @property
    def lost(self) -> str:
        """Reason why this process may no longer work on the run, since another machine does; empty while it may."""
        return ""

    def settle(self, tell: Callable[[str], object]) -> None:
        """Make sure that all of an ended run is stored where it is kept, and call `tell` with a message if not."""

    def release(self) -> None:
        """Let others work on the name again."""
        self._lock.close()


def claim_run(
    config: ExperimentConfig,
    storage: Path,
    intent: Intent = "continue",
    warn: Warn = lambda message: None,
) -> ClaimedRun[RunFolder]:
    """Continue the newest unfinished run of this name, or start a new one.

    Args:
        warn: is called when a new run starts from scratch with another config than that of the finished one.

    Raises:
        EnvironmentFault: the storage is not writable, or a run of this name is in progress.
        ConfigError: the unfinished run has another config, there is a finished one alone to branch off, or nothing to
            resume or to extend.
    """
    if intent == "extend":
        return claim(storage / config.name, lambda home: _choose_extension(home, config))
    return claim(storage / config.name, lambda home: _choose_run(home, config, intent, warn))


def claim(home: Path, choose: Callable[[Path], tuple[Folder, bool]]) -> "ClaimedRun[Folder]":
    """Keep others from working on a name, and choose the folder to work in, which may be that of an earlier run.

    Raises:
        EnvironmentFault: the folder is not writable, or something of this name is in progress.
    """
    was_there = home.exists()
    with writable(home):
        lock = lock_home(home)
    try:
        for left in home.glob(f"{MAKING}*"):  # by a command that was killed
            shutil.rmtree(left, ignore_errors=True)
        with writable(home):
            folder, resumed = choose(home)
    except BaseException:
        if not was_there:
            remove_unused(home)
        lock.close()
        raise
    return ClaimedRun(folder, resumed, lock)


def _choose_run(home: Path, config: ExperimentConfig, intent: Intent, warn: Warn) -> tuple[RunFolder, bool]:
    """Return the folder to work in, and True if it is that of an earlier run."""
    newest = None if intent == "new" else _newest(home)
    content = newest.read() if newest is not None else {}
    is_finished = content.get("status") == "finished"
    if intent == "resume" and (newest is None or is_finished):
        raise nothing_to_resume("run", home)
    if newest is not None and is_finished:
        pinned = pin_weights(config)
        check_start_from_scratch(newest.run_id, content, pinned, intent == "fork", warn)
        return new_run(home, pinned, RunFolder), False
    asked, config = config, adopt_weights(config, content.get("config", {}))
    if newest is None or not (intent == "resume" or _is_resumable(newest, config)):
        return new_run(home, pin_weights(asked), RunFolder), False
    if forks(newest, content, config, intent == "fork"):
        origin = Origin(newest.run_id, "forked_from", content.get(EXTENDED_FROM_STEP))
        return new_run(home, config, RunFolder, origin, newest.checkpoints), False
    require_not_cut_short(config, newest.run_id, content, partial(_progress, newest))
    _write_running(newest, config)  # a disk that has no room for this has none for a checkpoint
    return newest, True


def _write_running(folder: RunFolder, config: ExperimentConfig) -> None:
    """Note that a run, sweep or study is continued, with the config that it is continued with: some keys may differ."""
    folder.write(status="running", config=shareable(config).model_dump(mode="json"))


def _choose_extension(home: Path, config: ExperimentConfig) -> tuple[RunFolder, bool]:
    """Return the folder of a run that extends the newest one, and True if it is that of an earlier launch."""
    newest = _newest_but_abandoned(home)
    content = newest.read() if newest is not None else {}
    config = adopt_weights(config, content.get("config", {}))
    require_extendable(config, None if newest is None else newest.run_id, content)
    assert newest is not None
    if content["status"] != "finished":
        require_not_cut_short(config, newest.run_id, content, partial(_progress, newest))
        _write_running(newest, config)
        return newest, True
    origin = extension_of(config, newest.run_id, last_whole_checkpoint(newest.checkpoints))
    return new_run(home, config, RunFolder, origin, newest.checkpoints), False


def _progress(run: RunFolder) -> TrainedTo | None:
    checkpoint = last_whole_checkpoint(run.checkpoints)
    return None if checkpoint is None else TrainedTo.read(checkpoint)


def _is_resumable(run: RunFolder, config: ExperimentConfig) -> bool:
    """Return True if a run can be resumed: it has a checkpoint, or its config is still the same."""
    same = not config_difference(run.read().get("config", {}), config.model_dump(mode="json"))
    return same or any(run.checkpoints.glob("step-*"))


def _newest(home: Path) -> RunFolder | None:
    return next(_newest_first(home), None)


def _newest_but_abandoned(home: Path) -> RunFolder | None:
    """Return the newest run, past those that were started by mistake: unfinished ones that have saved nothing."""
    runs = list(_newest_first(home))
    kept = (run for run in runs if run.read().get("status") == "finished" or any(run.checkpoints.glob("step-*")))
    return next(kept, runs[0] if runs else None)


def _newest_first(home: Path) -> Iterator[RunFolder]:
    folders = sorted(home.iterdir(), reverse=True)
    return (RunFolder(path) for path in folders if (path / RunFolder.FILE).exists())


def new_run(
    home: Path,
    config: ExperimentConfig,
    kind: type[Folder],
    origin: Origin | None = None,
    checkpoints: Path | None = None,
    after: str = "",
) -> Folder:
    """Create a folder for a run that starts from scratch, or from another run.

    Args:
        checkpoints: folder of the checkpoints that it begins with.
        after: id of an earlier run that is not in `home`.
    """
    run_id = _new_id(max(after, _newest_id(home)))
    making = kind(home / f"{MAKING}{run_id}")  # all of a run, or nothing, even where this is killed
    try:
        for _, checkpoint in numbered(checkpoints) if checkpoints is not None else ():
            place_checkpoint(checkpoint, making.checkpoints)
        make_folder(making.path)
        remember_folders(making.path)
        entries = {} if origin is None else origin.entries()
        making.write(status="running", config=shareable(config).model_dump(mode="json"), **entries)
        making.path.rename(home / run_id)
    except BaseException:
        shutil.rmtree(making.path, ignore_errors=True)
        raise
    return kind(home / run_id)


def _newest_id(home: Path) -> str:
    """Return the newest id of a name; empty without any."""
    names = [path.name for path in home.iterdir()] if home.is_dir() else []
    return max(filter(_ID.fullmatch, names), default="")


_ID = re.compile(r"(\d{8}-\d{6})-([0-9a-f]{4})[0-9a-f]{2}")
_TICKS = 2**16
"""Ids have the time of the start in this part of a second."""


def _new_id(newest: str) -> str:
    """Return an id that sorts by the time of the start, to 1/65536 s, and after the newest one, which a machine whose
    clock is ahead may have made."""
    ticks = int(time.time() * _TICKS)
    if known := _ID.fullmatch(newest):
        seconds = calendar.timegm(time.strptime(known[1], "%Y%m%d-%H%M%S"))
        ticks = max(ticks, seconds * _TICKS + int(known[2], 16) + 1)
    seconds, fraction = divmod(ticks, _TICKS)
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(seconds))}-{fraction:04x}{secrets.token_hex(1)}"


@dataclass(frozen=True)
class Unfinished(Generic[Folder]):
    """Finds and continues unfinished sweeps, tune-ups or scale studies."""

    kind: type[Folder]
    word: str
    """Word for the kind in messages, such as `sweep`."""
    may_differ: Sequence[str]
    """Keys and sections of the config that may differ when it is continued."""
    has_begun: Callable[[Folder], bool]
    """Function that returns True if a folder has contents that would be lost."""
    over: Collection[str] = ("finished",)
    """Status values of folders that are never continued."""

    def last(self, home: Path) -> Folder | None:
        """Return the newest folder of a name; None without one.

        Args:
            home: `<storage>/<name>`.
        """
        paths = sorted(home.iterdir(), reverse=True) if home.is_dir() else []
        return next((self.kind(path) for path in paths if (path / self.kind.FILE).exists()), None)

    def newest(self, home: Path) -> Folder | None:
        """Return the newest folder of a name, if it is unfinished; else None."""
        folder = self.last(home)
        return None if folder is None or folder.read().get("status") in self.over else folder

    def with_weights(self, config: ExperimentConfig, home: Path, intent: Intent) -> ExperimentConfig:
        """Return the config with `model.weights` pinned: as in the one that is continued or extended, or as it is now.

        Raises:
            ConfigError: there are no such weights.
        """
        known = None if intent == "new" else self.last(home) if intent == "extend" else self.newest(home)
        return with_pinned_weights(config, known.read() if known is not None else {})

    def difference(self, folder: Folder, config: ExperimentConfig) -> Mapping[str, tuple[Any, Any]]:
        """Return the differences between its config and another one that are not allowed: dotted key to (its value, the
        other's).

        Raises:
            EnvironmentFault: its file is damaged.
        """
        known = folder.read().get("config")
        if not isinstance(known, Mapping):
            hint = f"put it back from a copy, or move {folder.path} away to start again"
            file = folder.path / self.kind.FILE
            raise EnvironmentFault(f"{file} is damaged: {hint}", "run-file-damaged", file=str(file))
        return config_difference(known, config.model_dump(mode="json"), self.may_differ)

    def choose(self, home: Path, config: ExperimentConfig, intent: Intent) -> tuple[Folder, bool]:
        """Return the folder to work in, and True if it is that of an earlier launch.

        Raises:
            ConfigError: the unfinished one has another config, or nothing is left to resume.
            EnvironmentFault: the file of the unfinished one is damaged.
        """
        unfinished = None if intent == "new" else self.newest(home)
        if unfinished is None and intent == "resume":
            raise nothing_to_resume(self.word, home)
        if unfinished is None or not self.is_continued(unfinished, config, intent):
            return new_run(home, config, self.kind), False
        _write_running(unfinished, config)
        return unfinished, True

    def is_continued(self, unfinished: Folder, config: ExperimentConfig, intent: Intent) -> bool:
        """Return True if a command continues an unfinished one, False if it starts a new one.

        Raises:
            ConfigError: the unfinished one has another config.
            EnvironmentFault: its file is damaged.
        """
        difference = self.difference(unfinished, config)
        if difference and (intent == "resume" or self.has_begun(unfinished)):
            hint = "undo the change to continue it, or start again with --new"
            raise other_config(self.word, config.name, unfinished, difference, hint)
        return not difference


def with_pinned_weights(config: ExperimentConfig, content: Mapping[str, Any]) -> ExperimentConfig:
    """Return the config with `model.weights` pinned, as an unfinished sweep or tune-up has it, or else as it is now.

    Args:
        content: of the file of the unfinished one; empty without one.

    Raises:
        ConfigError: there are no such weights.
    """
    stored = content.get("config")
    if isinstance(stored, Mapping):
        config = adopt_weights(config, stored, of_sweep=True)
    return pin_weights(config, of_sweep=True)
