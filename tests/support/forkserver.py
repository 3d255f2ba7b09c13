"""The server that ranks and commands are forked from. It has imported what is slow to import: they start at once."""

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "paceline.cli", "paceline.cluster.experiment", "paceline.cluster.in_process"),
        *("paceline.cluster.stored_runs", "paceline.cluster.worker", "paceline.engine.build", "paceline.engine.fsdp"),
        *("paceline.engine.pipeline", "paceline.tracking.apart"),
    ]
)
