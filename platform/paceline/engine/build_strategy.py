"""Builds the strategy that a config asks for."""

from paceline.config.sections import ParallelConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.strategy import FullySharded, ReplicasInProcess, Strategy


def build_strategy(parallel: ParallelConfig, ranks: DistContext) -> Strategy:
    """The strategy of a config. Every rank must call it."""
    if parallel.strategy == "data_parallel":
        return ReplicasInProcess(parallel, ranks)
    if ranks.world_size == 1:
        return Strategy(parallel, ranks)
    if parallel.strategy == "fsdp":
        return FullySharded(parallel, ranks)
    if parallel.strategy == "pipeline":
        # here, since torch's pipelining takes long to import
        from paceline.engine.pipeline import Pipeline

        return Pipeline(parallel, ranks)
    return Strategy(parallel, ranks)
