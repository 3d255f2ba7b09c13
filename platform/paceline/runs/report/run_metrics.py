"""The table of a run's metrics: the last, the best and the extreme values."""

import math
from collections.abc import Mapping

from paceline.direction import default_mode
from paceline.runs.report.html import Child, tag
from paceline.runs.report.numbers import count_text, formatter
from paceline.runs.report.parts import table
from paceline.tracking import metrics
from paceline.tracking.curves import Curve, Place

OF_TRAINING = ("train/", "val/")
"""How the keys begin that tell of the model rather than of the machine."""
_TOLD_ELSEWHERE = ("cost/", "axis/")
_HEADING = ("last", "best", "at step", "lowest", "highest", "values")

Cell = tuple[Child, float | None]


def metrics_table(curves: Mapping[str, Curve]) -> Child:
    """All metrics, those of the model first."""
    keys = [key for key in curves if not key.startswith(_TOLD_ELSEWHERE)]
    if not keys:
        return tag("p", "No metric was recorded.")
    ordered = sorted(keys, key=lambda key: (not key.startswith(OF_TRAINING), key))
    heading = [("metric", False), *((words, True) for words in _HEADING)]
    about = [{"data_metric": key} for key in ordered]
    return table(heading, [_row(key, curves[key]) for key in ordered], "sortable", "metrics", about)


def _row(key: str, curve: Curve) -> list[Cell]:
    best = best_of(key, curve)
    count = count_text(curve.count) + (f" ({curve.odd:,} not finite)" if curve.odd else "")
    at = (count_text(best[0]), best[0]) if best else ("", None)
    values = [_value(key, place) for place in (curve.newest, best)]
    extremes = [_value(key, place) for place in (curve.lowest, curve.highest)]
    return [(key, None), *values, at, *extremes, (count, curve.count)]


def _value(key: str, place: Place | None) -> Cell:
    if place is None:
        return "", None
    return formatter(key)(place[1]), place[1] if math.isfinite(place[1]) else None


def best_of(key: str, curve: Curve) -> Place | None:
    """The best value; None of a metric of which nothing says which way it is better."""
    if not (key.startswith(OF_TRAINING) or key == metrics.SAMPLES_PER_SECOND):
        return None
    return curve.lowest if default_mode(key) == "min" else curve.highest
