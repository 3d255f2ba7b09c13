"""Trains a LightningModule."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from paceline.adapters._lightning_log import LightningLog, means, number_of, restored_metrics
from paceline.adapters._lightning_module import (
    TrainerView,
    call_step,
    configured,
    has_own,
    lightning_base,
    samples_of,
    uncalled_hooks,
)
from paceline.config.batch_size_schedule import ENDLESS, BatchSizeSchedule, ScheduledSteps
from paceline.config.batch_sizes import BatchSizes, batch_sizes, schedule_of, stage_sizes
from paceline.errors import UnusableCode
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from paceline.callbacks.callback import TrainContext

NO_LOSS = "no_loss|weight"
"""Sum of the samples whose validation gave no loss."""


class LightningTask(Task):
    """The steps of a LightningModule as a task: `task: {path: "paceline.adapters:LightningTask"}`.

    `training_step` returns the loss, a mean over the batch's samples, as a tensor or under `loss`. `validation_step`
    logs metrics with `self.log`; they are averaged over the set and all workers, weighted by `batch_size`, and a prefix
    `val_` is dropped from their names. What is logged in training is recorded for the newest step. Modules with
    `automatic_optimization = False` use `self.optimizers()` and `self.manual_backward` as with Lightning; losses are
    then averaged over the workers by samples. A manual `training_step` may return nothing: the loss reported is the sum
    of the losses that it logs, or else of those that it gives to `manual_backward`.

    Hooks that only Lightning's trainer calls are reported in a warning.

    Args:
        model: the LightningModule.
        configure_optimizers: true: the module's own `configure_optimizers` is used, without its schedulers. false: the
            config's section `optimizer` is. null: as false with automatic optimization and as true without, with a
            warning that says so where the module has both.
    """

    def __init__(self, model: nn.Module, configure_optimizers: bool | None = None) -> None:
        super().__init__(model)
        lightning_base(model)
        self.automatic_optimization = bool(getattr(model, "automatic_optimization", True))
        self._asked = configure_optimizers
        self._uses_own = not self.automatic_optimization if configure_optimizers is None else configure_optimizers
        self._log = LightningLog()
        self._trainer = TrainerView()
        self._backward_losses: list[torch.Tensor] = []
        """The losses that the newest manual step gave to `manual_backward`."""
        self._has_schedulers = False
        self._place: tuple[torch.device, torch.dtype] | None = None
        self._step, self._epoch, self._index = -1, -1, -1
        self._validation_index = -1
        self._global_batch_size = self._batches_per_step = 1
        self._schedule: BatchSizeSchedule | None = None
        self._stages: list[BatchSizes] = []
        _require_usable(model, self.automatic_optimization, self._uses_own)
        module: Any = model
        module.trainer = self._trainer
        module.log, module.log_dict = self._log.log, self._log.log_dict
        module.optimizers, module.lr_schedulers = self._optimizers, _no_schedulers
        module.manual_backward = self._backward

    @property
    def builds_optimizers(self) -> bool:
        """True where the module's own `configure_optimizers` is used."""
        return self._uses_own

    def configure_optimizers(
        self, build: "Callable[..., Optimizer]"
    ) -> "Optimizer | Mapping[str, Optimizer] | Sequence[Optimizer]":
        """The optimizers of the module, or the config's."""
        if not self._uses_own:
            return build(self.parameters())
        module: Any = self.model
        found = configured(module.configure_optimizers())
        self._has_schedulers = found.has_schedulers
        return found.optimizers

    def notices(self) -> Iterator[tuple[str, str]]:
        """Yield a code and a message for each part of the module that is not used: optimizer, schedulers, hooks."""
        used, unused = "the config's section optimizer", "the module's configure_optimizers"
        if self._asked is None and has_own(self.model, "configure_optimizers"):
            if self._uses_own:
                used, unused = unused, used
            own, this = ("false", "true") if self._uses_own else ("true", "false")
            hint = f"Write task.args.configure_optimizers: {own} for {unused}, or {this} to keep it so"
            yield "lightning-optimizer", f"{used} is used, and {unused} is not. {hint}"
        if self._has_schedulers:
            yield (
                "lightning-scheduler",
                "the schedulers of the module's configure_optimizers are not used: the learning rates follow the "
                "config's section lr_scheduler, such as {name: cosine, warmup_steps: 100}",
            )
        hooks = uncalled_hooks(self.model)
        if hooks:
            instead = "; `paceline evaluate --set test` calls validation_step" if "test_step" in hooks else ""
            yield "lightning-hooks", f"parts of the LightningModule that are not called: {', '.join(hooks)}{instead}"

    def on_train_start(self, ctx: "TrainContext") -> None:
        """Let `self.trainer`, `self.current_epoch` and `self.global_step` follow the training."""
        sizes = batch_sizes(ctx.config)
        self._global_batch_size = sizes.global_batch_size
        self._batches_per_step = sizes.gradient_accumulation_steps or 1
        self._schedule, self._stages = schedule_of(ctx.config), stage_sizes(ctx.config)
        self._trainer.context = ctx

    def forward(self, batch: Any) -> TaskOutput:
        """The training step, in evaluation mode the validation step."""
        if not (self.training and self.automatic_optimization):
            return self._validation(batch)
        return self._training(batch)

    def training_step(self, batch: Any, optimizers: Any) -> TaskOutput:
        """The module's own training step, which steps its optimizers."""
        self._trainer.optimizers = list(optimizers)
        return self._training(batch)

    def training_metrics(self) -> dict[str, Any]:
        """Return the values logged in the newest training step, by name."""
        return {name: number_of(value) for name, value in self._log.newest.items() if name != "train/loss"}

    def compute(self, sums: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """The logged metrics of a validation set."""
        log, module = self._log, self.model
        self._validation_index = -1
        log.is_training, log.default_batch_size = False, 1
        if has_own(module, "on_validation_epoch_end"):
            log.take_sums()
            module.on_validation_epoch_end()  # type: ignore[operator]
        at_end = {name: float(value) for name, value in means(_as_tensors(log.take_sums())).items()}
        values = {name: each for name, each in sums.items() if name != "weight"}
        if values.pop(NO_LOSS, None) is not None:
            values.pop("loss")
        elif "loss|weight" not in values:
            values["loss|weight"] = sums["weight"]
        of_metrics = {name: float(metric.compute()) for name, metric in log.metrics.items()}
        for metric in log.metrics.values():
            metric.reset()
        log.metrics = {}
        return {**super().compute({**means(values), "weight": torch.ones(())}), **of_metrics, **at_end}

    def _training(self, batch: Any) -> TaskOutput:
        log, module = self._log, self._placed_model()
        self._validation_index = -1
        samples = samples_of(batch)
        index = self._next_index()
        log.is_training, log.default_batch_size, log.newest = True, samples, {}
        self._backward_losses.clear()
        loss = _loss_of(call_step(module.training_step, batch, index))
        if loss is None and not self.automatic_optimization:
            loss = _sum(_logged_losses(log.newest) or self._backward_losses)
        if loss is None:
            manual = "" if self.automatic_optimization else ", or call self.manual_backward(loss)"
            raise UnusableCode(
                f"{type(module).__name__}.training_step returned no loss. Return a tensor, or a mapping with 'loss'"
                f"{manual}",
                "no-loss",
            )
        return TaskOutput.from_mean(loss, samples)

    def _validation(self, batch: Any) -> TaskOutput:
        log, module = self._log, self._placed_model()
        samples = samples_of(batch)
        log.is_training, log.default_batch_size, log.sums = False, samples, {}
        if self.counts and self._validation_index < 0 and has_own(module, "on_validation_epoch_start"):
            module.on_validation_epoch_start()  # type: ignore[operator]
        self._validation_index += self.counts
        with nullcontext() if self.counts else restored_metrics(module):
            loss = self._validated(batch, max(self._validation_index, 0))
        sums = log.take_sums()
        if loss is not None:
            return TaskOutput(loss * samples, samples, sums)
        nothing = torch.zeros((), device=next(module.parameters()).device)
        return TaskOutput(nothing, samples, sums if "loss" in sums else {**sums, NO_LOSS: float(samples)})

    def _validated(self, batch: Any, index: int) -> torch.Tensor | None:
        module = self.model
        if has_own(module, "validation_step"):
            return _loss_of(call_step(module.validation_step, batch, index))
        if not self.automatic_optimization:
            return None
        loss = _loss_of(call_step(module.training_step, batch, index))
        self._log.take_sums()  # names of training
        return loss

    def _placed_model(self) -> nn.Module:
        """The module, whose `device` and `dtype` are attributes that only its own `to` updates."""
        first = next(self.model.parameters())
        if (first.device, first.dtype) != self._place:
            self._place = (first.device, first.dtype)
            self.model.to(first.device, torch.float64 if first.dtype is torch.float64 else None)
        return self.model

    def _next_index(self) -> int:
        """`batch_idx`: micro-batches of this worker in the epoch so far, also in a resumed run."""
        context = self._trainer.context
        if context is None:
            return 0
        if context.epoch != self._epoch:
            self._epoch = context.epoch
            for value in self._log.newest.values():
                if hasattr(value, "reset"):
                    value.reset()
        if context.step != self._step:
            is_next = context.step == self._step + 1 and context.epoch_samples > 0
            self._step = context.step
            if self._schedule is not None:
                self._index = self._index + 1 if is_next else self._first_index(context, self._schedule)
                return int(self._index)
            self._index = -(-context.epoch_samples // self._global_batch_size) * self._batches_per_step
        else:
            self._index += 1
        return int(self._index)

    def _first_index(self, context: "TrainContext", schedule: BatchSizeSchedule) -> int:
        """Micro-batches in the epoch before a step of a batch-size schedule."""
        steps = ScheduledSteps(schedule, ENDLESS, drop_last=False)
        before = context.samples - context.epoch_samples
        done = takewhile(lambda step: step[0] < context.epoch_samples, steps.batches(0, before))
        return sum(self._stages[stage].gradient_accumulation_steps for _, _, stage, _ in done)

    def _backward(self, loss: torch.Tensor, *args: Any, **options: Any) -> None:
        self._backward_losses.append(loss.detach())
        loss.backward(*args, **options)  # type: ignore[no-untyped-call]

    def _optimizers(self, use_pl_optimizer: bool = True) -> Any:
        found = self._trainer.optimizers
        return found[0] if len(found) == 1 else found


def _require_usable(model: nn.Module, automatic: bool, uses_own: bool) -> None:
    if not has_own(model, "training_step"):
        raise UnusableCode(f"{type(model).__name__} has no training_step. Write one", "no-training-step")
    if uses_own and not has_own(model, "configure_optimizers"):
        raise UnusableCode(
            f"{type(model).__name__} has no configure_optimizers. Write one, or leave "
            "task.args.configure_optimizers out",
            "no-optimizers",
        )
    if not automatic and not uses_own:
        raise UnusableCode(
            f"{type(model).__name__} has automatic_optimization = False, so its optimizers are those of its own "
            "configure_optimizers. Leave task.args.configure_optimizers out, or write true",
            "manual-optimization",
        )


def _loss_of(returned: Any) -> torch.Tensor | None:
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    return loss if isinstance(loss, torch.Tensor) else None


def _logged_losses(logged: Mapping[str, Any]) -> list[torch.Tensor]:
    return [value for name, value in logged.items() if "loss" in name and isinstance(value, torch.Tensor)]


def _sum(losses: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return torch.stack([each.reshape(()) for each in losses]).sum() if losses else None


def _as_tensors(sums: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in sums.items()}


def _no_schedulers() -> Any:
    raise UnusableCode(
        "self.lr_schedulers() has no effect in LightningTask: the learning rates follow the config's section "
        "lr_scheduler. Remove the call",
        "lightning-scheduler",
    )
