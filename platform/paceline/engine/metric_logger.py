"""Training metrics: loss, speed, memory and machines, read every `trainer.log_every_n_steps`."""

from collections.abc import Callable, Mapping
from functools import partial

from paceline.callbacks.callback import TrainContext, require_metric_name
from paceline.engine.data_stream import DataStream
from paceline.engine.forward_backward import LocalForwardBackward
from paceline.engine.loop_context import LoopContext, PlannedCallback
from paceline.engine.meter import Meter
from paceline.engine.monitoring.host_monitor import HostMonitor
from paceline.engine.outcome import Diverged
from paceline.engine.output_checks import metric_mapping, metric_number
from paceline.engine.plan import TrainPlan
from paceline.engine.running import RunningLoss
from paceline.engine.state import TrainState
from paceline.tasks._task import Task


class MetricLogger(PlannedCallback):
    """Reads the loss of all ranks and their readings of the machines, in one exchange.

    Args:
        step_metrics: returns the metrics of the training step; called on every rank.
        beside: passes of the step, before the last of which the exchange begins, so that hardly any rank waits for it.
            None: it begins after the step.

    Raises:
        Diverged: the loss is not finite. Raised on all ranks together.
    """

    def __init__(
        self,
        state: TrainState,
        plan: TrainPlan,
        data: DataStream,
        step_metrics: Callable[[], Mapping[str, float]],
        running: RunningLoss,
        meter: Meter,
        monitor: HostMonitor,
        beside: LocalForwardBackward | None = None,
    ) -> None:
        self._monitor = monitor
        self._state = state
        self._plan = plan
        self._data = data
        self._step_metrics = step_metrics
        self._running = running
        self._meter = meter
        self._last_step = 0
        """Step of the log before, or at which training began."""
        self._beside = beside

    def on_train_start(self, ctx: TrainContext) -> None:
        """Begin to look for steps that are logged."""
        self._last_step = self._state.position.step
        if self._beside is not None:
            self._beside.before_exchange = self._begin

    def on_step_end(self, ctx: TrainContext) -> None:
        """Log, if a log is due."""
        if self._plan.logs(self._state.position):
            self._log(ctx)

    def on_train_end(self, ctx: TrainContext) -> None:
        """Log the overall speed, if training ended before the end of the plan."""
        if not self._plan.is_over(self._state.position):
            assert isinstance(ctx, LoopContext)
            ctx.log_all(self._meter.overall())

    def _begin(self) -> None:
        position = self._state.position
        # the last log of the training has the readings of its end
        if self._plan.logs_next(position) and position.step + 1 < self._plan.total_steps:
            self._running.begin_reading(partial(self._readings, position.step + 1))

    def _log(self, ctx: TrainContext) -> None:
        state, position = self._state, self._state.position
        loss, sums = self._running.read_with(partial(self._readings, position.step))
        self._last_step = position.step
        divergence = state.precision.check(loss)
        if divergence is not None:
            raise Diverged(
                f"{divergence.reason} at step {position.step}",
                divergence.code,
                step=position.step,
                steps_in_a_row=divergence.steps_in_a_row,
            )
        of_ranks, of_machines = self._monitor.combine(sums)
        assert isinstance(ctx, LoopContext)
        ctx.log_all({"train/loss": loss, **self._step_metrics(), "epoch": self._data.epochs(position.samples)})
        ctx.log_all(self._meter.read(self._data.wait_seconds))
        if self._plan.is_over(position):
            ctx.log_all(self._meter.overall())
        ctx.log_all(of_ranks)
        ctx.log_all(state.precision.metrics())
        ctx.log_all(_metrics_of(state.task))
        ctx.report(of_machines)

    def _readings(self, step: int) -> list[float]:
        wait_seconds = self._meter.waited(self._data.wait_seconds) / max(step - self._last_step, 1)
        return self._monitor.readings(wait_seconds, is_last=step >= self._plan.total_steps)


def _metrics_of(task: Task) -> dict[str, float]:
    """Return the metrics that the task logs for the step, as numbers.

    Raises:
        UnusableCode: the task returned something else.
    """
    returned = metric_mapping(task.training_metrics(), "training_metrics")
    for name in returned:
        require_metric_name(str(name))
    return {str(name): metric_number(name, value, "the training step") for name, value in returned.items()}
