"""The training loop.

for each epoch:
    for each optimizer step of the epoch:
        for each micro batch of this rank:      forward, backward
        clip, update                            train_step
        log, evaluate, save, stop               after_step (at a rung: ask whether to go on)
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.config.experiment import ExperimentConfig
from paceline.engine.adascale import AdaScale
from paceline.engine.checkpoint import CheckpointWriter, Snapshot, read_checkpoint
from paceline.engine.consensus import Consensus, Wish
from paceline.engine.evaluation import evaluate
from paceline.engine.loading import BatchLoader
from paceline.engine.meter import Meter, peak_memory_bytes
from paceline.engine.observing.observer import Observer
from paceline.engine.order import DataOrder
from paceline.engine.outcome import CheckpointLost as CheckpointLost
from paceline.engine.outcome import Diverged as Diverged
from paceline.engine.outcome import Outcome as Outcome
from paceline.engine.passes import Batches, StepDone, divide_by_weight
from paceline.engine.plan import Plan
from paceline.engine.powersgd import PowerSGD
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import Reporter
from paceline.engine.rungs import KEY, RungStops
from paceline.engine.running import RunningLoss
from paceline.engine.state import TrainState, weights_sha256
from paceline.engine.strategy import Strategy
from paceline.errors import ConfigError, Problem
from paceline.lr_schedulers.base import Schedule

PROGRESS_SECONDS = 0.25


class Trainer:
    """Runs the optimizer steps of one rank. Built by `build_trainer`, which wires it from a config."""

    def __init__(
        self,
        *,
        model: nn.Module,
        state: TrainState,
        schedule: Schedule,
        peak_lr: float,
        order: DataOrder,
        plan: Plan,
        train_loader: BatchLoader,
        validation_loader: BatchLoader,
        saves: bool,
        writer: CheckpointWriter | None,
        reporter: Reporter,
        ranks: Ranks,
        strategy: Strategy,
        adascale: AdaScale | None,
        powersgd: PowerSGD | None,
        rungs: RungStops,
        observer: Observer,
        config: ExperimentConfig,
        remembered: Mapping[str, Any],
    ) -> None:
        self.model = model
        """What the training step calls: the task with every technique applied."""
        self.state = state
        self.schedule = schedule
        self.peak_lr = peak_lr
        self.order = order
        self.plan = plan
        self.train_loader = train_loader
        self.validation_loader = validation_loader
        self.saves = saves
        """Whether checkpoints are kept; only rank 0 has a writer."""
        self.writer = writer
        self.reporter = reporter
        self.ranks = ranks
        self.strategy = strategy
        self.adascale = adascale
        self.powersgd = powersgd
        self.rungs = rungs
        self.observer = observer
        self.remembered = remembered
        """JSON values that were settled before training, and that every checkpoint holds beside the state."""
        self.max_grad_norm = config.trainer.max_grad_norm
        self.set_to_none = config.trainer.zero_grad == "set_to_none"
        self.parameters = state.trainable
        self.running = RunningLoss(ranks)
        self.forward_backward = strategy.forward_backward(model, state.precision, self.running, config.seed, adascale)
        self.meter = Meter()
        self._marks_time = ranks.device.type == "cuda" and ranks.world_size > 1
        self.consensus = Consensus(ranks)
        self.shown_name: Callable[[str], str] = str
        """What a metric of the task is called where it is told and saved: its name may hold what is not to be seen."""
        self._next_progress = 0.0

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer."""
        return self.state.optimizer

    def fit(self) -> Outcome:
        """Train to the end of the plan, or until asked to stop, or told to at a rung. Every rank must call it.

        Raises:
            Diverged: the loss is not finite.
        """
        begun = self.open()
        try:
            # one that was reached before training was interrupted, and never answered
            stopped = self.rungs.is_due and not self.plan.is_over(self.state.position) and not self._ask_at_rung()
            stopped = stopped or any(self.steps())
        finally:
            self.meter.end_loop(begun)
            self.close()
        if self.writer is not None:
            self.writer.put_last()
        self._require_final_checkpoint()
        return self._outcome(stopped)

    def open(self) -> float:
        """Make ready for the first step; returns when training begins, of `perf_counter`."""
        self.state.task.train()
        self.rungs.begin()
        begun = perf_counter()
        self.observer.begin()
        return begun

    def close(self) -> None:
        """Let go of what works beside the training: loader processes, and the checkpoints' writer."""
        self.train_loader.close()
        self.validation_loader.close()
        if self.writer is not None:
            self.writer.close()

    def resume(self, folder: Path) -> None:
        """Go on from a valid checkpoint folder. Every rank must call it.

        Raises:
            ConfigError: the checkpoint's position is one in another order of samples.
        """
        snapshot = read_checkpoint(folder)
        if snapshot.values["order"] != self.order.identity:
            reason = f"the checkpoint was made with {snapshot.values['order']}, not {self.order.identity}"
            raise ConfigError([Problem("resume", reason, "data", hint="start anew with --resume never")])
        self.state.load(snapshot.tensors, snapshot.values)
        self.running.load_state(snapshot.values["running"])
        if self.adascale is not None and snapshot.values.get("adascale"):
            self.adascale.load_state(snapshot.values["adascale"])
        if self.powersgd is not None:
            self._resume_powersgd(self.powersgd, snapshot.tensors.get("powersgd", {}))
        self.rungs.load_state(snapshot.values.get(KEY) or {}, self.state.position, folder)

    def _resume_powersgd(self, powersgd: PowerSGD, tensors: Mapping[str, torch.Tensor]) -> None:
        reason = powersgd.load(tensors, self.state.position.step)
        if reason is not None and self.ranks.is_first:
            message = f"the memory of comm_hook powersgd starts anew: {reason}"
            self.reporter.event("warning", message=message, code="powersgd-restarted")

    def steps(self) -> Iterator[bool]:
        """Optimizer steps to the end of the plan, one each time the next is asked for; each tells whether to stop.

        Every rank must take as many. `fit` takes them all; what takes some on its own calls `open` before.
        """
        while not self.plan.is_over(self.state.position):
            yield from self._epoch()

    def _epoch(self) -> Iterator[bool]:
        """The steps that are left of the epoch that the position is in."""
        position = self.state.position
        first_step = position.epoch_samples // self.order.global_batch_size
        batches = self.train_loader.load(position.epoch, self.order.micro_batches(position.epoch, first_step))
        for step_in_epoch in range(first_step, self.order.steps_per_epoch):
            samples = self.train_step(batches)
            position.advance(samples, epoch_is_over=step_in_epoch + 1 == self.order.steps_per_epoch)
            self.meter.count(samples)
            yield self.after_step()
            if self.plan.is_over(position):
                return

    def train_step(self, batches: Batches) -> int:
        """One optimizer step over the next micro batches; returns the samples of the global batch."""
        if self._marks_time and self.plan.logs_next(self.state.position):
            self.strategy.own_time.arm()
        self._zero_grad()
        done = self.forward_backward(batches, self.state.position.step)
        if not self.state.task.weight_is_samples:
            divide_by_weight(done, self.parameters, self.state.layout, self.ranks)
        self._set_lr(done)
        clip = self.state.layout.clip
        left_out = self.state.precision.step(self.optimizer, self.parameters, self.max_grad_norm, clip)
        self.running.end_step(left_out)
        return done.samples

    def _zero_grad(self) -> None:
        if not self.set_to_none:
            self.optimizer.zero_grad(set_to_none=False)
            return
        for parameter in self.parameters:  # what `zero_grad` does, without its 10 microseconds of bookkeeping
            parameter.grad = None

    def _set_lr(self, done: StepDone) -> None:
        self.lr = self.peak_lr * self.schedule(self.state.position.step)
        if self.adascale is not None:
            loss_scale = self.state.precision.scale(torch.ones((), device=self.ranks.device))
            self.lr *= self.adascale.measure(done.samples, done.weights, loss_scale)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr

    def after_step(self) -> bool:
        """What is due once a step is counted: log, evaluate, agree, save; returns whether to stop."""
        position = self.state.position
        if self.plan.logs(position):
            self._log()
        evaluates = self.plan.evaluates(position)
        at_rung = not self.plan.is_over(position) and self.rungs.reached(position, evaluates)
        if evaluates or at_rung:
            self._evaluate()
        wish = self._agree()
        stop = wish == Wish.STOP
        if self.saves and (self.plan.saves(position) or at_rung or wish != Wish.GO_ON):
            self._save()
        return stop or (at_rung and not self._ask_at_rung())

    def _ask_at_rung(self) -> bool:
        start = perf_counter()
        goes_on = self.rungs.ask(self.state.position, self.state.metrics, self.writer)
        self.meter.exclude(perf_counter() - start, "waiting")
        return goes_on

    def _log(self) -> None:
        loss, told = self.running.read_with(self._tell)
        divergence = self.state.precision.check(loss)
        if divergence is not None:
            step = self.state.position.step
            raise Diverged(
                f"{divergence.reason} at step {step}",
                divergence.code,
                step=step,
                steps_in_a_row=divergence.steps_in_a_row,
            )
        epoch = self.order.epochs(self.state.position.samples)
        speed = self.meter.read(self.train_loader.wait_seconds)
        gain = {} if self.adascale is None else {"adascale_gain": self.adascale.gain}
        of_ranks, of_machines = self.observer.hear(told)
        overall = self.meter.overall() if self.plan.is_over(self.state.position) else {}
        values = {"train/loss": loss, "lr": self.lr, **gain, "epoch": epoch, **speed, **overall, **of_ranks}
        self._report({**values, **self.state.precision.metrics()}, of_machines)

    def _tell(self) -> list[float]:
        wait_seconds = self.meter.wait_seconds(self.train_loader.wait_seconds)
        return self.observer.tell(wait_seconds, is_last=self.plan.is_over(self.state.position))

    def _evaluate(self) -> None:
        start = perf_counter()
        means = evaluate(
            self.state.task, self.validation_loader, self.order.micro_batch_size, self.state.precision, self.strategy
        )
        self.meter.exclude(perf_counter() - start, "evaluation")
        values = {f"val/{self.shown_name(key)}": value for key, value in means.items()}
        self._report({**values, "validation_epoch": self.order.epochs(self.state.position.samples)} if values else {})

    def _report(self, values: dict[str, float], of_machines: Mapping[str, float] | None = None) -> None:
        self.state.metrics.update(values)
        if self.ranks.is_first:
            self.reporter.metrics(self.state.position.step, {**values, **(of_machines or {})})

    def _agree(self) -> Wish:
        step = self.state.position.step
        if self.ranks.is_first and perf_counter() >= self._next_progress:
            self._next_progress = perf_counter() + PROGRESS_SECONDS
            self.reporter.progress(step, self.meter.rate())
        if not (self.ranks.is_first and self.consensus.is_due(step)):
            return self.consensus.agreed(step, Wish.GO_ON)
        if self.reporter.stop_requested():
            return self.consensus.agreed(step, Wish.STOP)
        leaves = self.reporter.is_leaving()
        # as often as it can be written down: the machine may go at any step
        saves = leaves and self.writer is not None and not self.writer.is_writing
        return self.consensus.agreed(step, Wish.SAVE if saves else Wish.GO_ON, soon=leaves)

    def _save(self) -> None:
        start = perf_counter()
        if not self.state.is_finite(self.ranks):
            step = self.state.position.step
            raise Diverged(
                f"the weights are not finite at step {step}; nothing was saved", "weights-not-finite", step=step
            )
        running = self.running.state()
        powersgd = {} if self.powersgd is None else self.powersgd.gather()
        if self.writer is not None or self.state.layout.is_spread:
            values = {
                **self.state.values(),
                **self.remembered,
                "running": running,
                "adascale": {} if self.adascale is None else self.adascale.state(),
                KEY: self.rungs.state(),
                "order": self.order.identity,
            }
            tensors = {**self.state.tensors(), "powersgd": powersgd}
            snapshot = Snapshot(self.state.position.step, tensors, values)
        if self.writer is not None:
            self.writer.submit(snapshot)
        self.meter.exclude(perf_counter() - start, "checkpoints")

    def _require_final_checkpoint(self) -> None:
        step, writer = self.state.position.step, self.writer
        if writer is not None and (writer.last is None or writer.last.name != f"step-{step}"):
            raise CheckpointLost(
                f"training got to step {step}, but its state could not be saved {writer.complaint(step)}",
                "checkpoint-lost",
                step=step,
                newest=None if writer.last is None else writer.last.name,
            )

    def _outcome(self, stopped: bool) -> Outcome:
        if stopped:  # else it came with the last log
            self._report(self.meter.overall())
        self.observer.end(self.meter.stretches())
        last = self.writer.last if self.writer is not None else None
        return Outcome(
            stopped=stopped,
            step=self.state.position.step,
            epoch=self.state.position.epoch,
            samples=self.state.position.samples,
            metrics=dict(self.state.metrics),
            samples_per_second=self.meter.overall_rate(),
            peak_memory_bytes=peak_memory_bytes(self.ranks.device),
            checkpoint=self.writer.place_of(last) if self.writer is not None and last else "",
            weights_sha256=weights_sha256(self.state.model_tensors()),
            seconds=self.meter.split(),
        )
