"""The pictures that a sweep's own run shows, as files. They are drawn while its worker groups leave."""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.experiment import ExperimentConfig
from paceline.config.space import Range
from paceline.redaction import redact
from paceline.reports.drawing import tried
from paceline.sweeps.results import importance, labels, ranking
from paceline.sweeps.results.curves import Histories, has_samples, keys_of, panels
from paceline.sweeps.results.importance import importances, is_log, varied_axes
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.states import ENDED
from paceline.sweeps.trial import Trial, axis_keys
from paceline.tracking import recorded_run

if TYPE_CHECKING:
    from paceline.reports.figure import Picture

logger = logging.getLogger(__name__)

PARETO = "pareto.png"
HEATMAP = "heatmap.png"
CURVES = "curves.png"
IMPORTANCE = "importance.png"
SHARES = "importance.json"
"""File of the shares that the importance is drawn from: computing them again takes seconds."""
PICTURES = {
    PARETO: "Pareto front",
    HEATMAP: "the two axes that matter most",
    CURVES: "losses and metrics over the samples seen, seeds as bands",
    IMPORTANCE: "how much each axis matters",
}
"""Title of each file."""
BATCH, RULE = "data.global_batch_size", "optimizer.lr_scaling"
COSTS = ("samples_per_second", "seconds")
"""Costs that a single objective is drawn against, the first that was measured."""
MOST_CELLS = 12
"""An axis with more numbers is drawn as a scale rather than as cells."""
DRAW_SECONDS = 20.0
"""Time that the end of a sweep waits for its pictures; those of ordinary ones take a second or two."""


def pictures_of(
    config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective], histories: Histories
) -> dict[str, bytes]:
    """The pictures as PNG by file name, see `PICTURES`, and `SHARES`; those for which there is too little are left out.

    Never fails: what cannot be drawn is a warning. Imports matplotlib, and scikit-learn for the importance.

    Args:
        config: the sweep's own, with its section.
        trials: all of them.
        objectives: what the sweep looks for, the most important one first.
        histories: by the id of a trial, its points, see `histories_of`.
    """
    shares = shares_of(config, trials, objectives)
    drawings = drawings_of(config, trials, objectives, histories, shares)
    drawn = {name: tried(partial(_as_png, each), name) for name, each in drawings.items()}
    files = {SHARES: json.dumps(shares, indent=1).encode()} if shares else {}
    return {name: data for name, data in drawn.items() if data} | files


def drawings_of(
    config: ExperimentConfig,
    trials: Sequence[Trial],
    objectives: Sequence[Objective],
    histories: Histories,
    shares: Mapping[str, float],
) -> dict[str, Callable[[], "Picture | None"]]:
    """Return functions that draw the pictures, by file name; each returns None where there are too few results.

    Args:
        config: the sweep's own, with its section.
        trials: all of them.
        objectives: metrics of the sweep, the most important one first.
        histories: by the id of a trial, its points.
        shares: by axis, how much it matters, see `shares_of`.
    """
    return {
        PARETO: partial(_pareto, trials, objectives),
        HEATMAP: partial(_heatmap, config, trials, objectives, shares),
        CURVES: partial(curves_of, config, trials, objectives, histories),
        IMPORTANCE: partial(_importance, trials, objectives, shares),
    }


def histories_of(folder: Path, trials: Sequence[Trial], objectives: Sequence[Objective]) -> Histories:
    """The points of a sweep's trials that its pictures need, read from their journals when they are asked for.

    Args:
        folder: the sweep's own.
    """
    folders = {trial.id: folder / "trials" / trial.id / "tracking" for trial in trials}
    return recorded_run.PointHistories(folders, keys_of(objectives))


def warm_up(config: ExperimentConfig) -> None:
    """Import what drawing needs: seconds of a process's time, best spent while it has nothing else to do."""
    import paceline.sweeps.results.charts  # noqa: F401

    if config.sweep is not None and len(config.sweep.space) > 1:
        importance.warm_up()


def _as_png(draw: "Callable[[], Picture | None]") -> bytes:
    picture = draw()
    return b"" if picture is None else picture.png()


def shares_of(
    config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective], recorded: bytes = b""
) -> dict[str, float]:
    """Return by axis how much it matters, the largest first; empty where there are too few finished settings.

    Args:
        recorded: the file `SHARES` of the sweep's own run; empty or damaged, they are computed, which takes seconds.
    """
    with suppress(ValueError, TypeError, AttributeError):
        return {str(axis): float(share) for axis, share in json.loads(recorded).items()}
    return tried(partial(_shares, config, trials, objectives), IMPORTANCE) or {}


def _shares(config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective]) -> dict[str, float]:
    return importances(config.sweep, trials, objectives[0]) if config.sweep is not None else {}


def _pareto(trials: Sequence[Trial], objectives: Sequence[Objective]) -> "Picture | None":
    from paceline.sweeps.results import charts

    pair = pareto_pair(trials, objectives)
    return charts.pareto(trials, objectives, *pair) if pair else None


def pareto_pair(trials: Sequence[Trial], objectives: Sequence[Objective]) -> tuple[Objective, Objective] | None:
    """Return the metrics of the Pareto chart: the second objective or a cost, and the first one; None where fewer than
    two settings have both, or each breaks a constraint."""
    costs = [*objectives[1:2], *((cost, ranking.MEASURES[cost]) for cost in COSTS)]
    for cost in costs:
        pair = cost, objectives[0]
        if cost[0] != objectives[0][0] and _places_of(trials, pair) > 1 and ranking.front(trials, pair):
            return pair
    return None


def _places_of(trials: Sequence[Trial], pair: Sequence[Objective]) -> int:
    """Return the number of settings that differ in a pair of metrics, without those that were never measured."""
    finished = [trial for trial in trials if trial.state == "finished"]
    both = {tuple(ranking.value_of(trial, metric) for metric, _ in pair) for trial in finished}
    return sum(None not in place and place[0] != 0 for place in both)


def _heatmap(
    config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective], shares: Mapping[str, float]
) -> "Picture | None":
    pair = heatmap_axes(trials, shares)
    if pair is None or not ranking.ranked(trials, objectives):
        return None
    from paceline.sweeps.results import heatmap

    scales = {axis: _is_scale(config, trials, axis) for axis in pair}
    if not any(scales.values()):
        return heatmap.heatmap(trials, objectives, *pair)
    names = labels.short_names(axis_keys(trials))
    x, y = sorted(pair, key=lambda axis: not scales[axis])
    logs = _is_log(config, trials, x), _is_log(config, trials, y)
    return heatmap.field(heatmap.field_of(trials, objectives[0], x, y), objectives[0], (names[x], names[y]), logs)


def heatmap_axes(trials: Sequence[Trial], shares: Mapping[str, float]) -> tuple[str, str] | None:
    """The axes to the right and upwards: batch size and learning rate rule, else those that matter most; None with
    fewer than two.

    Args:
        shares: by axis, how much it matters, the largest first; the order of the space decides where it is empty.
    """
    axes = varied_axes(trials)
    if BATCH in axes and RULE in axes:
        return BATCH, RULE
    first = list(dict.fromkeys([*(axis for axis in shares if axis in axes), *axes]))[:2]
    return (first[0], first[1]) if len(first) == 2 else None


def _values(trials: Sequence[Trial], axis: str) -> list[object]:
    return [trial.params[axis] for trial in trials if axis in trial.params]


def _is_scale(config: ExperimentConfig, trials: Sequence[Trial], axis: str) -> bool:
    values = _values(trials, axis)
    is_range = config.sweep is not None and isinstance(config.sweep.space.get(axis), Range)
    return all(map(labels.is_number, values)) and len(set(values)) > (MOST_CELLS // 2 if is_range else MOST_CELLS)


def _is_log(config: ExperimentConfig, trials: Sequence[Trial], axis: str) -> bool:
    values = _values(trials, axis)
    return config.sweep is not None and all(map(labels.is_number, values)) and is_log(config.sweep, axis, values)


def curves_of(
    config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective], histories: Histories
) -> "Picture | None":
    """Draw the curves of the best settings; None where no trial has logged a metric of the sweep."""
    lines = panels(config, trials, objectives, histories)
    if not lines:
        return None
    from paceline.sweeps.results import charts

    unit = "training samples seen" if has_samples(config, trials) else "optimizer steps"
    return charts.curves(lines, unit, f"{config.name}: the best settings by {objectives[0][0]}")


def importance_of(
    config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective]
) -> "Picture | None":
    """Draw the importance of the axes; None where there are too few finished settings."""
    return _importance(trials, objectives, _shares(config, trials, objectives))


def _importance(
    trials: Sequence[Trial], objectives: Sequence[Objective], shares: Mapping[str, float]
) -> "Picture | None":
    if not shares:
        return None
    from paceline.sweeps.results import charts

    settings = len(ranking.ranked(trials, objectives[:1]))
    return charts.importance(shares, objectives[0], settings, labels.short_names(axis_keys(trials)))


class Drawing:
    """The pictures of one launch of a sweep. Its threads keep no process from ending."""

    def __init__(self) -> None:
        self._warming: threading.Thread | None = None
        self._drawing: threading.Thread | None = None
        self._pictures: dict[str, bytes] = {}

    def prepare(self, config: ExperimentConfig, trials: Sequence[Trial]) -> None:
        """Import what drawing needs, in the background, once a trial has ended: by then all else is imported."""
        if self._warming is None and any(trial.state in ENDED and trial.attempts for trial in trials):
            self._warming = _begin(lambda: _warm_up(config))

    def start(self, folder: Path, config: ExperimentConfig, trials: Sequence[Trial]) -> None:
        """Begin to draw; nothing is drawn of a sweep of which no trial was trained.

        Args:
            folder: the sweep's own.
        """
        if any(trial.attempts for trial in trials):
            self._drawing = _begin(lambda: self._draw(folder, config, list(trials)))

    def finish(self, timeout_seconds: float = DRAW_SECONDS) -> dict[str, bytes]:
        """The pictures and `SHARES` by file name; none when they take longer than that."""
        if self._drawing is None:
            return {}
        self._drawing.join(timeout_seconds)
        if self._drawing.is_alive():
            logger.warning("the sweep's pictures take more than %g s, and are left out", timeout_seconds)
            return {}
        return self._pictures

    def _draw(self, folder: Path, config: ExperimentConfig, trials: list[Trial]) -> None:
        if self._warming is not None:
            self._warming.join()  # two threads would find modules half made
        objectives = config.sweep.objectives if config.sweep is not None else []
        self._pictures = pictures_of(config, trials, objectives, histories_of(folder, trials, objectives))


def _begin(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="paceline-pictures", daemon=True)
    thread.start()
    return thread


def _warm_up(config: ExperimentConfig) -> None:
    try:
        warm_up(config)
    except Exception as error:  # drawing tells what it lacks
        logger.debug("nothing can be drawn: %s", redact(str(error)))
