"""The network between the nodes: the interface that each of them talks over, and the speed of an all-reduce."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from paceline.cluster.nodes import Node
from paceline.errors import EnvironmentFault, last_line

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables from which gloo and NCCL take the name of an interface. Both would otherwise guess: gloo by the machine's
own name, which in many images stands for 127.0.0.1, NCCL by the first one that is up."""
SIZES = (2**20, 2**23, 2**26)
"""Sizes of the all-reduces in bytes: small gradients, about DDP's default bucket, and enough to fill any link."""
SIZE_SECONDS = 1.0
"""Seconds for which each size is measured, after a first trial; a size that takes longer is measured once."""
SLOW_SECONDS = 4.0
"""Seconds of an all-reduce after which no larger size is tried."""
START_SECONDS = 60.0
MEASURE_SECONDS = 60.0


def interface_of(address: str) -> str | None:
    """Return the name of this machine's network interface that has an IP address; None if none has."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    for name, own in psutil.net_if_addrs().items():
        if any(each.family in families and each.address.partition("%")[0] == address for each in own):
            return name
    return None


def use_interface(address: str) -> None:
    """Have gloo and NCCL of this process use the interface that has an IP address. Variables that the user has set are
    kept."""
    name = interface_of(address)
    if name is not None:
        for variable in INTERFACES:
            os.environ.setdefault(variable, name)


def megabits(interface: str) -> int | None:
    """Return the speed of an interface in Mbit/s; None if the system does not report it, as for many virtual ones."""
    try:
        speed = int(Path("/sys/class/net", interface, "speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


@dataclass(frozen=True)
class Exchange:
    """Time of an all-reduce of one size."""

    size: int
    """Number of bytes that each process has."""
    seconds: float
    """Mean seconds of an all-reduce, by the slowest process."""
    processes: int

    @property
    def algorithm(self) -> float:
        """Bytes per second as the caller sees them."""
        return self.size / self.seconds

    @property
    def bus(self) -> float:
        """Bytes per second over each process's link: nccl-tests' bus bandwidth."""
        return self.algorithm * 2 * (self.processes - 1) / self.processes


def processes_on(nodes: Sequence[Node]) -> tuple[str, list[Node]]:
    """Return the backend, and the node of each process: one for each free GPU, or one per node; on a single node
    two."""
    gpus = [node for node in nodes for _ in range(int(node.free.gpus))]
    if len(gpus) > 1:
        return "nccl", gpus
    return "gloo", list(nodes) if len(nodes) > 1 else [*nodes, *nodes]


def measure(nodes: Sequence[Node], sizes: Sequence[int] = SIZES) -> tuple[str, list[Exchange]]:
    """Return the backend that was used, and the measurement of each size.

    Raises:
        EnvironmentFault: the processes could not be started, or do not reach each other.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    backend, homes = processes_on(nodes)
    ranks = [
        ray.remote(Rank)
        .options(
            num_cpus=0,
            num_gpus=1 if backend == "nccl" else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(home.id, soft=False),
        )
        .remote(home.address)
        for home in homes
    ]
    try:
        meeting = ray.get([rank.meeting.remote() for rank in ranks], timeout=START_SECONDS)[0]
        tasks = [
            rank.measure.remote(number, len(ranks), meeting, backend, list(sizes)) for number, rank in enumerate(ranks)
        ]
        found = ray.get(tasks, timeout=MEASURE_SECONDS)
    except ray.exceptions.RayError as error:
        names = [home.name for home in homes]
        message = f"{backend} over {', '.join(names)}: {last_line(error)}"
        raise EnvironmentFault(message, "exchange-failed", backend=backend, nodes=names) from None
    finally:
        for rank in ranks:
            ray.kill(rank)
    return backend, [
        Exchange(of_size[0][0], max(seconds for _, seconds in of_size), len(ranks))
        for of_size in zip(*found, strict=True)
    ]


class Rank:
    """One process of the test; an actor.

    Args:
        address: of its node.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        use_interface(address)

    def meeting(self) -> str:
        """Return the address at which the processes meet, if this is the first one."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        with socket.socket(family) as free:
            free.bind((self._address, 0))
            port = free.getsockname()[1]
        host = f"[{self._address}]" if ":" in self._address else self._address
        return f"tcp://{host}:{port}"

    def measure(
        self, rank: int, processes: int, meeting: str, backend: str, sizes: list[int]
    ) -> list[tuple[int, float]]:
        """Return bytes and seconds of an all-reduce, for each size that was tried."""
        import torch
        from torch import distributed

        device = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
        distributed.init_process_group(
            backend, meeting, timedelta(seconds=MEASURE_SECONDS), world_size=processes, rank=rank
        )
        try:
            found = []
            for size in sizes:
                tensor = torch.ones(size // 4, device=device)
                once = _agreed(self._seconds(tensor, 1), device)
                seconds = _agreed(self._seconds(tensor, max(1, min(50, int(SIZE_SECONDS / once)))), device)
                found.append((size, seconds))
                if once > SLOW_SECONDS:
                    break
            return found
        finally:
            distributed.destroy_process_group()

    def _seconds(self, tensor: Any, times: int) -> float:
        from torch import cuda, distributed

        distributed.barrier()
        began = time.perf_counter()
        for _ in range(times):
            distributed.all_reduce(tensor)
            tensor.fill_(1.0)
        if tensor.is_cuda:
            cuda.synchronize()
        return (time.perf_counter() - began) / times


def _agreed(seconds: float, device: Any) -> float:
    """Return the slowest process's seconds, on all processes, so that each does the same."""
    import torch
    from torch import distributed

    told = torch.tensor([seconds], dtype=torch.float64, device=device)
    distributed.all_reduce(told, op=distributed.ReduceOp.MAX)
    return float(told)
