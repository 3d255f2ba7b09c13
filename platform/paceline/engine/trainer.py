"""The training loop.

on_train_start
while training is not over:
    step        forward and backward over the micro-batches of this rank, clip, update
    on_step_end, on_evaluation_end, on_epoch_end        log, evaluate, average weights, stop early, ...
    agree       all ranks save or stop after the same step
    save
on_train_end, save

Everything beside the step is a callback: see `paceline.callbacks.callback`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch import nn

from paceline.callbacks.callback import Callback, Control, overrides
from paceline.engine.agreement import INTERRUPT, Agreement, requested_by
from paceline.engine.checkpoint import Checkpointer
from paceline.engine.data_stream import MapStyleStream
from paceline.engine.iterable_stream import IterableStream
from paceline.engine.loop_context import BoundaryCallback, LoopContext, PlannedCallback
from paceline.engine.manual_step import ManualStep
from paceline.engine.meter import Meter, peak_memory_bytes
from paceline.engine.outcome import Outcome
from paceline.engine.plan import TrainPlan
from paceline.engine.reporter import Reporter
from paceline.engine.state import TrainState
from paceline.engine.train_step import TrainStep
from paceline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from paceline.engine.strategy import Strategy

PROGRESS_SECONDS = 0.25


class Trainer:
    """Runs the optimizer steps of one rank. Built by `build_trainer`, which wires it from a config."""

    def __init__(
        self,
        *,
        model: nn.Module,
        state: TrainState,
        step: TrainStep | ManualStep,
        data: MapStyleStream | IterableStream,
        plan: TrainPlan,
        checkpointer: Checkpointer,
        callbacks: Sequence[Callback],
        context: LoopContext,
        meter: Meter,
        reporter: Reporter,
        strategy: "Strategy",
    ) -> None:
        self.model = model
        """Module that the training step calls: the task with every technique applied."""
        self.state = state
        self.step = step
        self.data = data
        self.plan = plan
        self.checkpointer = checkpointer
        self.callbacks = callbacks
        """Callbacks in the order in which they are called."""
        self.context = context
        self.meter = meter
        self.reporter = reporter
        self.strategy = strategy
        self.dist = strategy.ranks
        self._agreement = Agreement(self.dist)
        self._marks_time = self.dist.device.type == "cuda" and self.dist.world_size > 1
        self._next_progress = 0.0
        self._stop_reason = ""
        # hooks that no class overrides cost nothing
        that_end_steps = self._that("on_step_end")
        self._on_step_end = [each for each in that_end_steps if not isinstance(each, PlannedCallback)]
        self._on_planned_step_end = [each.on_step_end for each in that_end_steps if isinstance(each, PlannedCallback)]
        self._on_boundary = [each.on_boundary for each in callbacks if isinstance(each, BoundaryCallback)]

    @property
    def map_style(self) -> MapStyleStream:
        """Training data, for features that read samples by index.

        Raises:
            ConfigError: the training set is an iterable data set.
        """
        if not isinstance(self.data, MapStyleStream):
            reason = "is an iterable data set, and this needs samples by index"
            raise ConfigError([Problem("iterable", reason, "data", hint="take a map-style data set for this")])
        return self.data

    @property
    def is_over(self) -> bool:
        """True at the end of the plan, or once a callback has finished the run."""
        return self.plan.is_over(self.state.position) or self.state.is_stopped_early

    def fit(self) -> Outcome:
        """Train to the end of the plan, or until a callback, the user or the sweep stops it. Every rank must call it.

        Raises:
            Diverged: the loss or the weights are not finite.
            CheckpointLost: the final state could not be saved.
        """
        try:
            begun = self.open()
            # a rung that was reached before training was interrupted, and has not been answered
            stopped = not self.is_over and self._boundary() == INTERRUPT
            stopped = stopped or INTERRUPT in self.steps()
            self._end()
            self.meter.end_loop(begun)
            self.checkpointer.finish()
            self._call_checkpoint_hooks()
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                self.close()
            raise
        self.close()
        return self._outcome(stopped)

    def open(self) -> float:
        """Prepare for the first step, and return the time of `perf_counter` at which training begins."""
        self.state.task.train()
        self.state.task.on_train_start(self.context)
        begun = perf_counter()
        for callback in self._that("on_train_start"):
            callback.on_train_start(self.context)
        self.context.flush()
        return begun

    def close(self) -> None:
        """End the loader processes, close the callbacks, and end the thread that writes checkpoints."""
        with ExitStack() as last_to_first:  # an error in one does not leave the others open
            last_to_first.callback(self.checkpointer.close)
            for callback in reversed(self._that("close")):
                last_to_first.callback(callback.close)
            last_to_first.callback(self.data.close)

    def steps(self) -> Iterator[int]:
        """Run optimizer steps to the end of training, one per iteration, and yield the request that all ranks follow.

        Every rank must take equally many steps. `fit` takes all of them. Other callers call `open` first.
        """
        position = self.state.position
        while not self.is_over:
            ends_epoch, batches = False, self.data.batches(position)
            while not (ends_epoch or self.is_over):
                if self._marks_time and self.plan.logs_next(position):
                    self.strategy.own_time.arm()
                stats = self.step(batches, position.step)
                ends_epoch = stats.ends_epoch
                position.advance(stats.samples, ends_epoch)
                self.meter.count(stats.samples)
                yield self.after_step()

    def after_step(self) -> int:
        """Log, evaluate and save as planned after a counted step, and return the request that all ranks follow."""
        request: int = Control.CONTINUE
        for callback in self._on_step_end:
            request = max(request, self._requested(callback, callback.on_step_end))
        if self.plan.is_quiet(self.state.position) and not self._on_boundary:
            self.context.flush()
            agreed = self._agree(request, now=False)
            if agreed == Control.CONTINUE:
                self._call_checkpoint_hooks()
                return agreed
            return self._after_agreement(agreed)
        for on_step_end in self._on_planned_step_end:
            on_step_end(self.context)
        is_evaluated, ends_epoch = self.context.evaluation is not None, self.state.position.epoch_samples == 0
        if is_evaluated:
            request = max(request, self._call_evaluation_hooks())
        if ends_epoch:
            for callback in self._that("on_epoch_end"):
                request = max(request, self._requested(callback, callback.on_epoch_end))
        self.context.flush()
        return self._after_agreement(self._agree(request, now=is_evaluated or ends_epoch))

    def _after_agreement(self, agreed: int) -> int:
        if agreed == Control.STOP and not self.plan.is_over(self.state.position):
            self._stop_early()
        if agreed == Control.SAVE or (not self.is_over and self.plan.saves(self.state.position)):
            self.save()
        self._call_checkpoint_hooks()
        return agreed if agreed >= Control.STOP else max(agreed, self._boundary())

    def _stop_early(self) -> None:
        reasons = self.dist.union([self._stop_reason] if self._stop_reason else [])  # any rank may have asked for it
        step, total = self.state.position.step, self.plan.total_steps
        self.state.is_stopped_early = True
        self.state.stop_reason = f"stopped early after {step} of {total} steps{reasons[0]}"
        if self.dist.is_first:
            self.reporter.event("stopped_early", text=self.state.stop_reason)

    def _requested(self, callback: Callback, hook: Callable[..., Any], *arguments: Any) -> int:
        request = requested_by(hook, self.context, *arguments)
        if request == Control.STOP and not self._stop_reason:
            by = f" by {type(callback).__module__}.{type(callback).__qualname__}"
            self._stop_reason = f": {callback.stop_reason}" if callback.stop_reason else by
        return request

    def save(self) -> None:
        """Save a checkpoint of this step, if checkpoints are saved."""
        if self.checkpointer.is_enabled:
            with self.meter.excluded("checkpoints"):
                self.checkpointer.save()

    def _that(self, hook: str) -> list[Callback]:
        return [callback for callback in self.callbacks if overrides(callback, hook)]

    def _call_evaluation_hooks(self) -> int:
        metrics, self.context.evaluation = self.context.evaluation or {}, None
        request = int(Control.CONTINUE)
        for callback in self._that("on_evaluation_end") if metrics else ():
            request = max(request, self._requested(callback, callback.on_evaluation_end, metrics))
        return request

    def _call_checkpoint_hooks(self) -> None:
        writer = self.checkpointer.writer
        while writer is not None and writer.committed:
            path = writer.committed.popleft()
            for callback in self._that("on_checkpoint"):
                callback.on_checkpoint(self.context, path)

    def _boundary(self) -> int:
        return max((on_boundary(self.context) for on_boundary in self._on_boundary), default=int(Control.CONTINUE))

    def _end(self) -> None:
        for callback in self._that("on_train_end"):
            callback.on_train_end(self.context)
        if self.context.evaluation is not None:
            self._call_evaluation_hooks()
        self.context.flush()
        self.save()

    def _agree(self, request: int, now: bool) -> int:
        step = self.state.position.step
        if self.dist.is_first and perf_counter() >= self._next_progress:
            self._next_progress = perf_counter() + PROGRESS_SECONDS
            self.reporter.progress(step, self.meter.rate())
        leaves = False
        if self.dist.is_first and (now or self._agreement.is_due(step)):
            # a run that ends at this step anyway is finished, not interrupted
            if self.reporter.stop_requested() and request != Control.STOP:
                request = INTERRUPT
            leaves = self.reporter.is_leaving()
            # as often as it can be written down: the machine may go at any step
            if leaves and self.checkpointer.writer is not None and not self.checkpointer.is_writing:
                request = max(request, Control.SAVE)
        return self._agreement.agreed(step, request, now, soon=leaves)

    def _outcome(self, stopped: bool) -> Outcome:
        writer = self.checkpointer.writer
        last = writer.last if writer is not None else None
        return Outcome(
            stopped=stopped,
            step=self.state.position.step,
            epoch=self.state.position.epoch,
            samples=self.state.position.samples,
            metrics=dict(self.state.metrics),
            samples_per_second=self.meter.overall_rate(),
            peak_memory_bytes=peak_memory_bytes(self.dist.device),
            checkpoint=writer.place_of(last) if writer is not None and last else "",
            weights_sha256=self.state.weights_sha256(),
            stopped_early=self.state.stop_reason or None,
            seconds=self.meter.split(),
        )
