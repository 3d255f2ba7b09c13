"""The section `tuneup`: time budget, techniques, and the margin of equal quality."""

from typing import Annotated, Any

from pydantic import Field

from paceline.config.base import Section
from paceline.config.limits import Metric
from paceline.direction import Direction

TechniqueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+= -]{0,79}$")]


SKIPPED = "tuneup.skip names it"
NOT_AMONG = "tuneup.only does not name it"


class TuneupConfig(Section):
    """Budget, quality metric and techniques of `paceline tuneup`; `paceline train` and `sweep` ignore them."""

    budget_seconds: Annotated[float, Field(ge=10, le=1e7)] = 600.0
    """Maximum duration of the tune-up, from the command to the report, 10 to 10^7 seconds. It ends earlier when
    everything is decided. What has begun by then may take a quarter of it longer, or 60 seconds if that
    is more; trainings are stopped."""
    metric: Metric | None = None
    """Quality metric, as it is recorded. `null`: `val/accuracy` if the task reports it, else `val/loss`."""
    mode: Direction | None = None
    """Direction in which the metric is better: lower (`min`) or higher (`max`). `null`: follows from the metric's
    name."""
    margin: Annotated[float, Field(gt=0, le=1e20)] | None = None
    """Largest loss of quality that still counts as equal, in the unit of the metric, above 0 to 10^20. It is fixed
    before anything is measured. `null`: 1 % of the baseline's mean, or 5 % for a metric that is better when lower, such
    as a loss."""
    seeds: Annotated[int, Field(ge=2, le=1024)] = 5
    """Number of seeds with which the baseline and each change of the numerics are trained to the end, 2 to 1024."""
    techniques: dict[TechniqueName, Annotated[dict[str, Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Custom techniques in addition to the known ones: a name, and the fields that it sets by dotted key, such as
    `{bigger lr: {optimizer.lr: 0.2}}`."""
    only: Annotated[list[TechniqueName], Field(min_length=1)] | None = None
    """Names of the only techniques to try, as in the tune-up's table, including those of `techniques` and fixes of
    bottlenecks, such as `fix-data-1`. `null`: all techniques."""
    skip: list[TechniqueName] = Field(default_factory=list)
    """Names of techniques to leave out, as in `only`."""
    device_memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory of a worker's device in GiB, above 0 to 10^6. Techniques that are predicted to need more (`paceline plan`)
    are left out as `predicted_oom`, unless the difference is within the error of the prediction. `null`: the memory of
    the GPU; on CPU, all techniques are tried."""

    def leaves_out(self, name: str) -> str:
        """Return the reason for leaving out a technique; empty if it is tried."""
        if name in self.skip:
            return SKIPPED
        return NOT_AMONG if self.only is not None and name not in self.only else ""
