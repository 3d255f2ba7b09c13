"""The section `scale`: what is to be reached, and which batch sizes and numbers of workers are considered."""

from typing import Annotated, Literal

from pydantic import Field

from paceline.config.base import Section
from paceline.config.limits import BatchSize, Metric, Target
from paceline.direction import Direction


class ScaleConfig(Section):
    """What `paceline scale` looks for; `paceline train` and `sweep` pass this section over."""

    target: Annotated[dict[Metric, Target], Field(min_length=1, max_length=1)] | None = None
    """A metric of the evaluation and the value that training is to reach, such as `{val/accuracy: 0.96}`. `null`: the
    `val/loss` that the config as it is has at its end."""
    mode: Direction | None = None
    """Whether the metric is to be small (`min`) or large (`max`). `null`: follows from the metric's name."""
    batch_sizes: Annotated[list[BatchSize], Field(min_length=1)] | Literal["auto"] = "auto"
    """Global batch sizes that are considered, each 1 to 2^31 - 1. `auto`: the config's own, doubled as far as larger
    ones are worth it."""
    workers: Annotated[list[Annotated[int, Field(ge=1, le=65_536)]], Field(min_length=1)] | Literal["auto"] = "auto"
    """Numbers of workers that are considered, each 1 to 65,536. Only that of `scaling.num_workers` is measured; the
    others are extrapolated, and marked. `auto`: that number, halved and doubled twice."""
    budget_seconds: Annotated[float, Field(ge=10, le=1e7)] = 600.0
    """How long the study may take from its command to its report, 10 to 10^7 seconds. It ends earlier when all is
    measured."""
    seeds: Annotated[int, Field(ge=2, le=1024)] = 3
    """With how many seeds the recommendation and the config as it is are trained to the target, 2 to 1024."""
