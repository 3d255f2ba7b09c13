"""The picture of a run: its losses over the steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.tracking import metrics
from paceline.tracking.curves import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAIN_COLOR = "#4c78a8"
VAL_COLOR = "#e4572e"
FEW_POINTS = 40
"""Up to this many points, each one gets a marker."""


def loss_curve(curves: Mapping[str, Curve], path: Path, title: str = "") -> None:
    """Draw training and validation loss over the optimizer steps into a PNG file.

    Raises:
        ValueError: there is no finite loss in the curves.
    """
    training, validation = (_series(curves.get(key)) for key in (metrics.TRAIN_LOSS, metrics.VAL_LOSS))
    if not (training[0] or validation[0]):
        raise ValueError("there is no finite loss to draw")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw(axes, *training, "training", TRAIN_COLOR)
    _draw(axes, *validation, "validation", VAL_COLOR)
    _dress(axes, title)
    figure.savefig(path, format="png")


def _series(curve: Curve | None) -> tuple[list[float], list[float]]:
    places = curve.places if curve is not None else []
    return [step for step, _ in places], [value for _, value in places]


def _draw(axes: "Axes", steps: list[float], values: list[float], label: str, color: str) -> None:
    if not steps:
        return
    marker = "o" if len(steps) <= FEW_POINTS else None
    axes.plot(steps, values, color=color, marker=marker, markersize=4, linewidth=1.8, label=f"{label} {values[-1]:.4g}")


def _dress(axes: "Axes", title: str) -> None:
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss")
    axes.set_title(title.replace("$", r"\$"), loc="left", fontweight="bold")
    axes.grid(visible=True, color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, title="last value")
