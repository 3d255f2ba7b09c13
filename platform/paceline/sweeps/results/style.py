"""What all pictures of a sweep have in common: the figure, its colours, and how its texts are written."""

from io import BytesIO

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from paceline.sweeps.results.ranking import Objective

FRONT_COLOR = "#4c78a8"
OTHER_COLOR = "#b0b0b0"
BEST_COLOR = "#e4572e"
EMPTY_COLOR = "#eeeeee"


class Picture(Figure):
    """A figure that a notebook shows, and whose size fits it, without pyplot and its list of open figures."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        self.savefig(data, format="png")
        return data.getvalue()


def dress(axes: Axes, grid: str = "both") -> None:
    """Give a picture's axes the look that all of them have."""
    axes.grid(visible=True, axis=grid, color="#dddddd", linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def color_map(objective: Objective) -> Colormap:
    """Bright is better, and the colours differ for those who see no red and green as well."""
    return colormaps["viridis" if objective[1] == "max" else "viridis_r"].with_extremes(bad=EMPTY_COLOR)


def direction_text(objective: Objective) -> str:
    """A metric, and which way it is better, as an axis tells it."""
    metric, mode = objective
    return plain(f"{metric} (higher is better →)" if mode == "max" else f"{metric} (← lower is better)")


def plain(text: str) -> str:
    """Text in which no `$` begins a formula."""
    return text.replace("$", r"\$")
