"""Parallel coordinates: each setting as a line across its values, coloured by a metric."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from paceline.reports.figure import Picture, color_map, plain
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.heatmap import color_range, direction_text
from paceline.sweeps.results.importance import varied_axes
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.trial import Trial, axis_keys, planned_order

MAX_TICKS = 9
"""Values of an axis that are written beside it."""
LOG_FACTOR = 10.0
"""Positive numbers that differ by this factor or more are placed by their logarithms."""


def parallel_coordinates(trials: Sequence[Trial], objective: Objective) -> Picture:
    """Draw the mean over the seeds of each finished setting; the best setting is drawn last, and thick.

    Raises:
        ValueError: no finished trial has the metric, or none of the axes has two values.
    """
    settings = ranking.ranked(trials, [objective])
    axes = varied_axes([each.trials[0] for each in settings])
    axes = [axis for axis in axes if all(axis in each.setting for each in settings)]
    if not settings or not axes:
        reason = f"no finished trial has {objective[0]}" if not settings else "no axis has two values"
        raise ValueError(f"parallel coordinates cannot be drawn: {reason}")
    names = labels.short_names(axis_keys(trials))
    values = [each.spreads[objective[0]].mean for each in settings]
    scale, colors = Normalize(*color_range(values, objective)), color_map(objective[1])
    in_order = sorted(settings, key=lambda each: planned_order(each.trials[0]))
    columns = [_Column([each.setting[axis] for each in in_order]) for axis in axes]
    picture = Picture(min(3.0 + 1.6 * len(axes), 14), 4.2)
    drawing = picture.add_subplot()
    for index in reversed(range(len(settings))):
        places = [column.place(settings[index].setting[axis]) for axis, column in zip(axes, columns, strict=True)]
        width = 3.0 if index == 0 and not settings[0].broken else 1.2
        drawing.plot(range(len(axes)), places, color=colors(scale(values[index])), linewidth=width, marker="o")
    for number, column in enumerate(columns):
        _draw_axis(drawing, number, column)
    drawing.set_xticks(range(len(axes)), [plain(names[axis]) for axis in axes])
    drawing.set_xlim(-0.3, len(axes) - 0.5)
    drawing.set_yticks([])
    drawing.spines[:].set_visible(False)
    picture.colorbar(ScalarMappable(scale, colors), ax=drawing, label=direction_text(objective))
    return picture


class _Column:
    """The places of an axis' values, from 0 at the bottom to 1 at the top."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.ticks: list[tuple[float, str]] = []
        self._places: Mapping[str, float] = {}
        self._low = self._high = 0.0
        self.is_number = all(map(labels.is_number, values))
        if not self.is_number:
            texts = list(dict.fromkeys(map(labels.value_text, values)))
            self._places = dict(zip(texts, np.linspace(0, 1, len(texts)).tolist(), strict=True))
            self.ticks = [(place, text) for text, place in self._places.items()][:: -(-len(texts) // MAX_TICKS)]
            return
        self._is_log = min(values) > 0 and max(values) / min(values) >= LOG_FACTOR
        self._low, self._high = self._scaled(min(values)), self._scaled(max(values))
        distinct = sorted(set(values))
        shown = distinct if len(distinct) <= MAX_TICKS else [distinct[0], distinct[-1]]
        self.ticks = [(self.place(value), labels.value_text(value)) for value in shown]

    def place(self, value: Any) -> float:
        """Return the place of one of the values."""
        if not self.is_number:
            return self._places[labels.value_text(value)]
        return (self._scaled(value) - self._low) / (self._high - self._low) if self._high > self._low else 0.5

    def _scaled(self, value: float) -> float:
        return float(np.log(value)) if self._is_log else float(value)


def _draw_axis(axes: Axes, number: int, column: _Column) -> None:
    axes.axvline(number, color="#999999", linewidth=0.8, zorder=0)
    for place, text in column.ticks:
        axes.text(number + 0.05, place, plain(text), va="center", fontsize=8, bbox={"color": "white", "alpha": 0.7})
