"""Saved views in a real MLflow store: set once, served to its page, and linked from `paceline ui`."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from paceline.tracking.mlflow_connection import shared
from paceline.tracking.mlflow_server import ui
from paceline.tracking.mlflow_views import RUNS_VIEW, TAG_PREFIX, newest, run_views, sweep_view_id, sweep_views
from paceline.tracking.run_record import RunRecord, sweep_tags
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.tracking_uri import run_url, view_url
from support.tracking.recording import DEAD, MakeRecord, client_of
from support.tracking.stories import BATCH, LR, RULE, SWEEP, story

LATER = 5_000_000_000_000
"""When the newest runs of the shared server began."""


def closed(folder: Path, about: RunRecord) -> tuple[str, str]:
    """Record a run; MLflow's ids of its experiment and of itself."""
    report = RunRecorder(folder, about).close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    return str(report.experiment_id), str(report.run_id)


def test_a_view_is_set_once(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    sent: list[str] = []
    inner = MlflowClient.set_experiment_tag

    def noted(client: Any, experiment_id: str, key: str, value: Any) -> None:
        sent.append(key)
        inner(client, experiment_id, key, value)

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", noted)
    first = {**sweep_views(story(LR)), **run_views()}
    for _ in range(2):
        closed(tmp_path / "run", record(sqlite_uri, views=first))
        assert sorted(sent) == sorted(first)
        shared(sqlite_uri).forget()  # as another process would begin
    experiment_id, _ = closed(tmp_path / "run", record(sqlite_uri, views=sweep_views(story(BATCH))))
    assert sent[2:] == [TAG_PREFIX + sweep_view_id(SWEEP)]
    tags = client_of(sqlite_uri).get_experiment(experiment_id).tags
    assert tags[sent[2]] == sweep_views(story(BATCH))[sent[2]]
    assert RunRecord.load(tmp_path / "run").views == sweep_views(story(BATCH))


def test_a_view_that_is_refused_does_not_hold_up_the_run(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    views = {TAG_PREFIX + "x" * 300: "no key may be so long", **run_views()}
    experiment_id, _ = closed(tmp_path, record(sqlite_uri, views=views))
    tags = client_of(sqlite_uri).get_experiment(experiment_id).tags
    assert set(tags) & set(views) == set(run_views())


def test_the_newest_runs_are_found_with_the_views_that_the_server_serves(
    tmp_path: Path, server_uri: str, record: MakeRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    views = sweep_views(story(LR, RULE))
    sweep = record(server_uri, run_id=SWEEP, tags=sweep_tags(SWEEP), views=views, start_time_ms=LATER)
    older = record(server_uri, run_id="older", start_time_ms=LATER - 5)
    plain = record(server_uri, run_id="plain", views=run_views(), start_time_ms=LATER + 5)
    (experiment_id, _), *_ = [closed(tmp_path / about.run_id, about) for about in (sweep, older, plain)]
    query = f"{server_uri}/api/2.0/mlflow/experiments/get?experiment_id={experiment_id}"
    with urlopen(Request(query), timeout=60) as got:
        served = {tag["key"]: tag["value"] for tag in json.load(got)["experiment"]["tags"]}
    assert served.items() >= views.items()

    address = server_uri.replace("http://", "http://me:canary@")
    links = [view_url(server_uri, experiment_id, view) for view in (sweep_view_id(SWEEP), RUNS_VIEW)]
    names = [f"sweep mnist-cnn/{SWEEP}", "run mnist-cnn/plain"]
    assert newest(address) == list(zip(names, links, strict=True))
    assert ui(address) == 0
    printed = capsys.readouterr().out
    assert server_uri.removeprefix("http://") in printed
    assert [link for link in re.findall(r"http\S+", printed) if "viewState" in link] == links
    assert "canary" not in printed

    without_view = record(server_uri, experiment="without a view", start_time_ms=LATER + 9)
    experiment_id, run_id = closed(tmp_path / "without", without_view)
    found = dict(newest(server_uri))
    assert found[f"run mnist-cnn/{without_view.run_id}"] == run_url(server_uri, experiment_id, run_id)


def test_a_server_that_does_not_answer_has_no_links() -> None:
    assert newest(DEAD) == []
