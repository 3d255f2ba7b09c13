"""The picture of a run: its losses over the steps."""

from collections.abc import Mapping
from pathlib import Path

from paceline.tracking import metrics
from paceline.tracking.thinned_curves import ThinnedCurve


def loss_curve(curves: Mapping[str, ThinnedCurve], path: Path, title: str = "") -> None:
    """Draw training and validation loss over the optimizer steps into a PNG file.

    Raises:
        ValueError: there is no finite loss in the curves.
    """
    losses = [(key, curves[key].places) for key in (metrics.TRAIN_LOSS, metrics.VAL_LOSS) if key in curves]
    if not any(places for _, places in losses):
        raise ValueError("there is no finite loss to draw")
    from paceline.reports.line_chart import ChartLine, line_chart

    path.write_bytes(line_chart(title or "loss", [ChartLine(key, places) for key, places in losses]).png())
