"""One entry of `metrics`."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from paceline.config.imports import Called, ImportPath
from paceline.config.registry import entry_points_of


class MetricConfig(Called):
    """One metric of the evaluation, reported as `val/<name>`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][\w.-]{0,99}$")]
    """Name in the reported metrics. Without `path` it also selects the metric: `f1`, `iou`, `mae`, `r2`, `rmse`,
    or the entry point of an installed package (group `paceline.metrics`)."""
    path: ImportPath | None = None
    """`module:Class` whose objects have `update(predictions, targets)`, `compute()` and `reset()`, such as
    `torchmetrics.classification:MulticlassF1Score`. `null`: `name` selects a shipped metric."""

    shipped: ClassVar[dict[str, str]] = {
        "f1": "paceline.metrics._classification:F1",
        "iou": "paceline.metrics._classification:MeanIoU",
        "mae": "paceline.metrics._regression:MeanAbsoluteError",
        "r2": "paceline.metrics._regression:R2",
        "rmse": "paceline.metrics._regression:RootMeanSquaredError",
    }
    """Import path by name."""

    @classmethod
    def targets(cls) -> dict[str, str]:
        """Import path of each metric that `name` alone selects."""
        return {**{point.name: point.value for point in entry_points_of("paceline.metrics")}, **cls.shipped}

    @property
    def is_shipped(self) -> bool:
        """True for a metric of Paceline's: it computes what a task that reports one of this name does."""
        return self.path is None and self.name in self.shipped

    @property
    def target(self) -> Any:
        """Import path of what is called, or the object itself."""
        return self.path if self.path is not None else self.targets()[self.name]

    @model_validator(mode="after")
    def _name_is_known(self) -> "MetricConfig":
        if self.path is None and self.name not in self.targets():
            known = ", ".join(sorted(self.targets()))
            raise ValueError(f"there is no metric {self.name!r}; choose one of {known}, or set path")
        return self
