"""A run's identity: its folder, its status, and whether the same command continues with an unfinished one."""

import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, Literal, TypeVar

from paceline.cluster.config_difference import MAY_DIFFER_ON_RESUME, config_difference, shown_value
from paceline.cluster.extension import (
    Origin,
    extension_of,
    last_whole_checkpoint,
    require_extendable,
    require_not_cut_short,
)
from paceline.cluster.initial_weights import adopt_weights, pin_weights
from paceline.cluster.name_lock import lock_home, remove_unused
from paceline.cluster.preflight import writable
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import remember_folders
from paceline.config.shareable import shareable
from paceline.durable import write_durably
from paceline.engine.manifest import numbered
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.private_files import make_folder, restrict
from paceline.storage.address import RunStore

Intent = Literal["continue", "resume", "new", "fork", "extend"]
"""Which run, sweep or tune-up a command works on, given the newest one of its name.

`continue`: the unfinished one, or a new one. `resume`: only the unfinished one. `new`: always a new one. `fork`: a new
run that begins with the newest checkpoint of an unfinished one whose config differs. `extend`: a new run that begins
with the last checkpoint of a finished one, or an unfinished one that did.
"""


def intent_of(*, resume: bool = False, new: bool = False, fork: bool = False, extend: bool = False) -> Intent:
    """Return what the options of a command ask for.

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


def nothing_to_resume(word: str, place: object) -> ConfigError:
    """Return the error of a command that is only to resume, where nothing of the name is unfinished.

    Args:
        word: what a user calls it: run, sweep or tune-up.
    """
    reason = f"there is no unfinished {word} in {place}"
    return ConfigError([Problem("resume", reason, "name", hint="leave --resume out to start one")])


@dataclass(frozen=True)
class RunFolder:
    """`<storage>/<name>/<run_id>`: the config, the status, the journal and the checkpoints of one run."""

    FILE: ClassVar[str] = "run.json"
    """Holds the config and the status, and marks a folder as a run's."""

    path: Path

    @property
    def run_id(self) -> str:
        """Identifier of the run, sortable by the time of its start."""
        return self.path.name

    @property
    def checkpoints(self) -> Path:
        """Folder of `step-<n>` folders."""
        return self.path / "checkpoints"

    @property
    def tracking(self) -> Path:
        """Folder of the recorder's journal."""
        return self.path / "tracking"

    def read(self) -> dict[str, Any]:
        """What its file says: `status` and `config`; nothing where there is no file.

        Raises:
            EnvironmentFault: the file is damaged.
        """
        file = self.path / self.FILE
        try:
            return dict(json.loads(file.read_bytes()))
        except OSError:
            return {}
        except (ValueError, TypeError):
            hint = f"put it back from a copy, or move {self.path} away to start again"
            raise EnvironmentFault(f"{file} is damaged: {hint}", "run-file-damaged", file=str(file)) from None

    @property
    def is_removed(self) -> bool:
        """True once somebody has removed it, or its file."""
        return not (self.path / self.FILE).exists()

    def add_warnings(self, warnings: Iterable[str]) -> tuple[str, ...]:
        """Keep warnings in its file beside those of earlier launches; returns all of them, each once."""
        known = self.read().get("warnings", [])
        found = list(dict.fromkeys([*known, *warnings]))
        with suppress(OSError):  # the disk is full, as the listener was told
            if found != known:
                self.write(warnings=found)
        return tuple(found)

    def write(self, **changes: Any) -> None:
        """Change entries of its file, all or nothing. Only the owner may read it: a config may hold secrets.

        Raises:
            FileNotFoundError: the file was removed. What would be left of it is no run.
            OSError: it cannot be written.
        """
        content = {**self.read(), **changes}
        if "config" not in content:
            raise FileNotFoundError(errno.ENOENT, "it was removed", str(self.path / self.FILE))
        write_durably(self.path / self.FILE, json.dumps(content, indent=1).encode())


Folder = TypeVar("Folder", bound=RunFolder)


@dataclass
class ClaimedRun(Generic[Folder]):
    """A run that this process may work on; nobody else may until it is released."""

    folder: Folder
    resumed: bool
    _lock: IO[str]

    @property
    def store(self) -> RunStore | None:
        """Where the run is kept when that is an object store; None for a folder."""
        return None

    @property
    def lost(self) -> str:
        """Why this process may work on the run no longer, since another machine does; empty while it may."""
        return ""

    def settle(self, tell: Callable[[str], object]) -> None:
        """The run has ended: see to it that all of it is where it is kept, and tell what is not."""

    def release(self) -> None:
        """Let others work on the name again."""
        self._lock.close()


Warn = Callable[[str], object]
"""Takes a message for the user."""


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
        EnvironmentFault: the storage is not writable, or a run of this name is going on.
        ConfigError: the unfinished run has another config, there is a finished one alone to branch off, or nothing to
            resume or to extend.
    """
    if intent == "extend":
        return claim(storage / config.name, lambda home: _choose_extension(home, config))
    return claim(storage / config.name, lambda home: _choose_run(home, config, intent, warn))


def claim(home: Path, choose: Callable[[Path], tuple[Folder, bool]]) -> "ClaimedRun[Folder]":
    """Keep others from working on a name, and choose the folder to work in, and whether it is that of an earlier run.

    Raises:
        EnvironmentFault: the folder is not writable, or something of this name is going on.
    """
    was_there = home.exists()
    with writable(home):
        lock = lock_home(home)
    try:
        with writable(home):
            folder, resumed = choose(home)
    except BaseException:
        if not was_there:
            remove_unused(home)
        lock.close()
        raise
    return ClaimedRun(folder, resumed, lock)


def _choose_run(home: Path, config: ExperimentConfig, intent: Intent, warn: Warn) -> tuple[RunFolder, bool]:
    """The folder to work in, and whether it is that of an earlier run."""
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
        return new_run(home, config, RunFolder, Origin(newest.run_id, "forked_from"), newest.checkpoints), False
    require_not_cut_short(config, newest.run_id, content, newest.checkpoints)
    newest.write(status="running")  # a disk that has no room for this has none for a checkpoint
    return newest, True


def _choose_extension(home: Path, config: ExperimentConfig) -> tuple[RunFolder, bool]:
    """The folder of a run that extends the newest one, and whether it is that of an earlier launch."""
    newest = _newest(home)
    content = newest.read() if newest is not None else {}
    config = adopt_weights(config, content.get("config", {}))
    require_extendable(config, None if newest is None else newest.run_id, content)
    assert newest is not None
    if content["status"] != "finished":
        require_not_cut_short(config, newest.run_id, content, newest.checkpoints)
        newest.write(status="running")
        return newest, True
    origin = extension_of(config, newest.run_id, last_whole_checkpoint(newest.checkpoints))
    return new_run(home, config, RunFolder, origin, newest.checkpoints), False


def check_start_from_scratch(
    run_id: str, content: Mapping[str, Any], config: ExperimentConfig, fork: bool, warn: Warn
) -> None:
    """Check that a new run beside a finished one is what the user expects.

    Args:
        run_id: of the finished run, the newest of its name.
        content: of its file.

    Raises:
        ConfigError: the user has asked to branch off.
    """
    if fork:
        reason = f"the newest run of {config.name!r}, {run_id}, is finished; --fork branches off an unfinished one"
        hint = "train it further with --extend, or start from scratch with --new"
        raise ConfigError([Problem("nothing-to-fork", reason, "name", hint=hint)])
    other = [key for key in MAY_DIFFER_ON_RESUME if key != "trainer.epochs"]
    difference = config_difference(content.get("config", {}), config.model_dump(mode="json"), other)
    if difference:
        changes = ", ".join(
            f"{key} {shown_value(key, before)} -> {shown_value(key, after)}"
            for key, (before, after) in difference.items()
        )
        warn(f"the run {run_id} of {config.name!r} is finished; this one starts from scratch with {changes}")


def forks(unfinished: RunFolder, content: Mapping[str, Any], config: ExperimentConfig, fork: bool) -> bool:
    """Whether to branch off an unfinished run, rather than continue with it.

    Args:
        content: what its file says.

    Raises:
        ConfigError: its config is another one, and nobody has asked to branch off.
    """
    difference = config_difference(content.get("config", {}), config.model_dump(mode="json"))
    if difference and not fork:
        hint = "undo the change to continue it, branch off its newest checkpoint with --fork, or start again with --new"
        raise other_config("run", config.name, unfinished, difference, hint)
    return bool(difference)


def _is_resumable(run: RunFolder, config: ExperimentConfig) -> bool:
    """A run that has not saved anything yet is only worth going on with as long as the config stays the same."""
    same = not config_difference(run.read().get("config", {}), config.model_dump(mode="json"))
    return same or any(run.checkpoints.glob("step-*"))


def _newest(home: Path) -> RunFolder | None:
    folders = (RunFolder(path) for path in sorted(home.iterdir(), reverse=True) if (path / RunFolder.FILE).exists())
    return next(folders, None)


def new_run(
    home: Path,
    config: ExperimentConfig,
    kind: type[Folder],
    origin: Origin | None = None,
    checkpoints: Path | None = None,
) -> Folder:
    """A folder for a run that starts again, or from another one.

    Args:
        checkpoints: folder of the checkpoints that it begins with.
    """
    folder = kind(home / _new_id(origin))
    for _, checkpoint in numbered(checkpoints) if checkpoints is not None else ():
        place_checkpoint(checkpoint, folder.checkpoints)
    make_folder(folder.path)
    remember_folders(folder.path)
    # last: a folder without it is no run yet
    entries = {} if origin is None else origin.entries()
    folder.write(status="running", config=shareable(config).model_dump(mode="json"), **entries)
    return folder


def _new_id(origin: Origin | None) -> str:
    """An id that sorts by the time of the start, to 1/65536 s, and after that of a run that it begins with."""
    while True:
        now = time.time()
        fraction = int(now % 1 * 2**16)
        run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{fraction:04x}{secrets.token_hex(1)}"
        if origin is None or run_id > origin.run_id:
            return run_id


def place_checkpoint(checkpoint: Path, folder: Path) -> Path:
    """Link or copy a checkpoint into another run's folder of checkpoints."""
    make_folder(folder)
    shutil.copytree(checkpoint, folder / checkpoint.name, copy_function=link_or_copy)
    restrict(folder / checkpoint.name)
    return folder / checkpoint.name


def link_or_copy(source: str, target: str) -> None:
    """A second name for a file; a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def other_config(
    kind: str, name: str, unfinished: RunFolder, difference: Mapping[str, tuple[Any, Any]], hint: str
) -> ConfigError:
    """The error of a config that differs from that of the run, or sweep, that it would continue with."""
    return ConfigError(
        [
            Problem(
                "resume",
                f"the unfinished {kind} {unfinished.run_id} of {name!r} has {shown_value(key, before)}, "
                f"this config has {shown_value(key, after)}",
                key,
                hint=hint,
            )
            for key, (before, after) in difference.items()
        ]
    )
