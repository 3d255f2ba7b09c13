"""Sweeps to make saved views of."""

from typing import Any

from paceline.tracking.views import Axis, SweepStory

SWEEP = "20260102-030405-abc123"
LR, BATCH, RULE = Axis("optimizer.lr", True, True), Axis("data.batch", True), Axis("optimizer.lr_scaling", False)


def story(*axes: Axis, objectives: Any = (("val/accuracy", "max"),), seeds: int = 1, **changes: Any) -> SweepStory:
    """A sweep over these axes."""
    given = {"sweep_id": SWEEP, "name": "mnist", "objectives": objectives, "axes": axes, "seeds": seeds}
    return SweepStory(**{**given, **changes})
