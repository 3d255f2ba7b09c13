"""The section `tuneup`: how much time a tune-up may take, and what counts as the same quality."""

from typing import Annotated, Any

from pydantic import Field

from paceline.config.base import Section
from paceline.config.limits import Metric
from paceline.direction import Direction

TechniqueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+= -]{0,79}$")]


SKIPPED = "tuneup.skip names it"
NOT_AMONG = "tuneup.only does not name it"


class TuneupConfig(Section):
    """What `paceline tuneup` measures; `paceline train` and `sweep` pass this section over."""

    budget_seconds: Annotated[float, Field(ge=10, le=1e7)] = 600.0
    """How long the tune-up may take from its command to its report, 10 to 10^7 seconds. It ends earlier when all is
    decided."""
    metric: Metric | None = None
    """What quality is judged by, as it is recorded. `null`: `val/accuracy` where the task reports it, else
    `val/loss`."""
    mode: Direction | None = None
    """Whether the metric is to be small (`min`) or large (`max`). `null`: as in `sweep.mode`."""
    margin: Annotated[float, Field(gt=0, le=1e20)] | None = None
    """How much worse the metric may be, in its own unit, and still count as equal; above 0 to 10^20. `null`: 1 % of the
    baseline's mean, and 5 % where less is better, as of a loss. Set before anything is measured."""
    seeds: Annotated[int, Field(ge=2, le=1024)] = 5
    """With how many seeds a change of the numerics is trained to the end, beside the baseline, 2 to 1024."""
    techniques: dict[TechniqueName, Annotated[dict[str, Any], Field(min_length=1)]] = Field(default_factory=dict)
    """Techniques of your own beside the known ones: a name, and the fields that it sets by dotted key, such as
    `{bigger lr: {optimizer.lr: 0.2}}`."""
    only: Annotated[list[TechniqueName], Field(min_length=1)] | None = None
    """Names of the techniques that are tried, as the tune-up's table has them: those of `techniques` may be among them,
    and fixes of the bottleneck, such as `fix-data-1`. `null`: all are tried."""
    skip: list[TechniqueName] = Field(default_factory=list)
    """Names of techniques that are not tried, as in `only`."""
    device_memory_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Memory of a worker's device in GiB, above 0 to 10^6: techniques that are predicted to take more (`paceline plan`)
    are not tried, as `predicted_oom`, unless the prediction's error decides it. `null`: that of the GPU; on CPU all
    are tried."""

    def leaves_out(self, name: str) -> str:
        """Why a technique is not to be tried; empty if it is."""
        if name in self.skip:
            return SKIPPED
        return NOT_AMONG if self.only is not None and name not in self.only else ""
