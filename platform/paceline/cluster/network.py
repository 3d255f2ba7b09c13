"""The process group of workers on several machines: over the network interface by which their nodes know each other."""

from typing import Any

import ray.util
from ray.train.torch import TorchConfig

from paceline.cluster.interfaces import use_interface


def use_the_nodes_interface() -> None:
    """Have gloo and NCCL of this process talk over the interface that has its node's address, as Ray knows it; what the
    user's environment names stays."""
    use_interface(ray.util.get_node_ip_address())


_TorchBackend: Any = TorchConfig().backend_cls


class _NodesBackend(_TorchBackend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(use_the_nodes_interface)
        super().on_start(worker_group, backend_config)


class NodesTorchConfig(TorchConfig):  # type: ignore[misc]
    """Ray Train's process group, but over the interface of each node."""

    @property
    def backend_cls(self) -> type[_NodesBackend]:
        return _NodesBackend


def torch_config(use_gpu: bool, timeout_seconds: float, private: bool) -> TorchConfig:
    """How the workers of a group find each other.

    Args:
        use_gpu: whether they train on GPUs; what stays on CPU goes over gloo.
        timeout_seconds: how long one waits for another.
        private: whether all are on this machine alone, where nothing is to be chosen.
    """
    kind = TorchConfig if private else NodesTorchConfig
    return kind(backend="cpu:gloo,cuda:nccl" if use_gpu else "gloo", timeout_s=int(timeout_seconds))
