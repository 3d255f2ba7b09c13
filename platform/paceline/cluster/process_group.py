"""The process group of a run's workers: one that a rank can give up, over the network interface of the nodes."""

from typing import Any

import ray.util
from ray.train.torch import TorchConfig

from paceline._compat.torch import listen_on_master_address
from paceline.cluster.network_interfaces import use_interface


def use_the_nodes_interface() -> None:
    """Have gloo and NCCL of this process talk over the interface that has its node's address, as Ray knows it; what the
    user's environment names stays."""
    use_interface(ray.util.get_node_ip_address())


def import_what_would_keep_the_group() -> None:
    """Import, before there is a process group, the functions of torch that take the one of the moment as their default.

    Imported later they would refer to it for ever: its sockets stayed open when a rank has failed and given it up, and
    gloo leaves the other ranks in their collective operation until they are killed.
    """
    import torch.distributed.nn.functional  # noqa: F401


def prepare_for_group() -> None:
    """Prepare a worker for the process group that it is about to join."""
    import_what_would_keep_the_group()
    use_the_nodes_interface()
    listen_on_master_address()


_TorchBackend: Any = TorchConfig().backend_cls


class _Backend(_TorchBackend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(prepare_for_group)
        super().on_start(worker_group, backend_config)


class GroupConfig(TorchConfig):  # type: ignore[misc]
    """Ray Train's process group, but one that a rank can give up, over the interface of each node."""

    @property
    def backend_cls(self) -> type[_Backend]:
        return _Backend


def torch_config(use_gpu: bool, timeout_seconds: float) -> TorchConfig:
    """How the workers of a group find each other.

    Args:
        use_gpu: whether they train on GPUs; what stays on CPU goes over gloo.
        timeout_seconds: how long one waits for another.
    """
    return GroupConfig(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo", timeout_s=int(timeout_seconds))
