"""The pictures of a sweep in its report."""

from paceline.reports.page import Chart, drawn_chart
from paceline.sweeps.results.curves import Histories
from paceline.sweeps.results.pictures import CURVES, HEATMAP, IMPORTANCE, PARETO, PICTURES, drawings_of, shares_of
from paceline.sweeps.results.result import SweepResult

_ORDER = (CURVES, PARETO, HEATMAP, IMPORTANCE)


def sweep_charts(result: SweepResult, histories: Histories, recorded: bytes) -> list[Chart]:
    """Draw everything that there are enough results for.

    Args:
        result: the sweep.
        histories: by trial, the points of its curves.
        recorded: file of the sweep's own run that says how much each axis matters, see `shares_of`.
    """
    shares = shares_of(result.config, result.trials, result.objectives, recorded)
    draw = drawings_of(result.config, result.trials, result.objectives, histories, shares)
    return [chart for name in _ORDER if (chart := drawn_chart(draw[name], PICTURES[name]))]
