"""Sweeps to make saved views of."""

from typing import Any

from paceline.tracking.mlflow_views import SweepStory, ViewAxis

SWEEP = "20260102-030405-abc123"
LR, BATCH, RULE = (
    ViewAxis("optimizer.lr", True, True),
    ViewAxis("data.batch", True),
    ViewAxis("optimizer.lr_scaling", False),
)


def story(*axes: ViewAxis, objectives: Any = (("val/accuracy", "max"),), seeds: int = 1, **changes: Any) -> SweepStory:
    """A sweep over these axes."""
    given = {"sweep_id": SWEEP, "name": "mnist", "objectives": objectives, "axes": axes, "seeds": seeds}
    return SweepStory(**{**given, **changes})
