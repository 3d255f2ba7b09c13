"""The books of a sweep: its journal, the records of its runs, and what its watcher is to know. For the desk."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline.cluster.desk import Status
from paceline.sweeps.log import SweepLog
from paceline.sweeps.ranking import Objective, best_trial
from paceline.sweeps.trial_run import TrialRun
from paceline.sweeps.trials import ENDED, TROUBLE, Trial
from paceline.tracking.metrics import best_metric, trials_metric
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord, trial_state_tags
from paceline.tracking.recorder import TRIAL_STATUS, Recorder

CHILD_CLOSE_SECONDS = 30.0
"""How long a trial's record waits for MLflow; what is unsent by then stays in its journal."""
MOST_CLOSINGS = 64
"""How many records wait for MLflow at the same time."""


class Books:
    """What is written down of a sweep. A disk that is full is told to the watcher, and holds up nothing."""

    def __init__(self, folder: Path, record: RunRecord, objectives: Sequence[Objective]) -> None:
        """Open the sweep's journal and its record.

        Raises:
            OSError: the folder cannot be written to.
        """
        self._objectives = objectives
        self._log = SweepLog(folder)
        self._parent = Recorder(folder / "tracking", record)
        self._closings: set[asyncio.Task[None]] = set()
        # threads of their own: MLflow may keep all of them waiting
        self._threads = ThreadPoolExecutor(MOST_CLOSINGS, "close-trial")
        self.trials: dict[str, Trial] = dict(self._log.history.trials)
        """All trials that are known, by id."""
        self.last_rungs = self._log.history.last_rungs
        """What earlier launches wrote down: a trial's id to the values at the rung that it reached last."""
        self.events: list[tuple[str, dict[str, Any]]] = []
        """For the watcher."""

    def begin(self) -> None:
        """Begin to ship the sweep's own record."""
        self._parent.start_shipping()

    def tell(self, kind: str, **details: Any) -> None:
        """Let the watcher know something."""
        self.events.append((kind, details))

    def trial(self, trial: Trial) -> None:
        """Write down how a trial stands."""
        self.trials[trial.id] = trial
        # if it fails, a later launch would run it once more, and find it finished by its checkpoint
        self._write(lambda: self._log.trial(trial), f"how trial {trial.id} stands")

    def rung(self, trial_id: str, values: Mapping[str, float]) -> None:
        """Write down that a trial has come to a rung."""
        self._write(lambda: self._log.rung(trial_id, values), f"the rung of trial {trial_id}")

    def answer(self, trial_id: str) -> None:
        """Write down that a trial is told what to do at its rung."""
        self._write(lambda: self._log.answer(trial_id), f"the rung of trial {trial_id}")

    def end(self, run: TrialRun) -> None:
        """A trial has ended: write that down, and close its record in the background."""
        trial = run.trial
        self.trial(trial)
        self._write(self._tell_parent, f"the end of trial {trial.id}")
        run.desk.tag(trial_state_tags(trial.state))
        self.close_record(run, TRIAL_STATUS.get(trial.state, "KILLED"), trial.reason or None, CHILD_CLOSE_SECONDS)
        if trial.reason:
            self.tell("ended", trial=trial.id, state=trial.state, reason=trial.reason)

    def close_record(self, run: TrialRun, status: Status, reason: str | None, timeout_seconds: float) -> None:
        """Close a trial's record in the background."""
        task = asyncio.get_running_loop().create_task(self._close_record(run, status, reason, timeout_seconds))
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def close(
        self, status: Status, reason: str | None, note: str, artifacts: Mapping[str, bytes], timeout_seconds: float
    ) -> dict[str, Any]:
        """Close the sweep's own record while those of the trials are closed; returns a `ShipReport` as a mapping."""
        words = status, reason, note, artifacts, timeout_seconds
        closing = asyncio.to_thread(self._close_parent, *words)
        closings = list(self._closings)
        waiting = [asyncio.wait(closings, timeout=timeout_seconds)] if closings else []
        others = asyncio.gather(*waiting)
        report = await closing
        await others
        self._threads.shutdown(wait=False, cancel_futures=True)
        return report

    def _close_parent(
        self, status: Status, reason: str | None, note: str, artifacts: Mapping[str, bytes], timeout_seconds: float
    ) -> dict[str, Any]:
        error = ""
        try:
            for path, data in artifacts.items():
                self._parent.add_artifact(path, data)
            report = self._parent.close(status, reason, timeout_seconds, note)
        except OSError as trouble:  # no room for the last words: what is in the journal is sent all the same
            error = f"the end of the sweep could not be recorded: {trouble}"
            report = self._close_without_words(status, timeout_seconds)
        return {**asdict(report), **({"error": error} if error else {})}

    def _close_without_words(self, status: Status, timeout_seconds: float) -> Any:
        try:
            return self._parent.close(status, None, timeout_seconds)
        except OSError:  # the record counts as closed now: another call only sends
            return self._parent.close(status, None, timeout_seconds)

    async def _close_record(self, run: TrialRun, status: Status, reason: str | None, timeout_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            report = await loop.run_in_executor(self._threads, run.desk.close, status, reason, timeout_seconds)
        except OSError as error:
            report = {"run_id": "", "error": str(error)}
        if report["run_id"]:
            run.trial = replace(run.trial, mlflow_run_id=report["run_id"])
            self.trial(run.trial)
        if report["error"]:
            self.tell("warning", message=f"MLflow does not have all of trial {run.trial.id}: {report['error']}")

    def _tell_parent(self) -> None:
        """Let the sweep's own record have the best values so far, and how many trials ended in which way."""
        states = [each.state for each in self.trials.values() if each.state in ENDED]
        failed = sum(state in TROUBLE for state in states)
        counts = {"finished": states.count("finished"), "failed": failed, "pruned": states.count("pruned")}
        values = {trials_metric(ending): float(number) for ending, number in counts.items()}
        best = best_trial(list(self.trials.values()), self._objectives)
        if best is not None:
            known = [metric for metric, _ in self._objectives if metric in best.metrics]
            values |= {best_metric(metric): best.metrics[metric] for metric in known}
        now = int(time.time() * 1000)
        self._parent.append([Point(key, value, len(states), now) for key, value in values.items()])

    def _write(self, write: Callable[[], object], what: str) -> None:
        try:
            write()
        except OSError as error:
            self.tell("warning", message=f"{what} could not be written down: {error}")
