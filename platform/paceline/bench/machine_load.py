"""Load of this machine before a study: other programs make its figures noisy."""

import psutil

from paceline.cluster.listener import Stages
from paceline.cluster.ray_session import on_cluster

SAMPLE_SECONDS = 0.5
BUSY = 0.25
"""Share of all cores' time that other programs may take before a study says so."""


def warn_of_load(address: str | None, listener: Stages) -> list[str]:
    """Warn if other programs use this machine, and return a note for the findings.

    Call it before any process of the study runs. On a cluster nothing is measured: this machine may not be part of it.
    """
    if on_cluster(address):
        return []
    share = psutil.cpu_percent(interval=SAMPLE_SECONDS) / 100
    if share < BUSY:
        return []
    text = (
        f"other programs took {100 * share:.0f} % of this machine's cores before the measurements began: intervals are "
        "wider than on a quiet one, and times of a step may be too long"
    )
    listener.event("warning", {"code": "machine-busy", "message": text})
    return [text]
