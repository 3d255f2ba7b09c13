"""The pictures of a sweep in its report."""

import base64

from markupsafe import Markup

from paceline.redaction import redact
from paceline.reports.page import Chart, drawn_chart
from paceline.sweeps.results.curves import Histories
from paceline.sweeps.results.pictures import CURVES, HEATMAP, IMPORTANCE, PARETO, PICTURES, drawings_of
from paceline.sweeps.results.result import SweepResult

_ORDER = (CURVES, PARETO, HEATMAP, IMPORTANCE)


def sweep_charts(result: SweepResult, histories: Histories, recorded: bytes) -> list[Chart]:
    """Draw everything that there are enough results for.

    Args:
        result: the sweep.
        histories: by trial, the points of its curves.
        recorded: the picture of what matters most as the sweep's own run has it, as PNG: computing it takes seconds.
    """
    draw = drawings_of(result.config, result.trials, result.objectives, histories, with_importance=not recorded)
    charts = []
    for name in _ORDER:
        title = PICTURES[name]
        if chart := drawn_chart(draw[name], title):
            charts.append(chart)
        elif name == IMPORTANCE and recorded:
            charts.append(Chart(_image(recorded, title)))
    return charts


def _image(data: bytes, title: str) -> Markup:
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return Markup('<img src="{}" alt="{}">').format(source, redact(title))
