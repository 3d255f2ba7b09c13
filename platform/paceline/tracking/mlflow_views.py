"""Saved views of an MLflow experiment, and the links that open them. Written as experiment tags.

MLflow's pages keep a view as JSON of their own; nothing of it is documented. What is written here was taken from the
pages of MLflow 3.15 to 3.17, and a test opens it in a browser.
"""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.tracking import metrics
from paceline.tracking.mlflow_probe import answered
from paceline.tracking.run_record import launched_ms
from paceline.tracking.tracking_uri import run_url, view_url

RUNS_VIEW = "paceline-runs"
"""The view of an experiment's plain runs."""
TAG_PREFIX = "mlflow.sharedViewState."
TAG_LENGTH = 5000
"""Characters of a tag of an experiment that every MLflow takes; the newest takes more."""
MOST_AXES = 8
"""Axes of a chart; with more, none could be read."""
RUNS_IN_CHARTS = 100
CARD_HEIGHT = 300
"""Height of a chart in pixels: two rows of them are seen at once."""
MOST_EXPERIMENTS = 1000
"""Experiments that are looked through, the newest first."""
TIMEOUT_SECONDS = 10.0
"""Limit of one request."""
_SECTION = "Sweep"
_NOT_LOGGED = ("seconds", "samples", "steps")
"""Metrics that a sweep may look for, and that no trial logs."""
_FOLDED = ("axis", "Model metrics", "System metrics")
"""MLflow makes a section for each beginning of a key; these stay closed, since what tells most is above them."""


@dataclass(frozen=True)
class ViewAxis:
    """An axis of a sweep."""

    key: str
    """Dotted key of the config."""
    is_number: bool
    """True if all of its values are numbers: then each trial has it as a metric, too, see `metrics.axis_metric`."""
    is_range: bool = False
    """True if it takes any value between two bounds: a contour shows these best."""


@dataclass(frozen=True)
class SweepStory:
    """Contents of the view of a sweep."""

    sweep_id: str
    name: str
    """The config's."""
    objectives: Sequence[tuple[str, str]]
    """Metrics, the most important first, each with `min` or `max`."""
    axes: Sequence[ViewAxis]
    seeds: int = 1
    """Repeats of each setting."""


def sweep_view_id(sweep_id: str) -> str:
    """Names the view of a sweep, in links as well."""
    return f"paceline-sweep-{re.sub(r'[^A-Za-z0-9-]', '-', sweep_id)}"


def sweep_views(story: SweepStory) -> dict[str, str]:
    """The tag, by its key, with the view of a sweep: parallel coordinates, speed against the first metric, two axes
    against it, and the curves; over the trials, those of a setting as one where seeds are repeated.

    The same story makes the same tag.
    """
    axes = list(story.axes)[:MOST_AXES]
    while True:
        envelope = _envelope(
            f"Sweep {story.name} {story.sweep_id}", launched_ms(story.sweep_id) or 0, _sweep_state(story, axes)
        )
        if len(envelope) <= TAG_LENGTH or not axes:
            return {TAG_PREFIX + sweep_view_id(story.sweep_id): envelope}
        axes.pop()


def run_views() -> dict[str, str]:
    """The tag, by its key, with the view of an experiment's plain runs: losses, accuracy, speed and memory over the
    epochs. The same for every run."""
    return {TAG_PREFIX + RUNS_VIEW: _envelope("Runs", 0, _runs_state())}


def review_url(uri: str, experiment_id: str | None, view_id: str) -> str | None:
    """`view_url`; None while the experiment is not in MLflow."""
    return view_url(uri, experiment_id, view_id) if experiment_id else None


def newest(address: str) -> list[tuple[str, str]]:
    """Return what can be reviewed on an MLflow server: the newest sweep and the newest run outside of one, each with
    its link. Nothing where there are none, or where the server does not tell.

    Args:
        address: where the server answers; credentials in it are used, and are not in the links.
    """
    from http.client import HTTPException  # 20 ms, which a run need not wait for

    try:
        experiments = _experiments(address)
        found = [(kind, _newest_run(address, kind, list(experiments))) for kind in ("sweep", "run")]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return []  # whoever reviews finds them on the server's page as well
    return [(f"{kind} {run['name']}", _link_of(address, run, experiments)) for kind, run in found if run]


def _sweep_state(story: SweepStory, axes: Sequence[ViewAxis]) -> dict[str, Any]:
    goals = _goals(story)
    is_grouped = story.seeds > 1 and bool(axes)
    group = [{"mode": "param", "groupByData": metrics.mlflow_key(axis.key)} for axis in axes]
    columns = [
        _column("tags", metrics.TRIAL_STATE),
        *(_column("params", metrics.mlflow_key(axis.key)) for axis in axes),
        *(_column("metrics", key) for key in dict.fromkeys([*goals, metrics.SAMPLES_PER_SECOND_OVERALL])),
    ]
    trials = _filter({metrics.SWEEP_ID: story.sweep_id, metrics.KIND: "trial"})
    return {
        # in the order of their times, trials would be folded under their parent, and be left out of the charts
        **_search(trials, _column("metrics", goals[0])),
        "orderByAsc": dict(story.objectives).get(goals[0], "max") == "min",
        **_page(_charts(_sweep_charts(goals, axes)), [_SECTION, "Curves"], columns),
        "groupBy": {"aggregateFunction": "average", "groupByKeys": group} if is_grouped else None,
        # a group has no param that is text, so that parallel coordinates over one would have no line
        "useGroupedValuesInCharts": is_grouped and all(axis.is_number for axis in axes),
    }


def _goals(story: SweepStory) -> list[str]:
    """The metrics that the sweep looks for, as far as MLflow has them."""
    goals = [_logged(metric) for metric, _ in story.objectives if metric not in _NOT_LOGGED]
    return list(dict.fromkeys(goals)) or [metrics.SAMPLES_PER_SECOND_OVERALL]


def _logged(metric: str) -> str:
    """The key that a sweep's metric has in MLflow: a speed is ranked by that without the warm-up."""
    return metrics.SAMPLES_PER_SECOND_OVERALL if metric == metrics.SAMPLES_PER_SECOND else metrics.mlflow_key(metric)


def _sweep_charts(goals: Sequence[str], axes: Sequence[ViewAxis]) -> list[dict[str, Any]]:
    first = goals[0]
    ranges_first = sorted(axes, key=lambda axis: not axis.is_range)
    numbers = [metrics.axis_metric(axis.key) for axis in ranges_first if axis.is_number]
    texts = [metrics.mlflow_key(axis.key) for axis in axes if not axis.is_number]
    charts: list[dict[str, Any]] = []
    if axes:
        shown = {"selectedParams": texts, "selectedMetrics": [*numbers, *goals], "showAllRuns": False}
        charts.append({"type": "PARALLEL", "section": _SECTION, **shown})
    cost = goals[1] if len(goals) > 1 else metrics.SAMPLES_PER_SECOND_OVERALL
    if cost != first:
        charts.append({"type": "SCATTER", "section": _SECTION, "xaxis": _metric(cost), "yaxis": _metric(first)})
    if len(numbers) > 1:
        planes = {"xaxis": _metric(numbers[0]), "yaxis": _metric(numbers[1]), "zaxis": _metric(first)}
        charts.append({"type": "CONTOUR", "section": _SECTION, **planes})
    elif numbers:
        charts.append({"type": "SCATTER", "section": _SECTION, "xaxis": _metric(numbers[0]), "yaxis": _metric(first)})
    keys = dict.fromkeys([metrics.TRAIN_LOSS, *goals, metrics.VAL_LOSS])
    return charts + [_curve(key, "Curves") for key in keys]


def _runs_state() -> dict[str, Any]:
    keys = {
        "Losses": [metrics.TRAIN_LOSS, metrics.VAL_LOSS, metrics.VAL_ACCURACY],
        "Speed": [
            metrics.SAMPLES_PER_SECOND_OVERALL,
            metrics.DATA_WAIT_FRACTION,
            metrics.PEAK_MEMORY_BYTES,
            metrics.SAMPLES_PER_SECOND,
            metrics.LR,
        ],
    }
    charts = [_curve(key, section) for section, own in keys.items() for key in own]
    columns = [_column("metrics", key) for key in (*keys["Losses"], *keys["Speed"][:3])]
    return {
        **_search(_filter({metrics.KIND: "run"}), "attributes.start_time"),
        **_page(_charts(charts), list(keys), columns, is_open="System metrics"),
        "groupBy": None,
    }


def _search(text: str, order: str) -> dict[str, Any]:
    return {
        "searchFilter": text,
        "orderByKey": order,
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
    }


def _page(
    charts: list[dict[str, Any]], sections: Sequence[str], columns: Sequence[str], is_open: str = ""
) -> dict[str, Any]:
    folded = [name for name in _FOLDED if name != is_open]
    parts = [*((name, True) for name in (*sections, *filter(None, [is_open]))), *((name, False) for name in folded)]
    size = {"columns": 3, "cardHeight": CARD_HEIGHT}
    return {
        "selectedColumns": list(columns),
        "compareRunCharts": charts,
        "compareRunSections": [
            {"uuid": _uuid(name), "name": name, "display": display, **size, "isReordered": True, "isGenerated": False}
            for name, display in parts
        ],
        "isAccordionReordered": True,
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "autoRefreshEnabled": True,
    }


def _charts(cards: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cards as MLflow keeps them, each with a name of its own."""
    return [
        {
            **{key: value for key, value in card.items() if key != "section"},
            "uuid": f"card-{number}",
            "metricSectionId": _uuid(card["section"]),
            "runsCountToCompare": RUNS_IN_CHARTS,
            "deleted": False,
            "isGenerated": False,
        }
        for number, card in enumerate(cards)
    ]


def _curve(key: str, section: str) -> dict[str, Any]:
    """A chart of a metric over the epochs, since steps of different batch sizes cannot be compared; bars for one that
    has a single value."""
    if key == metrics.SAMPLES_PER_SECOND_OVERALL:
        return {"type": "BAR", "section": section, "metricKey": key}
    return _line(key, section, metrics.VALIDATION_EPOCH if key.startswith("val/") else metrics.EPOCH)


def _line(key: str, section: str, over: str) -> dict[str, Any]:
    """A chart of a metric over another one that comes with it."""
    card: dict[str, Any] = {
        "type": "LINE",
        "section": section,
        "metricKey": metrics.mlflow_key(key),
        "xAxisKey": "metric",
        "selectedXAxisMetricKey": over,
        "useGlobalXaxisKey": False,
    }
    # on a linear scale, one loss that diverges would press all others flat
    scales = {"scaleType": "log" if key.endswith("loss") else "linear", "xAxisScaleType": "linear"}
    # what MLflow fills in for a card that was made by hand
    fixed = {"lineSmoothness": 0, "useGlobalLineSmoothing": True, "ignoreOutliers": False, "range": {}}
    return {**card, **scales, **fixed, "yAxisKey": "metric", "yAxisExpressions": []}


def _metric(key: str) -> dict[str, str]:
    return {"key": key, "type": "METRIC"}


def _column(kind: str, key: str) -> str:
    """A column as MLflow's pages name it."""
    return f"{kind}.`{key}`"


def _filter(tags: Mapping[str, str]) -> str:
    """MLflow's search for runs with these tags."""
    return " AND ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())


def _uuid(section: str) -> str:
    return f"section-{section.lower().replace(' ', '-')}"


def _envelope(name: str, time_ms: int, state: Mapping[str, Any]) -> str:
    packed = base64.b64encode(zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 9)).decode()
    return json.dumps({"name": name[:200], "createdAt": time_ms, "updatedAt": time_ms, "state": f"deflate;{packed}"})


def _experiments(address: str) -> dict[str, set[str]]:
    """The keys of the tags of each experiment, by its id."""
    wanted = {"max_results": MOST_EXPERIMENTS, "order_by": ["last_update_time DESC"]}
    answer = _ask(address, "experiments/search", wanted)
    return {
        each["experiment_id"]: {tag["key"] for tag in each.get("tags", [])} for each in answer.get("experiments", [])
    }


def _newest_run(address: str, kind: str, experiments: Sequence[str]) -> dict[str, str]:
    wanted = {
        "experiment_ids": experiments,
        "filter": f"tags.`{metrics.KIND}` = '{kind}'",
        "order_by": ["attributes.start_time DESC"],
        "max_results": 1,
    }
    runs = _ask(address, "runs/search", wanted).get("runs", []) if experiments else []
    if not runs:
        return {}
    tags = {tag["key"]: tag["value"] for tag in runs[0]["data"].get("tags", [])}
    own = tags.get(metrics.RUN_ID, "")
    view = sweep_view_id(own) if kind == "sweep" else RUNS_VIEW
    info = runs[0]["info"]
    return {"name": f"{tags.get(metrics.NAME, '')}/{own}", "view": view, **info}


def _link_of(address: str, run: Mapping[str, str], experiments: Mapping[str, set[str]]) -> str:
    """To the saved view; to the run's own page where it has none, such as one of an older Paceline."""
    experiment = run["experiment_id"]
    if TAG_PREFIX + run["view"] in experiments[experiment]:
        return view_url(address, experiment, run["view"])
    return run_url(address, experiment, run["run_id"])


def _ask(address: str, path: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    with answered(address, f"api/2.0/mlflow/{path}", TIMEOUT_SECONDS, json.dumps(wanted).encode()) as answer:
        return dict(json.loads(answer.read()))
