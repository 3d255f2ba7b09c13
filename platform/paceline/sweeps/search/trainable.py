"""The trainable that Ray Tune runs: a trial from rung to rung, on the slot that the coordinator assigns.

Checkpoints that one trial may take over from another are pinned against pruning, and adopted.
"""

import json
import math
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune

from paceline.cluster.run_folder import link_or_copy
from paceline.engine.manifest import MANIFEST, numbered
from paceline.errors import ConfigError, EnvironmentFault
from paceline.private_files import make_folder, restrict
from paceline.storage.address import StoreAddress, parse
from paceline.storage.store_faults import StoreFault
from paceline.sweeps.messages import TrialReport, TrialSpec
from paceline.sweeps.search.trial_specs import TrialSpecBuilder
from paceline.sweeps.search.tune_trials import planned_trial_of

POINTER = "checkpoint.json"
STATE = "state"
"""Key of the trial's state in a result."""
STEP_DONE = "done"
PINS = 3
"""Pinned checkpoints of a trial that stay: another trial may be about to take over the last but one."""


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """Tune's trainable, which runs one trial at a time and takes the next one in `reset_config` without a new process.

    A failure is a result, not an exception, because an exception would end the process.
    """

    _spec: TrialSpec | None
    """Spec of the current trial; created on first use."""
    _reported_step: int
    """Step of the last rung that the coordinator reported since this process took the trial; 0 before the first."""

    def setup(self, config: dict[str, Any], coordinator: Any = None, specs: TrialSpecBuilder | None = None) -> None:
        assert specs is not None
        assert specs.config.sweep is not None
        self._coordinator, self._specs, self._sweep = coordinator, specs, specs.config.sweep
        self._take_up(config)

    def step(self) -> dict[str, Any]:
        """Train to the next rung, or to the end."""
        try:
            self._spec = self._spec or self._specs.make(self._planned)
        except (ConfigError, EnvironmentFault) as error:
            ray.get(self._coordinator.skip.remote(self._planned, _reason(error)))
            return self._result(TrialReport("skipped"))
        report: TrialReport = ray.get(
            self._coordinator.run_to_rung.remote(self._spec, self._visit, self._reported_step)
        )
        if not report.is_over:
            self._reported_step = int(report.values["step"])
        self._checkpoint = report.checkpoint
        return self._result(report)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._take_up(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> str:
        """Write the path of the trial's newest checkpoint to a file, and pin the checkpoint."""
        pinned = None
        if self._checkpoint:
            with suppress(OSError, StoreFault):  # without room for it, nobody can take the trial over from here
                pinned = self._pin(self._checkpoint)
        (Path(checkpoint_dir) / POINTER).write_text(json.dumps(str(pinned) if pinned else None))
        return checkpoint_dir

    def _pin(self, checkpoint: str) -> Path | StoreAddress | None:
        if self._store is None:
            return pin(Path(checkpoint), self._folder / "pinned")
        from paceline.storage.stored_checkpoints import pin_stored

        return pin_stored(self._store, int(parse(checkpoint).name.removeprefix("step-")), PINS)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from a checkpoint of this trial, or of another one that it takes over."""
        pinned = json.loads((Path(checkpoint_dir) / POINTER).read_text())
        if pinned is None:
            return
        if self._store is None:
            adopt(Path(pinned), self._folder / "checkpoints")
            return
        from paceline.storage.stored_checkpoints import adopt_stored

        adopt_stored(parse(pinned), self._store)

    def cleanup(self) -> None:
        with suppress(ray.exceptions.RayActorError):  # the sweep is over
            ray.get(self._coordinator.leave.remote(self._planned.id, self._visit))

    def _take_up(self, config: dict[str, Any]) -> None:
        self._planned = planned_trial_of(config, self._sweep)
        self._folder = Path(self._specs.folder) / "trials" / self._planned.id
        self._store = self._specs.store_of(self._planned.id)
        self._checkpoint = ""
        self._spec = None
        self._reported_step = 0
        # tells this stay from others: Tune may continue with the trial in another process before this one has left it
        self._visit: str = uuid.uuid4().hex

    def _result(self, report: TrialReport) -> dict[str, Any]:
        # schedulers look for the metric in each result, and leave out what is not a number
        missing = dict.fromkeys((*self._sweep.metrics, self._sweep.budget_unit), math.nan)
        missing[self._sweep.budget_unit] = 0.0
        # Tune keeps averages of each number of each trial, tens of kilobytes in all
        values = {name: report.values.get(name, value) for name, value in missing.items()}
        return {**values, STATE: report.state, STEP_DONE: report.is_over}


def _reason(error: ConfigError | EnvironmentFault) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(problem.reason for problem in error.problems)
    return error.message


def pin(checkpoint: Path, folder: Path, keep: int = PINS) -> Path | None:
    """Copy a checkpoint to `folder`, where training does not prune it; None if the checkpoint is gone.

    Files are hard links if the file system supports them, and then take no extra space. Of the checkpoints in `folder`,
    the `keep` that were pinned last stay.

    Raises:
        OSError: the disk is full or not writable. Checkpoints that were pinned before stay.
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
    """Make a pinned checkpoint the one from which training in `checkpoints` resumes; return True if it is.

    The existing checkpoints stay if the pinned one is gone. They also stay if it was pinned from `checkpoints`, whose
    newest one is then at least as new.

    Raises:
        OSError: the disk is full or not writable. The existing checkpoints stay.
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
    """Return True if two folders hold the same checkpoint; their manifests vouch for every byte."""
    try:
        return (one / MANIFEST).read_bytes() == (other / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return False


def _place(checkpoint: Path, target: Path) -> bool:
    """Copy a checkpoint and rename the complete copy to `target`, replacing another one; return False if it is gone."""
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
