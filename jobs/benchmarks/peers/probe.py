"""Notes each optimizer step of each worker, and kills one worker once. peers.py sets the environment variables."""

import json
import os
import signal
import time


def note_step(batch_size: int, lr: float, step: int) -> None:
    """Append the step, counted from 1, to the file PEERS_STEPS.

    If PEERS_KILL is `BATCH_SIZE LR STEP`, the last worker of this trial ends by SIGKILL after this step, the first time
    that it gets there.
    """
    from torch.distributed import get_rank, get_world_size

    file, kill = os.environ["PEERS_STEPS"], os.environ.get("PEERS_KILL")
    line = {"time": time.time(), "batch_size": batch_size, "lr": lr, "step": step, "rank": get_rank()}
    with open(file, "a") as steps:
        steps.write(json.dumps(line) + "\n")
    is_chosen = kill == f"{batch_size} {lr} {step}" and get_rank() == get_world_size() - 1
    if is_chosen and not os.path.exists(file + ".killed"):
        open(file + ".killed", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
