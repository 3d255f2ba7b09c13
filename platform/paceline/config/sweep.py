"""The section `sweep`: search space, search algorithm, scheduler and stop conditions."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paceline.config.base import Section
from paceline.config.constraints import Constraint, Limit
from paceline.config.effects import NotWith
from paceline.config.limits import Metric, Target
from paceline.config.sections import Auto
from paceline.config.space import Axis, Range, refused
from paceline.direction import Direction, default_mode

Seconds = Annotated[float, Field(gt=0, le=1e9)]


WITH_SCHEDULER = NotWith("sweep.scheduler", "none")


class StopConfig(Section):
    """Conditions that end a trial or the whole sweep early."""

    target: Target | None = None
    """Value of the first metric, -10^20 to 10^20: the sweep ends as soon as a trial reaches it. `null` disables."""
    trial_seconds: Seconds | None = None
    """Maximum time of a trial on its workers, above 0 to 10^9 seconds. `null` disables."""
    wall_seconds: Seconds | None = None
    """Maximum duration of the sweep, above 0 to 10^9 seconds. Trials that are running then can be resumed. `null`
    disables."""


def _check_space(value: Any) -> Any:
    if value == {}:
        raise refused("has no axis", "write at least one, such as {optimizer.lr: [0.01, 0.1]}")
    return value


class SweepConfig(Section):
    """Many trials of the experiment, run by `paceline sweep`. `paceline train` ignores this section."""

    space: Annotated[Annotated[dict[str, Axis], Field(min_length=1)], BeforeValidator(_check_space)]
    """Search space: dotted keys of this config, such as `optimizer.lr`, each with a list of values or a range. Ranges
    are `{uniform: [a, b]}`, `{loguniform: [a, b]}`, `{quniform: [a, b, step]}` and `{randint: [a, b]}`, which excludes
    `b`. A whole section, such as `model`, takes mappings as values."""
    metric: Metric | Annotated[list[Metric], Field(min_length=1)] = "val/loss"
    """Metric by which trials are compared, as it is recorded, such as `val/accuracy`. With a list of metrics, the best
    settings are the Pareto front: no other setting is at least as good in all metrics and better in one."""
    mode: Direction | list[Direction] | None = None
    """Direction of the search: minimize (`min`) or maximize (`max`) the metric; a list for a list of metrics.
    `null`: `min` for a metric with `loss`, `error`, `perplexity`, `seconds`, `bytes`, `joules` or `wait` in its name,
    else `max`."""
    constraints: dict[Metric, Limit] | None = None
    """Constraints that the best trial has to satisfy, by metric: `<=`, `<`, `>=` or `>` and a number, such as
    `{val/loss: "< 0.5"}`. Metrics in bytes take B, KiB, MiB, GiB, TiB, KB, MB, GB and TB, as in
    `{peak_memory_bytes: "<= 8GiB"}`, metrics in seconds ms, s, min and h. A finished trial without the metric breaks
    the constraint. `null` disables."""
    search: Literal["grid", "random", "scale", "optuna"] = "grid"
    """Search algorithm. `grid`: all combinations of the lists. `random`: `num_samples` random settings. `scale`:
    `num_samples` settings whose learning rate follows the batch size by the optimizer's rule, within a factor of 4
    (needs the axes `data.global_batch_size` and `optimizer.lr`). `optuna`: `num_samples` settings, each chosen from the
    results of earlier trials."""
    scheduler: Literal["none", "asha", "median", "pbt"] = "none"
    """Early stopping of trials. `asha`: at each rung, stops the trials that are not among the best 1 / `rung_factor`.
    `median`: stops trials that are worse than the median of the others so far. `pbt`: stops none; the worst trials
    continue from the state of the best, with changed values. `none`: all trials are trained to the end."""
    budget_unit: Annotated[Literal["samples", "epochs", "seconds"], WITH_SCHEDULER] = "samples"
    """Unit of the rungs: training samples, epochs, or seconds on the workers. Needs a `scheduler`."""
    first_rung: Annotated[Annotated[float, Field(gt=0, le=1e15)] | None, WITH_SCHEDULER] = None
    """First rung in `budget_unit`, above 0 to 10^15. `asha`: the length at which trials are first compared. `median`,
    `pbt`: the distance between two comparisons. `null`: the length of the training divided by `rung_factor` squared
    (`asha`) or by 10. Required if that length is not known before the data are loaded, and with seconds."""
    rung_factor: Annotated[
        float,
        Field(ge=1.1, le=1e6),
        WITH_SCHEDULER,
        NotWith("sweep.scheduler", "median", "pbt", because="only asha has rungs farther and farther apart"),
    ] = 3.0
    """Reduction factor of `asha`, 1.1 to 10^6: each rung keeps the best 1 / `rung_factor` of the trials, and the next
    rung is `rung_factor` times as far."""
    num_samples: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Number of settings that `random`, `scale` and `optuna` try, 1 to 10,000; with `pbt`, the size of the population.
    `null`: only with `grid`, where it follows from the lists."""
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Number of trials of each setting, 1 to 10,000: with the config's `seed`, `seed` + 1, and so on."""
    slots: Annotated[int, Field(ge=1, le=65_536)] | Auto = "auto"
    """Number of trials that run at the same time, each on its own workers, 1 to 65,536. `auto`: as many as the
    resources allow."""
    max_failures_per_trial: Annotated[int, Field(ge=0, le=10**6)] = 3
    """Maximum number of times that a trial resumes from its newest checkpoint after it lost its workers, 0 to 10^6. 0
    disables."""
    isolation: Literal["shared", "process"] = "shared"
    """Isolation of trials. `shared`: the processes of a slot run one trial after the other. `process`: each trial gets
    new processes, which takes longer."""
    invalid: Literal["refuse", "skip"] = "refuse"
    """Behaviour if the config of a trial is not valid. `refuse`: the sweep does not start. `skip`: the trial is
    skipped."""
    device_memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory of a worker's device in GiB, above 0 to 10^6. Trials that are predicted to need more (`paceline plan`) are
    left out as `predicted_oom`, unless the difference is within the error of the prediction. `null`: all trials are
    run."""
    stop: StopConfig = StopConfig()
    """Conditions that end a trial or the sweep early."""

    @property
    def metrics(self) -> list[str]:
        """Metrics as a list."""
        return [self.metric] if isinstance(self.metric, str) else self.metric

    @property
    def objectives(self) -> list[tuple[str, Direction]]:
        """Each metric and its direction, `min` or `max`."""
        modes = [self.mode] if isinstance(self.mode, str) else self.mode or map(default_mode, self.metrics)
        return list(zip(self.metrics, modes, strict=True))

    @property
    def limits(self) -> list[Constraint]:
        """Parsed constraints."""
        return [Constraint.parse(metric, limit) for metric, limit in (self.constraints or {}).items()]

    @property
    def lists(self) -> dict[str, list[Any]]:
        """Axes that are lists of values, by name."""
        return {name: axis for name, axis in self.space.items() if isinstance(axis, list)}

    @property
    def ranges(self) -> dict[str, Range]:
        """Axes that are ranges, by name."""
        return {name: axis for name, axis in self.space.items() if isinstance(axis, Range)}
