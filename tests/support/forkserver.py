"""The server that ranks and commands are forked from. It has imported what is slow to import: they start at once."""

import gc
import multiprocessing

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
    ]
)


def become_ordinary() -> None:
    """Make a forked process like one that has been started: call it first."""
    gc.freeze()  # what the server has imported is no garbage
    # the default, or each of its loader processes would come from a server of its own, which imports torch first
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
