"""Runs of these tests are recorded in their journals alone."""

from support.cluster.unsent_runs import no_other_process, work

__all__ = ["no_other_process", "work"]
