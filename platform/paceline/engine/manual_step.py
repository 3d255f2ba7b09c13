"""The optimizer step of a task that steps its optimizers itself: `Task.automatic_optimization` is False."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from paceline.config.batch_sizes import ACCUMULATION, MICRO, BatchSizes, accumulation
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.forward_backward import Batches, StepStats
from paceline.engine.gradient_average import average_gradients
from paceline.engine.lr_policy import LRPolicy
from paceline.engine.monitoring.own_time import OwnTime
from paceline.engine.order import MicroBatch
from paceline.engine.output_checks import checked_output
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.engine.state import TrainState
from paceline.engine.weight_contract import WeightContract
from paceline.errors import ConfigError, Problem, UnusableCode
from paceline.optimizers._several import SeveralOptimizers


class ManualStep:
    """Trains on one global batch per call, by the task's `training_step`.

    Each optimizer's gradients are averaged over the ranks, and clipped, before it updates the weights.

    Args:
        max_grad_norm: largest norm of each optimizer's gradient, which is clipped to it; None disables.
        contract: checks the first step; None disables.
    """

    def __init__(
        self,
        state: TrainState,
        lr: LRPolicy,
        running: RunningLoss,
        ranks: DistContext,
        seeds: StepSeeds,
        max_grad_norm: float | None,
        own_time: OwnTime,
        contract: WeightContract | None,
    ) -> None:
        optimizer = state.optimizer
        assert isinstance(optimizer, SeveralOptimizers)
        self.lr = lr
        self.running = running
        self.ranks = ranks
        self.parameters = state.trainable
        self._state = state
        self._seeds = seeds
        self._own_time = own_time
        self._contract = contract
        self._max_grad_norm = max_grad_norm
        self._named = {name: TaskOptimizer(name, member, self) for name, member in optimizer.members.items()}
        self._norms: dict[str, torch.Tensor] = {}
        self._share = 1.0

    def metrics(self) -> dict[str, float]:
        """Return metrics for the log."""
        return self.lr.metrics()

    @property
    def optimizers(self) -> Mapping[str, "TaskOptimizer"] | Sequence["TaskOptimizer"]:
        """Optimizers for `training_step`: by name, or as a list if the task returned them without names."""
        named = self._named
        return list(named.values()) if list(named) == [str(index) for index in range(len(named))] else named

    def __call__(self, batches: Batches, step: int) -> StepStats:
        """Take the micro-batch of one step from `batches` and let the task train on it. Every rank must call it."""
        contract, self._contract = self._contract, None
        self._own_time.start()
        micro_batch, batch = next(iter(contract.watch(batches) if contract is not None else batches))
        self._seeds.apply(step, 0)
        stats = StepStats(micro_batch.step_samples, [], micro_batch.ends_epoch)
        self.lr.apply(step, stats)
        self._begin(micro_batch)
        with self._state.precision.autocast():
            output = checked_output(self._state.task.training_step(batch, self.optimizers))
        self._own_time.stop()
        self._own_time.end_step()
        if self._norms:
            self._state.precision.note_grad_norm(torch.stack(list(self._norms.values())).norm())
        if micro_batch.counts:
            self.running.add(output)
            stats.weights.append(output.weight)
        self.running.end_step()
        if contract is not None:
            contract.check_weights(stats)
        return stats

    def _begin(self, micro_batch: MicroBatch) -> None:
        for parameter in self.parameters:  # no gradient outlives a step: a checkpoint has none
            parameter.grad = None
        self._norms = {}
        self._share = micro_batch.ids.numel() / micro_batch.step_samples if micro_batch.counts else 0.0
        if self.ranks.world_size > 1:
            self._own_time.stop()
            self.ranks.share_first(self._state.task.buffers())  # as DDP does
            self._own_time.start()

    def update(self, name: str, optimizer: Optimizer, weight: float | torch.Tensor | None) -> None:
        """Average the optimizer's gradients over the ranks, clip them and update the weights. Every rank must call it.

        Args:
            weight: divisor of this rank's mean loss; None is the number of its samples.
        """
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        was_busy = self._own_time.stop()
        average_gradients(parameters, self._share_of(name, weight), self.ranks)
        if was_busy:
            self._own_time.start()
        if self._max_grad_norm is not None:
            self._norms[name] = self._state.layout.clip(parameters, self._max_grad_norm)
        with torch.autocast(self.ranks.device.type, enabled=False):
            optimizer.step()
        torch.clear_autocast_cache()  # otherwise the rest of the step would use casts of the old weights

    def _share_of(self, name: str, weight: float | torch.Tensor | None) -> float | torch.Tensor:
        if callable(weight):
            raise UnusableCode(
                f"step() of the optimizer {name!r} was given a closure, which is not supported. Compute the loss "
                "and its gradients first, and call step()",
                "closure",
                optimizer=name,
            )
        if weight is None:
            if not self._state.task.weight_is_samples:
                raise UnusableCode(
                    f"the task's weight_is_samples is False, so step() of the optimizer {name!r} needs the weight that "
                    "its loss is a mean over: optimizer.step(weight=...)",
                    "weight-missing",
                    optimizer=name,
                )
            return self._share
        mine = torch.as_tensor(weight, dtype=torch.float64, device=self.ranks.device).detach() * bool(self._share)
        total = self.ranks.sum(mine.clone())
        return torch.where(total > 0, mine / total, 0.0)


class TaskOptimizer:
    """An optimizer as passed to `Task.training_step`. `optimizer` is torch's optimizer."""

    def __init__(self, name: str, optimizer: Optimizer, owner: ManualStep) -> None:
        self.name = name
        self.optimizer = optimizer
        self._owner = owner

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of torch's optimizer."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:
        """The state of torch's optimizer."""
        return self.optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of this optimizer's parameters."""
        self.optimizer.zero_grad(set_to_none)

    def step(self, weight: float | torch.Tensor | None = None) -> None:
        """Average the gradients over all workers and update the weights. Every worker must call it equally often.

        Args:
            weight: divisor of the mean loss of this worker's batch, such as the number of tokens that count. None: the
                number of its samples.

        Raises:
            UnusableCode: `weight` is missing although the task's weights are not numbers of samples.
        """
        self._owner.update(self.name, self.optimizer, weight)


def require_plain(config: ExperimentConfig, sizes: BatchSizes | None) -> None:
    """Check that a config is compatible with a task that steps its optimizers itself.

    Args:
        sizes: final batch sizes; None while the largest micro batch is being searched for.

    Raises:
        ConfigError: the config has an incompatible setting.
    """
    count = accumulation(config)
    if sizes is not None:
        count = max(sizes.gradient_accumulation_steps, count or 1)
    wrong = [
        (config.trainer.precision == "16-mixed", "trainer.precision", "bf16-mixed"),
        (config.parallel.strategy != "ddp", "parallel.strategy", "ddp"),
        (config.parallel.comm_hook != "none", "parallel.comm_hook", "none"),
        (config.trainer.compile != "none", "trainer.compile", "none"),
        (config.optimizer.lr_scaling == "adascale", "optimizer.lr_scaling", "linear"),
        (config.data.micro_batch_size == "max", MICRO, "a number"),
        (count is not None and count > 1, ACCUMULATION, "1, and a smaller global batch or more workers"),
    ]
    reason = "the task steps its optimizers itself (automatic_optimization is False), which does not go with this"
    problems = [
        Problem("manual-optimization", reason, key, hint=f"write {hint}") for is_wrong, key, hint in wrong if is_wrong
    ]
    if problems:
        raise ConfigError(problems)
