"""The section `scale`: the target metric, and the batch sizes and numbers of workers to consider."""

from typing import Annotated, Literal

from pydantic import Field

from paceline.config.base import Section
from paceline.config.limits import BatchSize, Metric, Target
from paceline.direction import Direction


class ScaleConfig(Section):
    """Target metric, batch sizes and numbers of workers of `paceline scale`; `train` and `sweep` ignore them."""

    target: Annotated[dict[Metric, Target], Field(min_length=1, max_length=1)] | None = None
    """Metric of the evaluation and the value that training is to reach, such as `{val/accuracy: 0.96}`. `null`: the
    `val/loss` that the unchanged config has after 80 % of its training."""
    mode: Direction | None = None
    """Direction in which the metric is better: lower (`min`) or higher (`max`). `null`: follows from the metric's
    name."""
    batch_sizes: Annotated[list[BatchSize], Field(min_length=1)] | Literal["auto"] = "auto"
    """Global batch sizes to consider, each 1 to 2^31 - 1. `auto`: that of the config, doubled as long as larger sizes
    are worthwhile."""
    workers: Annotated[list[Annotated[int, Field(ge=1, le=65_536)]], Field(min_length=1)] | Literal["auto"] = "auto"
    """Numbers of workers to consider, each 1 to 65,536. Everything is measured with `scaling.num_workers`. The time of
    a step with another number is measured where there are resources and time for it; otherwise it is extrapolated, and
    marked as such. `auto`: `scaling.num_workers`, halved and doubled twice."""
    budget_seconds: Annotated[float, Field(ge=10, le=1e7)] = 600.0
    """Maximum duration of the study, from the command to the report, 10 to 10^7 seconds. It ends earlier when
    everything is measured. What has begun by then may take a quarter of it longer, or 60 seconds if that
    is more."""
    verify: bool = True
    """Train the recommendation and the unchanged config to the target. `false`: the recommendation is a prediction."""
    seeds: Annotated[int, Field(ge=2, le=1024)] = 3
    """Number of seeds with which the recommendation and the unchanged config are trained to the target, 2 to 1024. Up
    to twice as many are used if these do not show which is faster, but more might."""
