"""`torch.nn.DataParallel`: one process cuts each micro batch over its GPUs and copies the model to them every time.

The old way, kept as the slow baseline that the others are compared with; DDP is faster on one node already.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel

from paceline._compat.torch import tree_leaves
from paceline.engine.order import mix
from paceline.engine.output_checks import checked_output
from paceline.errors import EnvironmentFault, UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


def apply_data_parallel(task: Task, device: torch.device) -> nn.Module:
    """Spread the task over all GPUs that this process sees; its parameters stay on `device`.

    As torch has it: random numbers and BatchNorm's batch statistics are each replica's own, the running statistics are
    the first one's, and in its forward pass a replica finds nothing in `parameters()`.

    Raises:
        EnvironmentFault: there are fewer than two GPUs.
    """
    count = torch.cuda.device_count() if device.type == "cuda" else 0
    if count < 2:
        raise EnvironmentFault(
            f"parallel.strategy data_parallel needs at least 2 GPUs in one process, this one sees {count}: use ddp",
            "too-few-gpus",
            available=count,
        )
    first = torch.cuda.current_device() if device.index is None else device.index
    return SummedReplicas(task, [first, *(index for index in range(count) if index != first)])


class SummedReplicas(nn.Module):
    """The task over several devices: `forward(batch)` gives the sums over the replicas' parts of the batch."""

    def __init__(self, task: Task, devices: list[int]) -> None:
        super().__init__()
        self.replicas = DataParallel(_Replica(task), device_ids=devices)

    def forward(self, batch: Any) -> TaskOutput:
        """Loss, weight and (in evaluation) metrics of the whole batch, which is cut along its first dimension.

        Raises:
            UnusableCode: it cannot be cut.
        """
        _require_cuttable(batch)
        devices = self.replicas.device_ids
        if self.training:
            _seed_replicas(devices)
        sums = self.replicas(batch, _autocast_dtype(devices))
        return TaskOutput(
            sums["loss_sum"].sum(), sums["weight"].sum(), {name: each.sum(0) for name, each in sums["metrics"].items()}
        )


class _Replica(nn.Module):
    """The task with an output of the kind that DataParallel gathers: tensors of shape [1, ...]."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, batch: Any, autocast_dtype: torch.dtype | None) -> dict[str, Any]:
        if autocast_dtype is None:
            output = checked_output(self.task(batch))
        else:
            # DataParallel switches autocast on in its threads, but with fp16, whatever the caller's format is
            with torch.autocast("cuda", dtype=autocast_dtype):
                output = checked_output(self.task(batch))
        metrics = {} if self.training else output.metrics
        return {
            "loss_sum": output.loss_sum.reshape(1),
            "weight": _as_vector(output.weight, output.loss_sum.device),
            "metrics": {name: _as_vector(value, output.loss_sum.device) for name, value in metrics.items()},
        }


def _as_vector(value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().to(device).unsqueeze(0)
    return torch.full((1,), value, device=device)


def _require_cuttable(batch: Any) -> None:
    # DataParallel would give what it cannot cut to every replica, and the sums would count it several times
    leaves = tree_leaves(batch)
    other = next((leaf for leaf in leaves if not isinstance(leaf, torch.Tensor) or not leaf.dim()), None)
    if other is not None:
        kind = "a number" if isinstance(other, torch.Tensor) else f"a {type(other).__name__}"
        reason = f"the data give {kind} in a batch"
    elif len({len(leaf) for leaf in leaves}) != 1:
        reason = "the tensors of a batch differ in their first dimension"
    else:
        return
    raise UnusableCode(
        f"parallel.strategy data_parallel cuts batches of tensors along their first dimension, but {reason}; use ddp",
        "batch-not-divisible",
        reason=reason,
    )


def _autocast_dtype(devices: list[int]) -> torch.dtype | None:
    return torch.get_autocast_dtype("cuda") if devices and torch.is_autocast_enabled("cuda") else None


def _seed_replicas(devices: list[int]) -> None:
    """Seed the other devices from the first one, which is seeded for each micro batch: see `StepSeeds`."""
    for place, device in enumerate(devices[1:], start=1):
        seed = mix(torch.cuda.default_generators[devices[0]].initial_seed(), place)
        torch.cuda.default_generators[device].manual_seed(seed)
