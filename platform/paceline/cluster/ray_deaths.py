"""Processes of Ray that a command depends on beside its workers, and which of them has died."""

from typing import Any

import psutil

from paceline.cluster.worker_errors import resumable_failure

_PARTS = {
    "gcs_server": "the GCS, which knows where everything of Ray is",
    "raylet": "the raylet, which starts and watches the processes of this machine",
}
_CONTROLLER = "the controller of Ray Train, which starts and watches the workers"


class NodeProcesses:
    """GCS and raylet of a Ray that this process has started; none where it has joined a cluster."""

    def __init__(self) -> None:
        self._processes = [each for each in psutil.Process().children() if _name(each) in _PARTS]
        self._names = {each.pid: _name(each) for each in self._processes}

    def dead(self) -> str | None:
        """Return which of them has died, for a message; None while all of them run."""
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
    """Return the failure of a command whose workers were lost once too often; None if that is not what ended them."""
    from ray.train import WorkerGroupError

    if isinstance(error, WorkerGroupError):
        ranks = "; ".join(f"rank {rank}: {_lost(each)}" for rank, each in sorted(error.worker_failures.items()))
        return resumable_failure(
            f"the workers were lost once too often (see `scaling.max_failures`): {ranks}", "group-lost"
        )
    return None


def _lost(error: BaseException) -> str:
    import ray.exceptions

    if isinstance(error, ray.exceptions.RayActorError):
        return "its process has died"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if lines[0].startswith("Traceback") else 0].rstrip(".")  # Ray Train gives the whole traceback


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
