"""Pipeline parallelism: each rank holds a stage of the model, and the micro batches of a step pass through the stages.

With more ranks than stages there are several pipelines, each with samples of its own; their gradients are summed.

layers of each stage        pipeline_cut
a stage and its neighbours  pipeline_line
the passes of a step        pipeline_pass
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from paceline.config.sections import ParallelConfig
from paceline.engine.activation_checkpointing import forbid_in_place
from paceline.engine.comm_hooks import GradientObserver
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import ForwardBackward
from paceline.engine.layout import Replicated, copied, set_timeouts
from paceline.engine.pipeline_cut import Link, balanced, keep_only, links_of
from paceline.engine.pipeline_line import Line, ModelTap, Stage
from paceline.engine.pipeline_pass import PipelineForwardBackward
from paceline.engine.precision import Precision
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.engine.stateful import merged
from paceline.engine.strategy import Strategy, require_same_start
from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput


class Pipeline(Strategy):
    """`pipeline`: stage s of copy d is rank s * copies + d, so that neighbours exchange gradients."""

    def __init__(self, parallel: ParallelConfig, ranks: DistContext) -> None:
        super().__init__(parallel, ranks)
        self.stages = parallel.pipeline_stages or ranks.world_size
        copies = ranks.world_size // self.stages
        mesh = init_device_mesh(ranks.device.type, (self.stages, copies), mesh_dim_names=("stage", "copy"))
        set_timeouts(mesh, parallel.timeout_seconds)
        self.stage, copy = divmod(ranks.rank, copies)
        self.data_ranks = DistContext(copy, copies, ranks.device, mesh.get_group("copy"))
        self.group = mesh.get_group("stage")
        self.moves_to_device = True

    def distribute(self, task: Task, precision: Precision) -> nn.Module:
        """Cut the task's model down to this rank's stage, in place, and return the task."""
        require_same_start(task, self.ranks)
        parts = _parts(task.model, self.stages)
        own = _names_of_stage(task, parts, self.stage)
        numbers = _numbers(task, own)
        if not numbers:
            raise UnusableCode(
                f"parallel.strategy pipeline: stage {self.stage} has nothing to train: write fewer "
                "parallel.pipeline_stages, or use another strategy",
                "pipeline-empty-stage",
                stage=self.stage,
            )
        self.layout = Staged(numbers, self.group, is_first_pipeline=self.data_ranks.is_first)
        keep_only(task, own)
        _move(task, self.ranks.device)
        forbid_in_place(task.model)  # a stage must not overwrite the tensor that it receives
        self._links = parts[self.stage]
        self._tap = ModelTap()
        task.model.forward = self._tap
        return task

    def forward_backward(
        self,
        model: nn.Module,
        precision: Precision,
        running: RunningLoss,
        seeds_of: Callable[[DistContext], StepSeeds],
        observer: GradientObserver | None,
    ) -> ForwardBackward:
        """Return the pass over the micro batches of a step, through all stages."""
        assert isinstance(model, Task)
        stage = Stage(self._links, precision, seeds_of(self.ranks))
        self._line = Line(stage, self._tap, model, self.stage, self.stages, self.group, self.ranks.device)
        seeds = seeds_of(self.data_ranks)
        return PipelineForwardBackward(self._line, model, precision, self.data_ranks, running, seeds, self.own_time)

    def evaluate(self, task: Task, batch: Any) -> TaskOutput | None:
        """Return the task's output on the last stage; None on the others."""
        value = self._line.forward(batch)
        return self._tap.output_of(task, batch, value) if self._line.is_last else None


class Staged(Replicated):
    """Layout in which every rank holds some of the layers; the parameters of the other layers have no memory (`meta`).

    Args:
        numbers: index of each of this rank's trainable parameters among those of the whole task.
        group: process group of one pipeline, with one rank per stage.
        is_first_pipeline: True for the pipeline of rank 0.
    """

    is_spread = True

    def __init__(self, numbers: list[int], group: dist.ProcessGroup, is_first_pipeline: bool) -> None:
        self._numbers = numbers
        self._group = group
        self._is_first_pipeline = is_first_pipeline

    def numbers(self, parameters: list[nn.Parameter]) -> list[int]:
        """Return the index of each of this rank's trainable parameters among those of the whole task."""
        return self._numbers

    def holds(self, tensor: Tensor) -> bool:
        """Return True if a tensor belongs to this rank's stage."""
        return not tensor.is_meta

    def collect(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return CPU copies of the tensors of all stages on rank 0; on other ranks those of this stage."""
        return self._gathered({name: copied(tensor) for name, tensor in tensors.items() if self.holds(tensor)})

    def collect_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all stages that are not tensors on rank 0; on other ranks those of this stage."""
        return self._gathered(dict(values))

    def collect_nested(self, values: Any) -> Any:
        """Return the JSON values of a component of all stages, merged on rank 0."""
        if not self._is_first_pipeline:
            return values
        is_first = self._group.rank() == 0
        parts: list[Any] = [None] * self._group.size()
        dist.gather_object(values, parts if is_first else None, group=self._group, group_dst=0)
        return merged(parts) if is_first else values

    def _gathered(self, mine: dict[str, Any]) -> dict[str, Any]:
        if not self._is_first_pipeline:
            return mine
        is_first = self._group.rank() == 0
        parts: list[dict[str, Any]] = [{} for _ in range(self._group.size())]
        dist.gather_object(mine, parts if is_first else None, group=self._group, group_dst=0)
        return {name: value for part in parts for name, value in part.items()} if is_first else mine

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Clip the gradients by the norm over all stages."""
        mine = list(parameters)
        squared = get_total_norm([each.grad for each in mine if each.grad is not None]).square()
        dist.all_reduce(squared, group=self._group)
        total = squared.sqrt()
        clip_grads_with_norm_(mine, max_norm, total)
        return total


def _parts(model: nn.Module, stages: int) -> list[list[Link]]:
    links = links_of(model)
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in trained}
    return balanced(links, [sum(sizes.get(name, 0) for name in link.tensors) for link in links], stages)


def _names_of_stage(task: Task, parts: list[list[Link]], stage: int) -> frozenset[str]:
    """Return the state dict names of the tensors that a stage holds.

    The last stage also holds the tensors that no link uses, and the task's own. The task's own buffers are on all
    stages, since the task may use them before it calls its model.

    Raises:
        UnusableCode: two stages share a parameter.
    """
    held = [{f"model.{name}" for link in part for name in link.tensors} for part in parts]
    everything = dict([*task.named_parameters(remove_duplicate=False), *task.named_buffers(remove_duplicate=False)])
    held[-1] |= everything.keys() - set().union(*held)
    stages_of: dict[int, dict[int, str]] = {}
    for number, names in enumerate(held):
        for name in names:
            stages_of.setdefault(id(everything[name]), {})[number] = name
    for sharing in stages_of.values():
        if len(sharing) > 1:
            places, shared = " and ".join(map(str, sorted(sharing))), " and ".join(sorted(set(sharing.values())))
            raise UnusableCode(
                f"parallel.strategy pipeline: stages {places} share {shared}; give each weights of its own (gpt: "
                "model.tie_embeddings: false), or use another strategy",
                "pipeline-shared-weights",
                stages=sorted(sharing),
                names=sorted(set(sharing.values())),
            )
    return frozenset(held[stage] | {name for name, _ in task.named_buffers() if not name.startswith("model.")})


def _numbers(task: Task, own: frozenset[str]) -> list[int]:
    trainable = [name for name, parameter in task.named_parameters() if parameter.requires_grad]
    return [number for number, name in enumerate(trainable) if name in own]


def _move(task: Task, device: torch.device) -> None:
    for tensor in [*task.parameters(), *task.buffers()]:
        if not tensor.is_meta:
            tensor.data = tensor.data.to(device)
