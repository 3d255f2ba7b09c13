"""The server that ranks and commands are forked from. It has imported what is slow to import: they start at once."""

import gc
import multiprocessing
import multiprocessing.forkserver
import os
from typing import Any

# the server imports MLflow by itself, which would report that to its makers
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "paceline.cli", "paceline.cluster.train", "paceline.cluster.train_in_process"),
        *(
            "paceline.cluster.stored_runs",
            "paceline.cluster.train_worker",
            "paceline.engine.build",
            "paceline.engine.fsdp",
        ),
        *("paceline.engine.pipeline", "paceline.tracking.uploader_process"),
        # for the process that uploads, and for the picture of a run
        *("mlflow.store.tracking.sqlalchemy_store", "mlflow.store.model_registry.sqlalchemy_store"),
        *(
            "mlflow.store.tracking.rest_store",
            "alembic.command",
            "matplotlib.figure",
            "matplotlib.backends.backend_agg",
        ),
    ]
)


def become_ordinary() -> None:
    """Make a forked process like one that has been started: call it first."""
    gc.freeze()  # what the server has imported is no garbage
    # the default, or each of its loader processes would come from a server of its own, which imports torch first
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)


def address() -> str:
    """Return the address of the server, for a process that comes from it; it is started if need be."""
    multiprocessing.forkserver.ensure_running()
    return str(_server()._forkserver_address)


def use(server_address: str) -> None:
    """Have this process fork from the server of another one, rather than start one of its own."""
    server = _server()
    server._forkserver_address = server_address
    if (
        server._forkserver_alive_fd is None
    ):  # what it forks gets it: the server lives as long as the one that started it
        server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
    server.ensure_running = lambda: None


def _server() -> Any:
    return multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
