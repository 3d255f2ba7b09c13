"""The training loop's side of the callback interface."""

from collections.abc import Mapping

from paceline.callbacks.callback import Callback, TrainContext
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import Reporter
from paceline.engine.state import TrainState


class LoopContext(TrainContext):
    """Collects the metrics of a step until they are reported together."""

    def __init__(self, state: TrainState, ranks: DistContext, config: ExperimentConfig, reporter: Reporter) -> None:
        super().__init__(
            model=state.task.model,
            optimizer=state.optimizer,
            progress=state.position,
            device=ranks.device,
            rank=ranks.rank,
            world_size=ranks.world_size,
            config=config,
            record=self._keep,
        )
        self.evaluation: Mapping[str, float] | None = None
        """Results of the evaluation after this step, until the callbacks were given them."""
        self._state = state
        self._reporter = reporter
        self._values: dict[str, float] = {}

    def log_all(self, values: Mapping[str, float]) -> None:
        """Record numbers by metric name, as `log` does one of them."""
        self._values.update(values)
        self._state.metrics.update(values)

    def report(self, values: Mapping[str, float]) -> None:
        """Report values that are not part of the training state, such as those of the machines."""
        self._values.update(values)

    def warn(self, code: str, message: str) -> None:
        """Report a warning, on rank 0."""
        if self.is_main:
            self._reporter.event("warning", message=message, code=code)

    def flush(self) -> None:
        """Report the metrics recorded since the last call."""
        values, self._values = self._values, {}
        if values and self.is_main:
            self._reporter.metrics(self.step, values)

    def _keep(self, name: str, value: float) -> None:
        self._values[name] = value
        self._state.metrics[name] = value


class BoundaryCallback(Callback):
    """A callback of the engine's own that is also called last, when what was due after a step is done and saved."""

    def on_boundary(self, ctx: TrainContext) -> int:
        """Return a `Control`, or `INTERRUPT`; the same on all ranks, since it takes effect at once."""
        raise NotImplementedError


class PlannedCallback(Callback):
    """A callback of the engine's own whose `on_step_end` has nothing to do after steps that the plan calls quiet."""
