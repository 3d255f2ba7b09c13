"""Connecting to Ray: a private local one, the cluster at an address, or the one this job was submitted to."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paceline._compat.ray import UV_HOOK, disable_uv_hook, init_private, job_without_folders
from paceline.cluster.private_ray import private_ray_folder, private_token
from paceline.cluster.signals import hangup_held_back
from paceline.errors import EnvironmentFault

PRINT_PATCH = "RAY_TRAIN_ENABLE_PRINT_PATCH"
WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"
HEALTH_CHECKS = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
NICENESS = "RAY_worker_niceness"
JOB_VARIABLE = "RAY_JOB_ID"
"""Set by Ray in the driver of a submitted job."""
PORT = 6379
CONNECT_SECONDS = 5.0


def prepare_environment() -> None:
    """Set the variables that Ray reads when it is imported; call this before."""
    # Ray's hook for `uv run` starts every worker through uv and uploads the folder; the environment is shared here.
    os.environ.setdefault(UV_HOOK, "0")
    if os.environ[UV_HOOK] == "0":
        disable_uv_hook()  # the program may have imported Ray before us
    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    # Ray Train's own `print` shows a line twice: as it is, and as a log record on stderr.
    os.environ.setdefault(PRINT_PATCH, "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS", "1")
    # Ray gives its workers the niceness 15, about a thirtieth of what any other busy process gets: next to a few of
    # those, training on this machine stood still for minutes. It gets the share of a plain script.
    os.environ.setdefault(NICENESS, "0")


def in_submitted_job() -> bool:
    """Return True if this process is the driver of a job that was submitted to a cluster."""
    return bool(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or os.environ.get(JOB_VARIABLE))


def on_cluster(address: str | None) -> bool:
    """Return True if training runs on a cluster, rather than on a private Ray on this machine."""
    return address is not None or in_submitted_job()


def connecting_text(address: str | None) -> str:
    """Return the stage of the launch that `connected` is about to begin."""
    if not on_cluster(address):
        return "starting Ray"
    address = address or os.environ.get("RAY_ADDRESS")  # Ray sets it for a submitted job
    return f"connecting to the cluster at {address}" if address else "connecting to the cluster"


def answers(address: str, seconds: float = CONNECT_SECONDS) -> bool:
    """Return True if something takes connections at `HOST:PORT`, or at an address whose scheme has its own port."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or {"ray": 10001, "http": 80, "https": 443}.get(parts.scheme, PORT)
        socket.create_connection((parts.hostname or "127.0.0.1", port), seconds).close()
    except (OSError, ValueError):
        return False
    return True


def is_private() -> bool:
    """Return True if this process is connected to a Ray that `connected` has started for it."""
    return _private


def stay_in(folder: Path) -> None:
    """Go back to the working folder if it was replaced by another one of the same name.

    Ray unpacks a job's folder on each of its nodes: of two nodes on one machine, the second does so over the folder in
    which the driver works already, and whatever asks for the working folder then fails.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        with suppress(OSError):
            os.chdir(folder)


_private = False


@contextmanager
def connected(address: str | None, runtime_env: dict[str, Any] | None = None) -> Iterator[None]:
    """Connect to Ray for the length of the body. A connection that the caller already has is used and left open.

    Args:
        address: of a cluster; None for a private local Ray, or inside a submitted job for its cluster.
        runtime_env: environment from here that the workers at `address` need.

    Raises:
        EnvironmentFault: no cluster answers at the address, or the local one does not start.
    """
    prepare_environment()
    import ray

    from paceline.cluster.job_package import require_sendable

    if ray.is_initialized():
        yield
        return
    _require_answer(address)
    require_sendable(runtime_env or {})
    with ExitStack() as closing:
        try:
            with hangup_held_back():
                if on_cluster(address):
                    _join(address, runtime_env)
                else:
                    folder = closing.enter_context(private_ray_folder())
                    with private_token():
                        _start_private(folder)
        except Exception as error:  # Ray raises a plain one when its node takes more than 30 s to come up
            code = "ray-unreachable" if on_cluster(address) else "ray-not-started"
            raise EnvironmentFault(_unreached(address, error), code, address=address) from None
        closing.callback(ray.shutdown)
        if not on_cluster(address):
            closing.enter_context(_alone())
        yield


@contextmanager
def _alone() -> Iterator[None]:
    """Mark Ray as started for this process alone during the body, and set the variables of Ray Train that suit it."""
    global _private
    # nobody preempts a private local node, whose watcher would be one more process to start; and its few workers are
    # asked more often whether they are done, or have failed: Ray's 2 s are for groups of any size
    settings = {WATCHER: "0", HEALTH_CHECKS: "0.5"}
    own = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(own)
    _private = True
    try:
        yield
    finally:
        _private = False
        for name in own:
            os.environ.pop(name, None)


def _require_answer(address: str | None) -> None:
    """Check that a cluster answers: Ray itself would try for more than ten minutes, and show its own log lines
    meanwhile."""
    if address is None or address in ("auto", "local"):
        return
    if address.startswith(("http://", "https://")):
        host = urlsplit(address).hostname or "HEAD"
        hint = f"give the head's own port, such as {host}:{PORT}, or use `paceline submit`"
        message = f"{address} is a dashboard's address, by which no driver joins a cluster: {hint}"
        raise EnvironmentFault(message, "dashboard-address", address=address)
    if not answers(address):
        hint = f"start the cluster, or give the address of the head's own port, such as HEAD:{PORT}"
        message = f"no Ray cluster answers at {address}: {hint}; through a tunnel, use `paceline submit`"
        raise EnvironmentFault(message, "ray-unreachable", address=address)


def _unreached(address: str | None, error: Exception) -> str:
    if on_cluster(address):
        return f"the Ray cluster{f' at {address}' if address else ''} could not be reached: {error}"
    hint = ". Run the same command again, when the machine is less busy" if _timed_out(error) else ""
    return f"a local Ray could not be started: {str(error).rstrip().rstrip('.')}{hint}"


def _start_private(folder: Path) -> None:
    """Start a private Ray; one that does not come up in time, as on a busy machine, gets a second attempt."""
    import ray

    # the dashboard's processes would take seconds to start, and nobody knows its address
    options = {"include_dashboard": False, "job_config": job_without_folders(), **_QUIET}
    try:
        init_private(folder, **options)
    except Exception as error:
        if not _timed_out(error):
            raise
        ray.shutdown()
        init_private(folder, **options)


def _join(address: str | None, runtime_env: dict[str, Any] | None) -> None:
    """Join the cluster at an address, or the one that this job was submitted to."""
    import ray

    if address is None:
        ray.init(**_QUIET)
    else:
        ray.init(address=address, runtime_env=runtime_env or {}, **_QUIET)


def _timed_out(error: Exception) -> bool:
    return "timed out" in str(error)


_QUIET: dict[str, Any] = {"logging_level": logging.ERROR, "configure_logging": True}
