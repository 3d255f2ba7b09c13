"""Training metrics: loss, speed, memory and machines, read every `trainer.log_every_n_steps`."""

from collections.abc import Callable, Mapping

from paceline.callbacks.callback import TrainContext, require_metric_name
from paceline.engine.data_stream import DataStream
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
    ) -> None:
        self._monitor = monitor
        self._state = state
        self._plan = plan
        self._data = data
        self._step_metrics = step_metrics
        self._running = running
        self._meter = meter

    def on_step_end(self, ctx: TrainContext) -> None:
        """Log, if a log is due."""
        if self._plan.logs(self._state.position):
            self._log(ctx)

    def on_train_end(self, ctx: TrainContext) -> None:
        """Log the overall speed, if training ended before the end of the plan."""
        if not self._plan.is_over(self._state.position):
            assert isinstance(ctx, LoopContext)
            ctx.log_all(self._meter.overall())

    def _log(self, ctx: TrainContext) -> None:
        state, position = self._state, self._state.position
        loss, sums = self._running.read_with(self._readings)
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

    def _readings(self) -> list[float]:
        wait_seconds = self._meter.wait_seconds(self._data.wait_seconds)
        return self._monitor.readings(wait_seconds, is_last=self._plan.is_over(self._state.position))


def _metrics_of(task: Task) -> dict[str, float]:
    """Return the metrics that the task logs for the step, as numbers.

    Raises:
        UnusableCode: the task returned something else.
    """
    returned = metric_mapping(task.training_metrics(), "training_metrics")
    for name in returned:
        require_metric_name(str(name))
    return {str(name): metric_number(name, value, "the training step") for name, value in returned.items()}
