"""The process group of a worker group, as Ray Train's controller has the workers make it.

Ray's own `TorchConfig` has the controller import torch, which takes seconds that every worker group waits for; only the
workers need it. So nothing here is imported before it runs in a worker.
"""

import os
import socket
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import ray
import ray.train
import ray.util
from ray.train.backend import Backend, BackendConfig

SHUTDOWN_SECONDS = 30.0
"""Time that workers may take to end their process group, as in Ray's own backend; they are ended afterwards."""
NCCL_SWITCHES = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT")
"""Variables of which torch needs one, or a collective operation that times out hangs."""


class GroupBackend(Backend):  # type: ignore[misc]
    """Runs in Ray Train's controller: one process group for all workers, over the interface of each node."""

    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: "GroupConfig") -> None:
        """Have the workers of a group join one process group."""
        worker_group.execute(prepare)  # takes seconds; in the meantime something else might take the port
        place, size = worker_group.execute_single(0, meeting_place), len(worker_group)
        given = backend_config.backend, backend_config.timeout_s
        ray.get([worker_group.execute_single_async(rank, join, place, rank, size, *given) for rank in range(size)])

    def on_shutdown(self, worker_group: Any, backend_config: "GroupConfig") -> None:
        """Have the workers leave the process group, where all of them still answer."""
        if len(worker_group) > 1:
            ray.wait(worker_group.execute_async(leave), num_returns=len(worker_group), timeout=SHUTDOWN_SECONDS)


@dataclass
class GroupConfig(BackendConfig):  # type: ignore[misc]
    """Config of the process group of a worker group, in place of Ray's `TorchConfig`."""

    backend: str
    """Backend, as for `torch.distributed.init_process_group`."""
    timeout_s: int
    """Seconds that one collective operation may take."""

    @property
    def backend_cls(self) -> type[GroupBackend]:
        """Backend class, which Ray Train's controller uses."""
        return GroupBackend

    @property
    def train_func_context(self) -> Any:
        """Context manager that makes the worker's GPU the current one, as Ray's own does. The driver asks for it."""
        from ray.train.torch.config import TorchConfigContextManager

        return TorchConfigContextManager

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for Ray's dashboard."""
        return asdict(self)


def prepare() -> None:
    """Prepare a worker for the process group that it is about to join.

    Functions of torch that take the current process group as their default are imported before there is one. Imported
    later, they would refer to it forever: its sockets would stay open after a rank has failed and given it up, and gloo
    would leave the other ranks in their collective operation until they are killed.
    """
    import torch.distributed.nn.functional  # noqa: F401

    from paceline._compat.torch import listen_on_master_address
    from paceline.cluster.network import use_interface

    use_interface(ray.util.get_node_ip_address())
    listen_on_master_address()


def meeting_place() -> tuple[str, int]:
    """Return the address of this worker's node, and a port that is free there."""
    address = ray.util.get_node_ip_address()
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind(("", 0))
        return address, int(probe.getsockname()[1])


def join(place: tuple[str, int], rank: int, world_size: int, backend: str, timeout_seconds: float) -> None:
    """Join the process group; called in each worker, with the variables that torch's own launcher sets."""
    import ray.train.torch
    import torch.distributed as dist

    context = ray.train.get_context()
    os.environ.update(
        MASTER_ADDR=place[0],
        MASTER_PORT=str(place[1]),
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(context.get_local_rank()),
        LOCAL_WORLD_SIZE=str(context.get_local_world_size()),
        NODE_RANK=str(context.get_node_rank()),
        ACCELERATE_TORCH_DEVICE=str(ray.train.torch.get_device()),  # or Hugging Face's Accelerate takes another one
    )
    if "nccl" in backend and not any(switch in os.environ for switch in NCCL_SWITCHES):
        os.environ[NCCL_SWITCHES[0]] = "1"
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(backend, init_method="env://", rank=rank, world_size=world_size, timeout=timeout)


def leave() -> None:
    """End the process group; called in each worker."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
