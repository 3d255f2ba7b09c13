"""The driver's part of a sweep: it follows the coordinator, starts and ends worker groups, and closes the records."""

import json
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

from paceline.cluster.ray_session import stay_in
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import first_interrupt_calls
from paceline.errors import EnvironmentFault
from paceline.full_disk import is_full_disk
from paceline.sweeps.coordinator.sweep_rules import is_hopeless
from paceline.sweeps.launch import SweepLaunch
from paceline.sweeps.messages import INTERRUPTED, UNSEEN, SweepView
from paceline.sweeps.results.pictures import PICTURES, Drawing
from paceline.sweeps.results.record import Closing, artifacts_of, best_config, note_of, status_of, write_best
from paceline.sweeps.sweep_costs import SweepCosts
from paceline.sweeps.trial import TrialTable
from paceline.sweeps.worker_group_manager import WorkerGroupManager
from paceline.tracking.costs import COST_FILE, Ledger

if TYPE_CHECKING:
    from paceline.sweeps.search.tune_thread import TuneThread

POLL_SECONDS = 0.2
"""Time between two looks of the driver. It looks by the clock, not at each change: the display changes with the time,
and the changes of many slots must not wake the driver more often."""
LEAVE_SECONDS = 6.0
"""Time that Ray may take to end its groups, and Tune, at the end; then their processes are ended."""
SAVE_SECONDS = 300.0
"""Time that trials may take to save their states and stop."""
RECORDS_SECONDS = 10.0
"""Time between two reports of how many records MLflow still lacks at the end."""
_REMOVED = "its folder was removed"


class SweepDriver:
    """The driver's part, while the sweep continues."""

    def __init__(
        self,
        launch: SweepLaunch,
        coordinator: Any,
        groups: WorkerGroupManager,
        tune: "TuneThread",
        costs: SweepCosts,
    ) -> None:
        self._launch, self._coordinator, self._groups, self._tune = launch, coordinator, groups, tune
        self._costs = costs
        self._start = time.monotonic()
        self._cursor = UNSEEN
        self._trials = TrialTable()
        self._fault = ""
        self._disk_full = ""
        self._is_out_of_time = False
        self._has_told_end = False
        self._drawing = Drawing()

    def run(self) -> Closing:
        """Follow the sweep to its end, and close its records.

        Raises:
            KeyboardInterrupt: the user has ended it at once.
        """
        with first_interrupt_calls(lambda: self._coordinator.end_early.remote(INTERRUPTED)):
            if self._launch.has_work:
                self._tune_all()
                self._wait_for_states()
        # all trials have ended: a signal must not throw their results away
        with first_interrupt_calls(self._report_closing):
            return self._close(self._look())

    def _tune_all(self) -> None:
        tune = self._tune
        self._groups.follow(self._look().groups)
        tune.start()
        try:
            while tune.is_alive():
                tune.join(POLL_SECONDS)
                if self._turn().over:
                    tune.finish_early()
        finally:
            tune.leave(LEAVE_SECONDS)
        if tune.error is not None and not self._look().over and not self._fault:
            self._fault = f"{type(tune.error).__name__}: {tune.error}"
            self._disk_full = self._fault if is_full_disk(tune.error) else ""
            self._coordinator.end_early.remote(self._fault)

    def _wait_for_states(self) -> None:
        """Tune has released its trials, some of which may still be saving their states."""
        end = time.monotonic() + SAVE_SECONDS
        while self._turn().busy and time.monotonic() < end:
            time.sleep(POLL_SECONDS)

    def _turn(self) -> SweepView:
        view = self._look()
        self._groups.follow(view.groups)
        self._launch.listener.trials(self._trials)
        self._drawing.prepare(self._launch.config, self._trials)
        self._costs.save_sometimes(self._trials)
        self._report_end(view)
        limit = self._launch.sweep.stop.wall_seconds
        if limit is not None and not view.over and time.monotonic() - self._start > limit:
            self._is_out_of_time = True
            self._coordinator.end_early.remote(f"stopped after {limit:g} s, as sweep.stop.wall_seconds says")
        removed = _REMOVED if self._launch.folder.is_removed else ""
        if fault := view.fault or self._launch.claimed.lost or removed:
            self._fault = fault
            self._coordinator.end_early.remote(fault)
        return view

    def _report_end(self, view: SweepView) -> None:
        if view.over and view.busy and not self._has_told_end:
            self._has_told_end = True
            saving = "running trials save their states; Ctrl-C again ends at once"
            self._launch.listener.stage(f"stopping ({view.over}): {saving}")

    def _report_closing(self) -> None:
        self._launch.listener.stage("all trials have ended, and the sweep is being recorded; Ctrl-C again ends at once")

    def _look(self) -> SweepView:
        """The state of things; what has changed of the trials is taken in."""
        import ray

        stay_in(self._launch.working_folder)  # here since Tune, in its thread, asks for it now and then
        view: SweepView = ray.get(self._coordinator.view.remote(self._cursor))
        self._cursor = view.cursor
        for kind, details in view.events:
            self._launch.listener.event(kind, details)
        self._trials.update(view.trials)
        return view

    def _close(self, view: SweepView) -> Closing:
        launch, known = self._launch, self._trials
        status = status_of(known, launch.total + len(launch.skipped), view.over)
        best = best_config(launch.config, known, launch.sweep.objectives)
        self._write_best(best)
        launch.listener.stage("recording the sweep in MLflow")
        self._drawing.start(launch.folder.path, launch.config, known)
        ledger = self._settle(view)
        pictures = self._drawing.finish()
        artifacts = {**artifacts_of(launch, known, best), **pictures}
        artifacts[COST_FILE] = json.dumps(ledger.to_json(), indent=1).encode()
        mlflow_status, reason = "FINISHED" if status == "finished" else "KILLED", view.over
        if launch.folder.is_removed:
            mlflow_status, reason = "FAILED", self._fault or _REMOVED
        shown = {name: title for name, title in PICTURES.items() if name in pictures}
        note = note_of(launch, known, status, view.over, ledger, shown)
        words = mlflow_status, reason or None, note, artifacts, launch.close_seconds, ledger.metrics()
        report = self._closed(self._coordinator.close.remote(*words))
        self._look()  # with the warnings about records that were closed last
        self._groups.join(LEAVE_SECONDS)
        can_continue = self._can_continue(status)
        disk_full = "" if status == "finished" or view.over == INTERRUPTED else self._disk_full or view.disk_full
        if (
            can_continue or self._fault
        ) and not launch.folder.is_removed:  # else finished once its command has answered
            with suppress(EnvironmentFault) if disk_full else nullcontext(), writable(launch.folder.path):
                launch.folder.write(status="interrupted" if can_continue else "finished")
        return Closing(status, list(known), report, self._fault, disk_full, ledger, can_continue)

    def _closed(self, closing: Any) -> Any:
        """Wait until the coordinator has closed the records, and say now and then how many are left."""
        import ray

        while not ray.wait([closing], timeout=RECORDS_SECONDS)[0]:
            if left := ray.get(self._coordinator.records_left.remote()):
                trials = f"{left:,} trial{'' if left == 1 else 's'}"
                self._launch.listener.stage(f"MLflow still lacks the records of {trials}")
        return ray.get(closing)

    def _settle(self, view: SweepView) -> Ledger:
        """Write and return the cost of the sweep; groups that leave are waited for, since they cost until then."""
        if not view.busy:  # those whose workers hang are dropped, and waited for, at the end
            self._coordinator.let_groups_go.remote()
            self._groups.join(LEAVE_SECONDS)
        try:
            self._costs.save(self._trials)
        except OSError as error:  # what MLflow is to know is still to come
            why = error.strerror or error
            message = f"what the sweep cost could not be written: {why}"
            self._launch.listener.event("warning", {"code": "cost-not-written", "message": message})
        return self._costs.ledger(self._trials)

    def _write_best(self, best: str | None) -> None:
        try:
            write_best(self._launch.folder, best)
        except OSError as error:  # what MLflow is to know is still to come
            why = error.strerror or error
            message = f"the best config could not be written: {why}"
            self._launch.listener.event("warning", {"code": "best-config-not-written", "message": message})

    def _can_continue(self, status: str) -> bool:
        """Return True if the same command continues with the sweep; otherwise it starts a new one, with any config."""
        if is_hopeless(self._fault):
            return False
        return status == "interrupted" or self._is_out_of_time or bool(self._fault)
