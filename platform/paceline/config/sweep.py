"""The section `sweep`: what is tried out, how it is searched, and when it ends."""

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
    """What ends a trial or the whole sweep before its time."""

    target: Target | None = None
    """The sweep ends as soon as a trial's first metric is as good as this, -10^20 to 10^20. `null` disables."""
    trial_seconds: Seconds | None = None
    """A trial ends after so much time on its workers, above 0 to 10^9 seconds. `null` disables."""
    wall_seconds: Seconds | None = None
    """The sweep ends after so much time, above 0 to 10^9 seconds; what is running then can be resumed. `null`
    disables."""


def _check_space(value: Any) -> Any:
    if value == {}:
        raise refused("has no axis", "write at least one, such as {optimizer.lr: [0.01, 0.1]}")
    return value


class SweepConfig(Section):
    """Many trials of the experiment: `paceline sweep` runs them, `paceline train` passes this section over."""

    space: Annotated[Annotated[dict[str, Axis], Field(min_length=1)], BeforeValidator(_check_space)]
    """What is tried out: dotted keys of this config, such as `optimizer.lr`, each with a list of values, or with a
    range: `{uniform: [a, b]}`, `{loguniform: [a, b]}`, `{quniform: [a, b, step]}`, or `{randint: [a, b]}`, which
    leaves out `b`. A whole section, such as `model`, takes mappings as values."""
    metric: Metric | Annotated[list[Metric], Field(min_length=1)] = "val/loss"
    """What trials are compared by: a metric as it is recorded, such as `val/accuracy`, or a list of them, by which the
    trials win that no other one beats in all of them."""
    mode: Direction | list[Direction] | None = None
    """Whether the metric is to be as small (`min`) or as large (`max`) as possible; a list for a list of metrics.
    `null`: `min` for a metric with `loss`, `error`, `perplexity`, `seconds`, `bytes`, `joules` or `wait` in its name,
    else `max`."""
    constraints: dict[Metric, Limit] | None = None
    """Limits that the best trial has to keep, by metric: `<=`, `<`, `>=` or `>` and a number, such as
    `{val/loss: "< 0.5"}`. Metrics in bytes take B, KiB, MiB, GiB, TiB, KB, MB, GB and TB, as in
    `{peak_memory_bytes: "<= 8GiB"}`, metrics in seconds ms, s, min and h. A finished trial without the metric breaks
    the constraint. `null` disables."""
    search: Literal["grid", "random", "scale", "optuna"] = "grid"
    """Which trials are run: all combinations of the lists (`grid`), `num_samples` that are drawn (`random`), as many
    along the valley in which the learning rate follows the batch size by the optimizer's rule, within a factor of 4
    (`scale`, with the axes `data.global_batch_size` and `optimizer.lr`), or `num_samples` each of which is chosen from
    the results of those before it (`optuna`)."""
    scheduler: Literal["none", "asha", "median", "pbt"] = "none"
    """Which trials end early. `asha`: at each rung those that are not among the best 1 / `rung_factor`. `median`: those
    that are worse than the median of the others so far. `pbt`: none; the worst continue from the state of the best,
    with changed values. `none`: all are trained to the end."""
    budget_unit: Annotated[Literal["samples", "epochs", "seconds"], WITH_SCHEDULER] = "samples"
    """What rungs are measured in: training samples, epochs, or seconds on the workers. Needs a `scheduler`."""
    first_rung: Annotated[Annotated[float, Field(gt=0, le=1e15)] | None, WITH_SCHEDULER] = None
    """In `budget_unit`, above 0 to 10^15: with `asha` where trials are first compared, with `median` and `pbt` the
    distance between two comparisons. `null`: the whole length of the training divided by `rung_factor` squared (`asha`)
    or by 10; it has to be given where that length is not known before the data are loaded, and in seconds."""
    rung_factor: Annotated[
        float,
        Field(ge=1.1, le=1e6),
        WITH_SCHEDULER,
        NotWith("sweep.scheduler", "median", "pbt", because="only asha has rungs farther and farther apart"),
    ] = 3.0
    """`asha` keeps the best 1 / `rung_factor` of the trials at each rung, and the next rung is `rung_factor` times as
    far; 1.1 to 10^6."""
    num_samples: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """How many settings `random`, `scale` and `optuna` try, 1 to 10,000; with `pbt` the size of the population. `null`
    with `grid`, where it follows from the lists."""
    seeds: Annotated[int, Field(ge=1, le=10_000)] = 1
    """How often each setting is repeated, 1 to 10,000: with the config's `seed`, the number after it, and so on."""
    slots: Annotated[int, Field(ge=1, le=65_536)] | Auto = "auto"
    """How many trials run at the same time, each on workers of its own, 1 to 65,536. `auto`: as many as there is room
    for."""
    max_failures_per_trial: Annotated[int, Field(ge=0, le=10**6)] = 3
    """How often a trial whose workers were lost resumes from its newest checkpoint, 0 to 10^6. 0 disables."""
    isolation: Literal["shared", "process"] = "shared"
    """Whether a slot's processes take trial after trial (`shared`), or each trial gets new ones (`process`), which
    takes longer."""
    invalid: Literal["refuse", "skip"] = "refuse"
    """What is done about trials that are not a valid config: `refuse` to begin, or `skip` them."""
    device_memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory of a worker's device in GiB, above 0 to 10^6: trials that are predicted to take more (`paceline plan`) are
    left out, as `predicted_oom`, unless the prediction's error decides it. `null`: nothing is left out."""
    stop: StopConfig = StopConfig()
    """What ends a trial or the sweep before its time."""

    @property
    def metrics(self) -> list[str]:
        """The metrics as a list."""
        return [self.metric] if isinstance(self.metric, str) else self.metric

    @property
    def objectives(self) -> list[tuple[str, Direction]]:
        """Each metric, and whether it is to be small or large."""
        modes = [self.mode] if isinstance(self.mode, str) else self.mode or map(default_mode, self.metrics)
        return list(zip(self.metrics, modes, strict=True))

    @property
    def limits(self) -> list[Constraint]:
        """The constraints, ready to be compared with values."""
        return [Constraint.parse(metric, limit) for metric, limit in (self.constraints or {}).items()]

    @property
    def lists(self) -> dict[str, list[Any]]:
        """The axes that are lists of values."""
        return {name: axis for name, axis in self.space.items() if isinstance(axis, list)}

    @property
    def ranges(self) -> dict[str, Range]:
        """The axes that values are drawn from."""
        return {name: axis for name, axis in self.space.items() if isinstance(axis, Range)}
