"""The links that open saved views: of a run or a sweep, and of the newest ones on a server, for `paceline ui`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.tracking import metrics
from paceline.tracking.mlflow_views import RUNS_VIEW, TAG_PREFIX, sweep_view_id
from paceline.tracking.store_probe import answered
from paceline.tracking.tracking_uri import run_url, view_url

MOST_EXPERIMENTS = 1000
"""Experiments that are looked through, the newest first."""
TIMEOUT_SECONDS = 10.0
"""Of one request."""


def review_url(uri: str, experiment_id: str | None, view_id: str) -> str | None:
    """`view_url`; None while the experiment is not in MLflow."""
    return view_url(uri, experiment_id, view_id) if experiment_id else None


def newest(address: str) -> list[tuple[str, str]]:
    """What there is to review on an MLflow server: the newest sweep and the newest run outside of one, each with its
    link. Nothing where there are none, or where the server does not tell.

    Args:
        address: where the server answers; credentials in it are used, and are not in the links.
    """
    from http.client import HTTPException  # 20 ms, which a run need not wait for

    try:
        experiments = _experiments(address)
        found = [(kind, _newest_run(address, kind, list(experiments))) for kind in ("sweep", "run")]
    except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError):
        return []  # whoever reviews finds them on the server's page as well
    return [(f"{kind} {run['name']}", _link(address, run, experiments)) for kind, run in found if run]


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


def _link(address: str, run: Mapping[str, str], experiments: Mapping[str, set[str]]) -> str:
    """To the saved view; to the run's own page where it has none, such as one of an older Paceline."""
    experiment = run["experiment_id"]
    if TAG_PREFIX + run["view"] in experiments[experiment]:
        return view_url(address, experiment, run["view"])
    return run_url(address, experiment, run["run_id"])


def _ask(address: str, path: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    with answered(address, f"api/2.0/mlflow/{path}", TIMEOUT_SECONDS, json.dumps(wanted).encode()) as answer:
        return dict(json.loads(answer.read()))
