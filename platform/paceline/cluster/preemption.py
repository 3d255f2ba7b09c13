"""Notice that a machine of this worker's group is about to be taken away, as a spot instance is.

Ray tells each worker once it has been told to drain a node. Its own question after that, `get_preemption_info`, is a
barrier over all workers: too dear at each step.
"""

import time
from typing import Any

from paceline._compat.ray import preemption_info

LATE_SECONDS = 120.0
"""How long after its announced end a machine is still taken to go."""


def notice() -> Any | None:
    """Ray Train's `PreemptionInfo` for this worker's group; None as long as all of its machines stay."""
    return preemption_info()


def is_near(info: Any) -> bool:
    """Whether a machine may still go as announced; one that is there long after its time stays, it seems."""
    return info.deadline_ms is None or time.time() < info.deadline_ms / 1000 + LATE_SECONDS


def notice_text(info: Any) -> str:
    """What a notice says, for the watcher."""
    ranks = ", ".join(str(rank) for rank in info.preempted_ranks)
    left = None if info.deadline_ms is None else info.deadline_ms / 1000 - time.time()
    when = "" if left is None else f" in {max(0.0, left):.0f} s"
    return f"the machine of rank {ranks} is taken away{when}: its state is saved, and training resumes elsewhere"
