"""Worker groups of a sweep, started and ended by the driver as the coordinator's slots want them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.worker_group import TrainerThread, kill_workers
from paceline.cluster.worker_spec import WorkerSpec
from paceline.errors import first_line
from paceline.sweeps.messages import GroupShape, WantedGroup
from paceline.tracking.costs import Unit

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

START_TIMEOUT_SECONDS = 1800
"""Time-out of the process group that Ray Train creates. Each trial creates another one, with the time-out of its
config."""
LEAVING_SECONDS = 30.0
"""Time that a group may take to leave. Then its workers are killed: they hold resources that the next group needs."""


@dataclass
class _Group:
    slot: int
    generation: int
    thread: TrainerThread
    units: float
    """Cores or GPUs, as the sweep's cost is counted."""
    began: float
    """Time of the request for the group, by `time.monotonic`."""
    left: float = 0.0
    """Time at which it had to leave, or its workers were killed."""

    @property
    def allocated(self) -> float:
        """Unit-seconds so far."""
        return self.units * (time.monotonic() - self.began)


class WorkerGroupManager:
    """One TorchTrainer for each slot; it lives as long as its slot wants groups of that shape.

    Args:
        base: fields that the worker specs of all trials share.
        warn: called with each warning for the watcher.
        unit: unit of the sweep's cost.
    """

    def __init__(
        self, coordinator: Any, folder: Path, base: WorkerSpec, warn: Callable[[str], None], unit: Unit
    ) -> None:
        self._coordinator, self._folder, self._base, self._warn = coordinator, folder, base, warn
        self._unit = unit
        self._shapes: set[GroupShape] = set()
        self._groups: dict[int, _Group] = {}
        self._leaving: list[_Group] = []
        self._ended_allocated = 0.0

    @property
    def allocated(self) -> float:
        """Core- or GPU-seconds of all groups so far, each from its request until its workers have gone."""
        return self._ended_allocated + sum(group.allocated for group in [*self._groups.values(), *self._leaving])

    @property
    def have_whole_gpus(self) -> bool:
        """True if all groups so far have trained on GPUs, and have shared none of them."""
        return all(shape.has_whole_gpus for shape in self._shapes)

    def follow(self, wanted: Sequence[WantedGroup]) -> None:
        """Start wanted groups that do not exist; report failed ones to the coordinator. Called a few times a second."""
        for each in wanted:
            group = self._groups.get(each.slot)
            if group is not None and group.generation != each.generation:
                group.left = time.monotonic()
                self._leaving.append(self._groups.pop(each.slot))
                group = None
            if group is None and each.shape is not None:
                self._groups[each.slot] = self._start(each)
            elif group is not None and not group.thread.is_alive():
                self._report_failure(each, group)
        self._look_after_leaving()

    def join(self, seconds: float) -> None:
        """Wait for groups that have to leave, but no longer than this."""
        end = time.monotonic() + seconds
        self._leaving += self._groups.values()
        self._groups = {}
        for group in self._leaving:
            group.thread.join(max(0.0, end - time.monotonic()))
        self._report_ended()

    def _look_after_leaving(self) -> None:
        self._report_ended()
        for group in self._leaving:
            if time.monotonic() - group.left > LEAVING_SECONDS:
                self._end(group)

    def _end(self, group: _Group) -> None:
        """Kill the workers of a group that hangs. If it has none yet, they leave as soon as they have started."""
        import ray

        group.left = time.monotonic()
        workers = ray.get(self._coordinator.workers_of.remote(group.slot, group.generation))
        if workers:
            self._warn(
                f"the workers of group {group.slot} should have left, and are killed since they were still there "
                f"{LEAVING_SECONDS:g} s later"
            )
            kill_workers(workers)

    def _report_ended(self) -> None:
        """Report ended groups, so that the coordinator forgets their workers. It kills those still known at the end."""
        ended = [group for group in self._leaving if not group.thread.is_alive()]
        for group in ended:
            self._coordinator.group_ended.remote(group.slot, group.generation)
            self._ended_allocated += group.allocated
        self._leaving = [group for group in self._leaving if group not in ended]

    def _start(self, wanted: WantedGroup) -> _Group:
        began = time.monotonic()
        assert wanted.shape is not None
        self._shapes.add(wanted.shape)
        units = wanted.shape.units(self._unit)
        self._coordinator.group_started.remote(wanted.slot, wanted.generation, units)
        group = _Group(wanted.slot, wanted.generation, TrainerThread(self._trainer(wanted)), units, began)
        group.thread.start()
        return group

    def _report_failure(self, wanted: WantedGroup, group: _Group) -> None:
        error = group.thread.error
        reason = first_line(error) if error is not None else "the worker group left too early"
        self._coordinator.group_failed.remote(wanted.slot, wanted.generation, f"the worker group ended: {reason}")

    def _trainer(self, wanted: WantedGroup) -> "TorchTrainer":
        from ray.train import ScalingConfig

        from paceline.cluster.torch_trainer import torch_trainer
        from paceline.sweeps.slot_worker import serve_trials

        shape = wanted.shape
        assert shape is not None
        use_gpu = shape.gpus_per_worker > 0
        resources = {"CPU": shape.cpus_per_worker, **({"GPU": shape.gpus_per_worker} if use_gpu else {})}
        scaling = ScalingConfig(
            num_workers=shape.num_workers,
            use_gpu=use_gpu,
            resources_per_worker=resources,
            placement_strategy=shape.placement.upper(),
        )
        given = {
            "coordinator": self._coordinator,
            "base": self._base,
            "slot": wanted.slot,
            "generation": wanted.generation,
        }
        name = f"group-{wanted.slot}-{wanted.generation}"
        # the limit of losses is each trial's own, see the coordinator
        return torch_trainer(serve_trials, given, scaling, self._folder, name, START_TIMEOUT_SECONDS, max_failures=-1)
