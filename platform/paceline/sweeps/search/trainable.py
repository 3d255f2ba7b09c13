"""What Ray Tune runs: a trial, from rung to rung, on whatever worker group the desk gives it."""

import json
import math
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune

from paceline.errors import ConfigError, EnvironmentFault
from paceline.sweeps.search.checkpoints import adopt, pin
from paceline.sweeps.search.orders import OrderMaker
from paceline.sweeps.search.tune_config import point_of
from paceline.sweeps.work import Order, Report

POINTER = "checkpoint.json"
STATE = "state"
"""Where a result holds the trial's state."""
STEP_DONE = "done"


class TrialTrainable(tune.Trainable):  # type: ignore[misc]
    """One trial at a time; Tune gives it another one by `reset_config`, so that its process is started once.

    What goes wrong is a result, not an exception, which would cost the process.
    """

    _order: Order | None
    """Of the point as it is; made when it is first needed."""

    def setup(self, config: dict[str, Any], desk: Any = None, maker: OrderMaker | None = None) -> None:
        assert maker is not None
        assert maker.config.sweep is not None
        self._desk, self._maker, self._sweep = desk, maker, maker.config.sweep
        self._take_up(config)

    def step(self) -> dict[str, Any]:
        """Train to the next rung, or to the end."""
        try:
            self._order = self._order or self._maker.make(self._point)
        except (ConfigError, EnvironmentFault) as error:
            ray.get(self._desk.skip.remote(self._point, _reason(error)))
            return self._result(Report("skipped"))
        report: Report = ray.get(self._desk.run_to_rung.remote(self._order, self._visit))
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
            with suppress(OSError):  # without room for it, nobody can take the trial over from here
                pinned = pin(Path(self._checkpoint), self._folder / "pinned")
        (Path(checkpoint_dir) / POINTER).write_text(json.dumps(str(pinned) if pinned else None))
        return checkpoint_dir

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        """Continue from a checkpoint of this trial, or of another one that it takes over."""
        pinned = json.loads((Path(checkpoint_dir) / POINTER).read_text())
        if pinned is not None:
            adopt(Path(pinned), self._folder / "checkpoints")

    def cleanup(self) -> None:
        with suppress(ray.exceptions.RayActorError):  # the sweep is over
            ray.get(self._desk.leave.remote(self._point.id, self._visit))

    def _take_up(self, config: dict[str, Any]) -> None:
        self._point = point_of(config, self._sweep)
        self._folder = Path(self._maker.folder) / "trials" / self._point.id
        self._checkpoint = ""
        self._order = None
        # tells this stay from others: Tune may continue with the trial in another process before this one has left it
        self._visit: str = uuid.uuid4().hex

    def _result(self, report: Report) -> dict[str, Any]:
        # schedulers look for the metric in each result, and leave out what is not a number
        missing = dict.fromkeys((*self._sweep.metrics, self._sweep.budget_unit), math.nan)
        missing[self._sweep.budget_unit] = 0.0
        return {**missing, **report.values, STATE: report.state, STEP_DONE: report.is_over}


def _reason(error: ConfigError | EnvironmentFault) -> str:
    if isinstance(error, ConfigError):
        return "; ".join(problem.reason for problem in error.problems)
    return error.message
