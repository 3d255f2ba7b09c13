"""A sweep on Ray: the desk, its worker groups, and Tune, side by side until the last trial has ended."""

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.assignment import Assignment
from paceline.cluster.experiment import python_objects
from paceline.cluster.fitting import first_line
from paceline.cluster.interrupts import first_interrupt_calls
from paceline.cluster.preflight import cluster_resources, writable
from paceline.cluster.session import connected, connecting_text, is_private, on_cluster, prepare_environment
from paceline.cluster.user_code import runtime_env
from paceline.cluster.worker_output import only_worker_output
from paceline.config.imports import user_folders
from paceline.errors import EnvironmentFault, RunFailed
from paceline.sweeps.closing import Closing, best_config, status_of, write_best
from paceline.sweeps.desk import Rules, SweepDesk
from paceline.sweeps.orders import OrderMaker
from paceline.sweeps.record import artifacts_of, common_tags, note_of, sweep_record
from paceline.sweeps.trials import Trial
from paceline.sweeps.work import SweepView
from paceline.tracking.redact import shareable

if TYPE_CHECKING:
    from paceline.sweeps.sweep import SweepLaunch
    from paceline.sweeps.tuning import TuneThread

POLL_SECONDS = 0.2
LEAVE_SECONDS = 6.0
"""How long Ray may take to end its groups, and Tune, at the end; then their processes are ended."""
DISMISS_SECONDS = 2.0


def run_on_ray(launch: "SweepLaunch") -> Closing:
    """Run what is left of a sweep.

    Raises:
        KeyboardInterrupt: it was told to end at once; it can be resumed.
    """
    prepare_environment()
    warm_up = threading.Thread(target=_import_ray_parts, name="import-ray-train")
    warm_up.start()
    import ray

    launch.listener.stage(connecting_text(launch.address))
    packed = runtime_env(launch.config) if launch.address else None
    with connected(launch.address, packed), only_worker_output():
        plan = _Plan(launch)
        with _desk(launch, plan) as desk:
            launch.listener.stage(f"starting {plan.slots} worker group{'s' if plan.slots > 1 else ''}")
            warm_up.join()
            if is_private():
                _start_coordinator()
            try:
                return _Running(launch, plan, desk).run()
            except ray.exceptions.RayActorError as error:
                reason = f"the process that holds the sweep together has died: {first_line(error)}"
                raise RunFailed(f"{reason}; the same command goes on from here") from None


def _import_ray_parts() -> None:
    # takes seconds; done while Ray starts
    import paceline.cluster.lean
    import paceline.sweeps.tuning  # noqa: F401


def _start_coordinator() -> None:
    from paceline.cluster.lean import start_coordinator

    start_coordinator()


class _Plan:
    """What is settled once it is known what the cluster has."""

    def __init__(self, launch: "SweepLaunch") -> None:
        from paceline.sweeps.sweep import first_rung, fitting_shapes, slots_for, trial_length

        section = launch.sweep
        self.available = cluster_resources()
        where = "the cluster" if on_cluster(launch.address) else "this machine"
        self.shapes = fitting_shapes(launch.config, launch.left, self.available, where)
        self.slots = slots_for(section, self.shapes, self.available, len(launch.left) or launch.total)
        self.length = trial_length(launch.config, launch.points, section.budget_unit)
        self.first_rung, self.rungs = 0.0, None
        if section.scheduler != "none":
            self.first_rung = first_rung(section, self.length)
            factor = section.rung_factor if section.scheduler == "asha" else None
            self.rungs = {"first": self.first_rung, "factor": factor, "unit": section.budget_unit}

    def maker(self, launch: "SweepLaunch") -> OrderMaker:
        """What makes the trials' orders."""
        config = launch.config
        base = Assignment(
            config_json=shareable(config).model_dump_json(),
            objects=python_objects(config),
            import_folders=() if launch.address else user_folders(),
        )
        return OrderMaker(
            base=base.travelling(),
            folder=str(launch.folder.path),
            sweep_id=launch.folder.run_id,
            uri=launch.uri,
            experiment=config.tracking.experiment or config.name,
            tags=common_tags(),
            available=self.available,
            rungs=self.rungs,
        )


@contextmanager
def _desk(launch: "SweepLaunch", plan: _Plan) -> Iterator[Any]:
    """The desk's actor; afterwards nothing of this launch is left, whatever went wrong."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    section = launch.sweep
    rules = Rules(
        objectives=tuple(section.objectives),
        seats=plan.slots,
        max_failures=section.max_failures_per_trial,
        fresh_processes=section.isolation == "process",
        target=section.stop.target,
        trial_seconds=section.stop.trial_seconds,
    )
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(SweepDesk).options(num_cpus=0, scheduling_strategy=here)
    total = launch.total + len(launch.skipped)
    desk = actor.remote(launch.folder.path, sweep_record(launch), rules, total)
    try:
        ray.get(desk.prepare.remote(plan.shapes[: plan.slots] if launch.has_work else []))
        yield desk
    except ray.exceptions.RayActorError as error:
        if getattr(error, "actor_init_failed", False):
            raise EnvironmentFault(f"the sweep cannot be recorded in {launch.folder.path}: {error}") from None
        raise
    finally:
        _dismiss(desk)


def _dismiss(desk: Any) -> None:
    """End what is left of this launch, before another one may claim the sweep; Ray may stay up (a notebook's)."""
    import ray

    try:
        with suppress(ray.exceptions.RayError):
            for worker in ray.get(desk.workers.remote(), timeout=DISMISS_SECONDS):
                ray.kill(pickle.loads(worker))
    finally:
        with suppress(ray.exceptions.RayError):
            ray.kill(desk)


class _Running:
    """The driver's part, while the sweep goes on."""

    def __init__(self, launch: "SweepLaunch", plan: _Plan, desk: Any) -> None:
        from paceline.sweeps.groups import Groups

        self._launch, self._plan, self._desk = launch, plan, desk
        self._groups: Groups = Groups(desk, _ray_folder(launch.folder.path))
        self._start = time.monotonic()
        self._seen_events = 0
        self._fault = ""
        self._is_out_of_time = False

    def run(self) -> Closing:
        with first_interrupt_calls(lambda: self._desk.request_stop.remote()):
            if self._launch.has_work:
                self._tune_all()
        return self._close(self._look())

    def _tune_all(self) -> None:
        tune = self._tune()
        self._groups.follow(self._look().groups)
        tune.start()
        while tune.is_alive():
            tune.join(POLL_SECONDS)
            self._turn(tune)
        if tune.error is not None and not self._look().over and not self._fault:
            self._fault = f"{type(tune.error).__name__}: {tune.error}"

    def _tune(self) -> "TuneThread":
        from paceline.sweeps.tuning import TuneThread, Tuning

        launch, plan = self._launch, self._plan
        tuning = Tuning(
            config=launch.config,
            points=launch.left,
            slots=plan.slots,
            first_rung=plan.first_rung,
            length=plan.length,
            history=launch.history,
            folder=_ray_folder(launch.folder.path) / f"tune-{time.time_ns()}",
        )
        return TuneThread(tuning, self._desk, plan.maker(launch))

    def _turn(self, tune: "TuneThread") -> None:
        view = self._look()
        self._groups.follow(view.groups)
        self._launch.listener.trials(view.trials)
        limit = self._launch.sweep.stop.wall_seconds
        if limit is not None and not view.over and time.monotonic() - self._start > limit:
            self._is_out_of_time = True
            self._desk.end_early.remote(f"stopped after {limit:g} s, as sweep.stop.wall_seconds says")
        if view.fault:
            self._fault = view.fault
            self._desk.end_early.remote(view.fault)
        if view.over:
            tune.finish_early()

    def _look(self) -> SweepView:
        import ray

        view: SweepView = ray.get(self._desk.view.remote(self._seen_events))
        for kind, details in view.events:
            self._seen_events += 1
            self._launch.listener.event(kind, details)
        return view

    def _close(self, view: SweepView) -> Closing:
        import ray

        launch = self._launch
        status = status_of(view.trials, launch.total + len(launch.skipped), view.over)
        can_go_on = status == "interrupted" or self._is_out_of_time or bool(self._fault)
        launch.folder.write(status="interrupted" if can_go_on else "finished")
        best = best_config(launch.config, view.trials, launch.sweep.objectives)
        write_best(launch.folder, best)
        launch.listener.stage("recording the sweep in MLflow")
        artifacts = artifacts_of(launch, view.trials, best)
        mlflow_status = "FINISHED" if status == "finished" else "KILLED"
        note = note_of(launch, view.trials, status, view.over)
        report = ray.get(
            self._desk.close.remote(mlflow_status, view.over or None, note, artifacts, launch.close_seconds)
        )
        trials: list[Trial] = ray.get(self._desk.trials.remote())
        self._groups.join(LEAVE_SECONDS)
        return Closing(status, trials, report, self._fault)


def _ray_folder(sweep: Path) -> Path:
    folder = sweep / "ray"
    with writable(sweep):
        folder.mkdir(parents=True, exist_ok=True)
    return folder
