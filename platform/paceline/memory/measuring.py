"""The peak memory of training, measured: the second step of a real trainer, in fresh processes."""

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from paceline.cluster.separate_process import SeparateProcess, answer
from paceline.config.batch_sizes import at_largest_stage
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault

SECOND_STEP = "second step"
TIMEOUT_SECONDS = 1800.0


def measure_peak(config: ExperimentConfig, use_gpu: bool = False, timeout_seconds: float = TIMEOUT_SECONDS) -> int:
    """The peak of the memory that tensors take in rank 0's second step, in bytes.

    That is weights, buffers, optimizer state, gradients, activations and the batch, without data sets. On CPU it comes
    from the profiler's memory events, and is without what a library takes by itself; on CUDA from
    `torch.cuda.max_memory_allocated`. Nothing is saved or recorded.

    Args:
        config: trained for two steps, by `scaling.num_workers` processes on this machine.
        use_gpu: one GPU for each process; else the CPU.
        timeout_seconds: how long it may take.

    Raises:
        EnvironmentFault: there are fewer GPUs than processes, a process died, or it took too long.
        RunFailed: the training code raised an error.
    """
    workers = max(config.scaling.num_workers, 1)
    port = str(_free_port()) if workers > 1 else ""
    processes = [SeparateProcess(__name__, config, [rank, workers, port, use_gpu]) for rank in range(workers)]
    try:
        return int(processes[0].answer(timeout_seconds))
    finally:
        for process in processes:
            process.end()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _measure(config: ExperimentConfig, options: Any) -> int:
    """On one rank."""
    import torch
    import torch.distributed as dist

    from paceline.cluster.preflight import worker_threads
    from paceline.engine.build import build_trainer
    from paceline.engine.dist_context import DistContext
    from paceline.engine.reporter import MemoryReporter

    rank, workers, port, use_gpu = options
    if use_gpu and torch.cuda.device_count() < workers:
        gpus = torch.cuda.device_count()
        message = f"{workers} processes are to use a GPU each, there are {gpus}"
        raise EnvironmentFault(message, "too-few-gpus", asked=workers, available=gpus)
    device = torch.device("cuda", rank) if use_gpu else torch.device("cpu")
    torch.set_num_threads(worker_threads(config))
    if use_gpu:
        torch.cuda.set_device(device)
    if port:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        seconds = timedelta(seconds=config.parallel.timeout_seconds)
        address = f"tcp://127.0.0.1:{port}"
        backend = "nccl" if use_gpu else "gloo"
        dist.init_process_group(backend, init_method=address, rank=rank, world_size=workers, timeout=seconds)
    config = config.with_overrides(at_largest_stage(config))
    steps = _Steps(build_trainer(config, DistContext.current(device), MemoryReporter()))
    peak = _on_cuda(steps, device) if use_gpu else _on_cpu(steps)
    steps.close()
    if port:
        dist.barrier()
        dist.destroy_process_group()
    return peak


class _Steps:
    """A trainer that is driven step by step, over the first epochs."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        trainer.state.task.train()
        self._batches = self._all_batches()

    def step(self) -> None:
        """One optimizer step."""
        samples = self.trainer.step(self._batches, self.trainer.state.position.step).samples
        self.trainer.state.position.advance(samples, epoch_is_over=False)

    def close(self) -> None:
        """End the loader processes."""
        self.trainer.close()

    def held_bytes(self) -> int:
        """Bytes of weights, buffers, gradients and optimizer state."""
        from paceline._compat.torch import tree_leaves

        task, layout = self.trainer.state.task, self.trainer.state.layout
        tensors = [*task.parameters(), *task.buffers(), *(each.grad for each in task.parameters())]
        return _bytes([*tensors, *tree_leaves(dict(self.trainer.state.optimizer.state))], layout)

    def _all_batches(self) -> Iterator[Any]:
        for epoch in range(10**9):
            yield from self.trainer.map_style.loader.load(epoch, self.trainer.map_style.order.micro_batches(epoch))


def _bytes(tensors: list[Any], layout: Any) -> int:
    import torch

    held = [layout.local(each).untyped_storage() for each in tensors if isinstance(each, torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in held}.values())


def _on_cuda(steps: _Steps, device: Any) -> int:
    import torch

    steps.step()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    steps.step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device))


def _on_cpu(steps: _Steps) -> int:
    from torch.profiler import ProfilerActivity, profile, record_function

    held = steps.held_bytes()
    # from the first step on: of what was allocated earlier, the profiler does not see how it is freed; it sees DDP's
    # buckets, since they are laid out again in the first step
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        steps.step()
        with record_function(SECOND_STEP):
            steps.step()
    events = profiler.profiler.kineto_results.events()
    return held + max(_held_in_second_step(sorted(events, key=lambda event: event.start_ns())))


def _held_in_second_step(events: list[Any]) -> Iterator[int]:
    held, is_second = 0, False
    for event in events:
        is_second = is_second or event.name() == SECOND_STEP
        if event.name() == "[memory]":
            held += event.nbytes()  # negative when it is freed
        if is_second:
            yield held


if __name__ == "__main__":
    answer(_measure)
