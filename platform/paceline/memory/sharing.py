"""Share of a rank in the memory of a model, where the ranks divide it: estimates."""

from paceline.config.batch_sizes import BatchSizes
from paceline.config.experiment import ExperimentConfig
from paceline.memory.timeline import Role

SHARED: tuple[Role, ...] = ("weights", "gradients", "optimizer")


def share(
    memory: dict[Role, int], config: ExperimentConfig, sizes: BatchSizes, on_cuda: bool, gathered_bytes: int = 0
) -> tuple[dict[Role, int], tuple[str, ...]]:
    """One rank's part, and what is approximate about it.

    Args:
        memory: bytes of one rank that holds all of the model.
        sizes: the rank's batches.
        gathered_bytes: what `fsdp` holds of whole weights and gradients at once.
    """
    workers, strategy = config.scaling.num_workers, config.parallel.strategy
    notes = list(_unmodelled(config, on_cuda))
    if strategy == "fsdp" and workers > 1:
        parts = config.parallel.shard_size or workers
        notes.append("fsdp: the state divided by the ranks, and the largest block put together; an estimate")
        memory = memory | {role: memory[role] // parts for role in SHARED}
        memory["workspace"] += gathered_bytes
    if strategy == "pipeline" and workers > 1:
        stages = config.parallel.pipeline_stages or workers
        flying = min(stages, sizes.gradient_accumulation_steps)
        notes.append("pipeline: equal stages, and as many micro batches at once as there are stages; an estimate")
        memory = memory | {role: memory[role] // stages for role in (*SHARED, "workspace")}
        memory["activations"] = memory["activations"] * flying // stages
    if strategy == "data_parallel":
        notes.append("data_parallel: as if one GPU took the whole micro batch; an upper bound")
    return memory, tuple(notes)


def _unmodelled(config: ExperimentConfig, on_cuda: bool) -> list[str]:
    notes = []
    if config.trainer.compile != "none":
        notes.append("compile: predicted without the compiler, which needs less as a rule")
    if on_cuda:
        notes.append(
            "CUDA: traced with the CPU's kernels; without cuDNN's workspace, the CUDA context (0.3 to 0.6 GB) and "
            "fragmentation"
        )
    return notes
