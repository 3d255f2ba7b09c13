"""The trainable that Ray Tune runs: a trial from rung to rung, on the slot that the coordinator assigns."""

import json
import math
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune

from paceline.errors import ConfigError, EnvironmentFault
from paceline.storage.address import StoreAddress, parse
from paceline.storage.store_faults import StoreFault
from paceline.sweeps.messages import TrialReport, TrialSpec
from paceline.sweeps.search.pinned_checkpoints import PINS, adopt, pin
from paceline.sweeps.search.trial_specs import TrialSpecBuilder
from paceline.sweeps.search.tune_config import planned_trial_of

POINTER = "checkpoint.json"
STATE = "state"
"""Where a result holds the trial's state."""
STEP_DONE = "done"


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """One trial at a time; Tune gives it another one by `reset_config`, so that its process is started once.

    What goes wrong is a result, not an exception, which would cost the process.
    """

    _spec: TrialSpec | None
    """Of the trial as it is; made when it is first needed."""
    _told_step: int
    """Of the last rung that the coordinator reported during this stay."""

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
        report: TrialReport = ray.get(self._coordinator.run_to_rung.remote(self._spec, self._visit, self._told_step))
        if not report.is_over:
            self._told_step = int(report.values["step"])
        self._checkpoint = report.checkpoint
        return self._result(report)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self._take_up(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> str:
        """Write down where the trial's newest checkpoint is, and keep it from being pruned."""
        pinned = None
        if self._checkpoint:
            with suppress(OSError, StoreFault):  # without room for it, nobody can take the trial over from here
                pinned = self._pin(self._checkpoint)
        (Path(checkpoint_dir) / POINTER).write_text(json.dumps(str(pinned) if pinned else None))
        return checkpoint_dir

    def _pin(self, checkpoint: str) -> Path | StoreAddress | None:
        if self._store is None:
            return pin(Path(checkpoint), self._folder / "pinned")
        from paceline.storage.checkpoint_exchange import pin_stored

        return pin_stored(self._store, int(parse(checkpoint).name.removeprefix("step-")), PINS)

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from a checkpoint of this trial, or of another one that it takes over."""
        pinned = json.loads((Path(checkpoint_dir) / POINTER).read_text())
        if pinned is None:
            return
        if self._store is None:
            adopt(Path(pinned), self._folder / "checkpoints")
            return
        from paceline.storage.checkpoint_exchange import adopt_stored

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
        self._told_step = 0
        # tells this stay from others: Tune may continue with the trial in another process before this one has left it
        self._visit: str = uuid.uuid4().hex

    def _result(self, report: TrialReport) -> dict[str, Any]:
        # schedulers look for the metric in each result, and leave out what is not a number
        missing = dict.fromkeys((*self._sweep.metrics, self._sweep.budget_unit), math.nan)
        missing[self._sweep.budget_unit] = 0.0
        return {**missing, **report.values, STATE: report.state, STEP_DONE: report.is_over}


def _reason(error: ConfigError | EnvironmentFault) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(problem.reason for problem in error.problems)
    return error.message
