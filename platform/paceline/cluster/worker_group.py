"""A worker group as its driver sees it: Ray for its workers, the thread that runs it, its output, end and failures."""

import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline._compat.ray import start_autoscaling_coordinator, worker_output_to
from paceline.cluster.listener import Stages
from paceline.cluster.nodes import here
from paceline.cluster.ray_session import connected, connecting_text, is_private, on_cluster, prepare_environment
from paceline.errors import ConfigError, EnvironmentFault, PacelineError, Problem, RunFailed, first_line
from paceline.redaction import redact

if TYPE_CHECKING:
    import psutil
    from ray.train.torch import TorchTrainer


DISMISS_SECONDS = 2.0
"""Seconds that an actor may take to name its workers at the very end, when the user may have pressed Ctrl-C again."""
TRAINING_ACTOR = "RayTrainWorker"
_CPP_LOG = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z] \d+ \d+\]")
"""Start of a line in the log of Ray's C++ side."""
_NAMELESS_HOST = "The hostname of the client socket cannot be retrieved"
"""Warning of torch about each worker on a host whose address has no name, which torch does not need."""
_DEATH = re.compile(r"A worker died or was killed|The node with node id: \S+ .*marked dead|Raylet is terminated")
"""Start of Ray's multi-line messages about processes that have died. Each command reports the consequences itself."""
_PARTS = {
    "gcs_server": "the GCS, which knows where everything of Ray is",
    "raylet": "the raylet, which starts and watches the processes of this machine",
}
_CONTROLLER = "the controller of Ray Train, which starts and watches the workers"


class TrainerThread(threading.Thread):
    """`TorchTrainer.fit()` in a thread, which keeps Ray from taking over the signals."""

    def __init__(self, trainer: "TorchTrainer") -> None:
        super().__init__(name="ray-train-fit", daemon=True)
        self.error: BaseException | None = None
        self._trainer = trainer

    def run(self) -> None:
        try:
            self._trainer.fit()
        except (Exception, SystemExit) as error:  # Ray raises SystemExit here when it is shut down
            self.error = error


@contextmanager
def ray_for_workers(
    address: str | None,
    modules: Callable[[], Sequence[Path]],
    listener: Stages,
    imports: Callable[[], None] | None = None,
) -> Iterator[Callable[[], None]]:
    """Connect to Ray for the body, while a thread imports the modules for worker groups.

    Args:
        address: of a cluster, see `connected`.
        modules: returns the user's modules that travel to a cluster.
        imports: function that imports slow modules; None: those for a TorchTrainer.

    Yields:
        A function that returns once worker groups can be made; call it before the first one is.
    """
    from paceline.cluster.user_code import runtime_env  # imports the schema of configs, which no coordinator needs

    prepare_environment()
    importing = threading.Thread(target=imports or import_torch_trainer, name="import-ray-train")
    listener.stage(connecting_text(address))
    packed = runtime_env(modules()) if address else None
    importing.start()
    if on_cluster(address):
        importing.join()  # connecting takes no time to import in, and may take a job's working folder away from torch

    def finish_imports() -> None:
        importing.join()
        if is_private():
            start_autoscaling_coordinator()

    try:
        with connected(address, packed), only_worker_output():
            yield finish_imports
    finally:
        importing.join()  # the end of the process would break an import off with a traceback


def actor_on_this_node(kind: type, **options: Any) -> Any:
    """Return an actor's class, to be started beside the driver, without cores of its own."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(here(), soft=False)
    return ray.remote(kind).options(num_cpus=0, scheduling_strategy=strategy, **options)


def dismiss(actor: Any, handles: Callable[[], Any], node: "NodeProcesses | None" = None) -> None:
    """End the workers that report to an actor, and the actor, before another command may claim the run.

    Ray may stay up (a notebook's), and a group may still be at work: after a second Ctrl-C, or when it is stuck. A node
    without its own processes cannot end others, which end when Ray is shut down.

    Args:
        handles: asks the actor for the workers' pickled handles.
    """
    import ray

    try:
        with suppress(ray.exceptions.RayError):
            workers = ray.get(handles(), timeout=DISMISS_SECONDS)
            if node is None or node.dead() is None:
                kill_workers(workers)
    finally:
        with suppress(ray.exceptions.RayError):
            if node is None or node.dead() is None:
                ray.kill(actor)


def kill_workers(handles: Sequence[bytes]) -> None:
    """End worker processes by their pickled handles; those that have ended already raise no error."""
    import ray

    for handle in handles:
        ray.kill(pickle.loads(handle))


def import_torch_trainer() -> None:
    """Import `torch_trainer`, which takes seconds; done in a thread while Ray starts."""
    import paceline.cluster.torch_trainer  # noqa: F401


@contextmanager
def only_worker_output() -> Iterator[None]:
    """Limit Ray's output during the body to the prints of training workers and Ray's own warnings."""
    with worker_output_to(print_lines, lambda text: _DEATH.match(text) is None):
        yield


def print_lines(batch: Mapping[str, Any]) -> None:
    """Print a batch of lines that Ray collected from one process."""
    if batch.get("actor_name") != TRAINING_ACTOR:
        return
    for line in batch["lines"]:
        if not _CPP_LOG.match(line) and _NAMELESS_HOST not in line:
            print(f"(worker {batch['pid']}) {redact(line)}", file=sys.stderr)


def resumable_failure(what: str, code: str) -> dict[str, Any]:
    """Return a failure that belongs to all ranks, and after which the same command resumes the run.

    It has the fields of `engine.failure.Failure`.
    """
    reason = f"{what}. Run the same command again; training resumes from its newest checkpoint"
    return {"rank": -1, "reason": reason, "traceback_text": "", "exit_code": RunFailed.exit_code, "problem_code": code}


def error_of(failure: Mapping[str, Any]) -> PacelineError:
    """Return the error of a rank that failed.

    Args:
        failure: the fields of `engine.failure.Failure`.
    """
    place = f"rank {failure['rank']}: " if failure["rank"] >= 0 else ""  # else it is not about a rank
    message = redact(f"{place}{failure['reason']}")
    if failure["exit_code"] == ConfigError.exit_code:
        return ConfigError([Problem(failure.get("problem_code") or "import", message)])
    if failure["exit_code"] == EnvironmentFault.exit_code:
        return EnvironmentFault(message, failure.get("problem_code") or "run-failed")
    return RunFailed(message, redact(failure["traceback_text"]), failure.get("problem_code") or "run-failed")


class NodeProcesses:
    """GCS and raylet of a Ray that this process has started; empty if it has joined a cluster."""

    def __init__(self) -> None:
        import psutil

        self._processes = [each for each in psutil.Process().children() if _name(each) in _PARTS]
        self._names = {each.pid: _name(each) for each in self._processes}

    def dead(self) -> str | None:
        """Return the name of one that has died, for a message; None while all of them run."""
        gone = next((each for each in self._processes if not _runs(each)), None)
        return f"{_PARTS[self._names[gone.pid]]} (process {gone.pid})" if gone is not None else None


def death_failure(part: str | None, error: BaseException | None) -> dict[str, Any] | None:
    """Return the failure of a command whose Ray has lost a process of its own; None if it has not.

    It has the fields of `engine.failure.Failure`.

    Args:
        part: the process of Ray's node that is known to be dead.
        error: what ended Ray Train.
    """
    import ray.exceptions

    # an error of the workers comes as one of Ray Train's own
    if part is None and isinstance(error, ray.exceptions.RayActorError):
        part = _CONTROLLER
    if part is None and isinstance(error, ray.exceptions.LocalRayletDiedError):
        part = _PARTS["raylet"]
    if part is not None:
        what = f"a process of Ray has died: {part}. Something has ended it, or the machine has run out of memory"
        return resumable_failure(what, "ray-process-died")
    return None


def lost_group_failure(error: BaseException | None) -> dict[str, Any] | None:
    """Return the failure of a command whose workers were lost once too often; None if it ended for another reason."""
    from ray.train import WorkerGroupError

    if isinstance(error, WorkerGroupError):
        ranks = "; ".join(f"rank {rank}: {_lost(each)}" for rank, each in sorted(error.worker_failures.items()))
        return resumable_failure(
            f"the workers were lost once too often (see `scaling.max_failures`): {ranks}", "group-lost"
        )
    return None


def failure_of(
    part: str | None, error: BaseException | None, silence: Callable[[], dict[str, Any] | None] = lambda: None
) -> dict[str, Any]:
    """Return the failure of a group that has ended without a result, with the fields of `engine.failure.Failure`.

    Args:
        part: the process of Ray's node that is known to be dead.
        error: what ended Ray Train.
        silence: returns the failure of ranks that gave no heartbeat.
    """
    if failure := death_failure(part, error) or silence() or lost_group_failure(error):
        return failure
    reason = first_line(error) if error else "the workers ended without a result"
    return {"rank": -1, "reason": reason, "traceback_text": str(error or ""), "exit_code": RunFailed.exit_code}


def _lost(error: BaseException) -> str:
    import ray.exceptions

    if isinstance(error, ray.exceptions.RayActorError):
        return "its process has died"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if lines[0].startswith("Traceback") else 0].rstrip(".")  # Ray Train gives the whole traceback


def _name(process: "psutil.Process") -> str:
    import psutil

    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _runs(process: "psutil.Process") -> bool:
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
