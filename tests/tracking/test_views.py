"""Saved views: what MLflow is given, what it serves, and the links that open them."""

import base64
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest

from paceline.tracking import remote
from paceline.tracking.connection import Connection, shared
from paceline.tracking.links import newest, review_url
from paceline.tracking.metrics import axis_metric
from paceline.tracking.record import RunRecord, sweep_tags
from paceline.tracking.recorder import Recorder
from paceline.tracking.server import ui
from paceline.tracking.store import run_url, view_url
from paceline.tracking.views import (
    RUNS_VIEW,
    TAG_LENGTH,
    TAG_PREFIX,
    Axis,
    SweepStory,
    run_views,
    sweep_view_id,
    sweep_views,
)

SWEEP = "20260102-030405-abc123"
LR, BATCH, RULE = Axis("optimizer.lr", True, True), Axis("data.batch", True), Axis("optimizer.lr_scaling", False)


def story(*axes: Axis, objectives: Any = (("val/accuracy", "max"),), seeds: int = 1, **changes: Any) -> SweepStory:
    given = {"sweep_id": SWEEP, "name": "mnist", "objectives": objectives, "axes": axes, "seeds": seeds}
    return SweepStory(**{**given, **changes})


def opened(tags: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The one view among tags, as MLflow's page reads it: the envelope, and the state."""
    [(key, value)] = tags.items()
    assert key.startswith(TAG_PREFIX)
    assert len(value) <= TAG_LENGTH
    envelope = json.loads(value)
    assert isinstance(envelope["name"], str)
    assert type(envelope["createdAt"]) is type(envelope["updatedAt"]) is int
    mark, packed = envelope["state"].split(";")
    assert mark == "deflate"
    return envelope, json.loads(zlib.decompress(base64.b64decode(packed)))


def cards(state: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [card for card in state["compareRunCharts"] if card["type"] == kind]


def test_a_sweeps_view_has_all_its_charts() -> None:
    envelope, state = opened(sweep_views(story(BATCH, LR)))
    assert envelope["name"] == f"Sweep mnist {SWEEP}"
    assert envelope["createdAt"] == 1_767_323_045_000
    [parallel] = cards(state, "PARALLEL")
    numbers = [axis_metric("optimizer.lr"), axis_metric("data.batch")]
    assert (parallel["selectedParams"], parallel["selectedMetrics"]) == ([], [*numbers, "val/accuracy"])
    [scatter] = cards(state, "SCATTER")
    assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("samples_per_second_overall", "val/accuracy")
    [contour] = cards(state, "CONTOUR")
    assert [contour[axis]["key"] for axis in ("xaxis", "yaxis", "zaxis")] == [*numbers, "val/accuracy"]
    lines = {card["metricKey"]: card for card in cards(state, "LINE")}
    assert list(lines) == ["train/loss", "val/accuracy", "val/loss"]
    over = {key: (card["xAxisKey"], card["selectedXAxisMetricKey"]) for key, card in lines.items()}
    assert over.pop("train/loss") == ("metric", "epoch")
    assert set(over.values()) == {("metric", "validation_epoch")}
    assert [card["scaleType"] for card in lines.values()] == ["log", "linear", "log"]
    assert state["runsHiddenMode"] == "SHOW_ALL"
    assert state["searchFilter"] == f"tags.`paceline.sweep_id` = '{SWEEP}' AND tags.`paceline.kind` = 'trial'"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`val/accuracy`", False)
    assert state["selectedColumns"] == [
        "tags.`paceline.trial_state`",
        "params.`data.batch`",
        "params.`optimizer.lr`",
        "metrics.`val/accuracy`",
        "metrics.`samples_per_second_overall`",
    ]
    assert state["groupBy"] is None


def test_every_card_is_in_a_section_and_has_a_name_of_its_own() -> None:
    for tags in (sweep_views(story(LR, BATCH, RULE)), run_views()):
        _, state = opened(tags)
        sections = [section["uuid"] for section in state["compareRunSections"]]
        assert len(set(sections)) == len(sections)
        charts = state["compareRunCharts"]
        assert len({card["uuid"] for card in charts}) == len(charts) > 5
        assert {card["metricSectionId"] for card in charts} <= set(sections)


def test_text_axes_are_params_and_seeds_are_grouped() -> None:
    _, state = opened(sweep_views(story(BATCH, RULE, seeds=3)))
    [parallel] = cards(state, "PARALLEL")
    assert parallel["selectedParams"] == ["optimizer.lr_scaling"]
    assert parallel["selectedMetrics"] == [axis_metric("data.batch"), "val/accuracy"]
    assert cards(state, "CONTOUR") == []
    assert len(cards(state, "SCATTER")) == 2
    keys = [{"mode": "param", "groupByData": key} for key in ("data.batch", "optimizer.lr_scaling")]
    assert state["groupBy"] == {"aggregateFunction": "average", "groupByKeys": keys}
    assert state["useGroupedValuesInCharts"] is False
    _, state = opened(sweep_views(story(BATCH, LR, seeds=3)))
    assert state["useGroupedValuesInCharts"] is True


def test_the_second_objective_is_what_the_first_one_costs() -> None:
    _, state = opened(sweep_views(story(LR, objectives=(("val/loss", "min"), ("peak_memory_bytes", "min")))))
    assert [cards(state, "SCATTER")[0][axis]["key"] for axis in ("xaxis", "yaxis")] == ["peak_memory_bytes", "val/loss"]
    assert state["orderByAsc"] is True
    fast = (("val/loss", "min"), ("samples_per_second", "max"))
    _, state = opened(sweep_views(story(LR, objectives=fast)))  # ranked by the speed without the warm-up
    assert cards(state, "SCATTER")[0]["xaxis"]["key"] == "samples_per_second_overall"
    assert [card["metricKey"] for card in cards(state, "BAR")] == ["samples_per_second_overall"]
    _, state = opened(sweep_views(story(LR, objectives=(("seconds", "min"),))))  # which no trial logs
    assert state["orderByKey"] == "metrics.`samples_per_second_overall`"


def test_odd_names_break_neither_the_json_nor_the_search() -> None:
    odd = "a`b'\"</script><script>$ü\n"
    tags = sweep_views(story(Axis(odd, True), Axis(odd + "2", False), objectives=((odd, "max"),), name=odd))
    envelope, state = opened(tags)
    assert envelope["name"] == f"Sweep {odd} {SWEEP}"
    told = json.dumps([state["selectedColumns"], state["orderByKey"], state["compareRunCharts"]], ensure_ascii=False)
    assert not set("'$<>") & set(told)
    assert all(column.count("`") == 2 for column in [*state["selectedColumns"], state["orderByKey"]])


def test_a_view_fits_the_tag_however_many_axes_there_are() -> None:
    import random

    rng = random.Random(0)
    axes = [Axis("".join(rng.choices("abcdefghijklmnopqrstuvwxyz.", k=200)), True) for _ in range(100)]
    _, state = opened(sweep_views(story(*axes)))
    assert 0 < len(cards(state, "PARALLEL")[0]["selectedMetrics"]) <= 9


def test_the_same_story_makes_the_same_tag() -> None:
    assert sweep_views(story(LR, RULE)) == sweep_views(story(LR, RULE))
    assert list(sweep_views(story(LR, RULE))) == list(sweep_views(story(BATCH)))
    assert sweep_views(story(LR))[TAG_PREFIX + sweep_view_id(SWEEP)] != sweep_views(story(BATCH)).popitem()[1]
    assert run_views() == run_views()
    assert sweep_view_id("a/b c?&#") == "paceline-sweep-a-b-c---"


def test_a_plain_runs_view_compares_all_runs() -> None:
    _, state = opened(run_views())
    assert state["searchFilter"] == "tags.`paceline.kind` = 'run'"
    keys = [card["metricKey"] for card in cards(state, "LINE")]
    assert {"train/loss", "val/loss", "val/accuracy", "samples_per_second", "peak_memory_bytes"} <= set(keys)
    assert [card["metricKey"] for card in cards(state, "BAR")] == ["samples_per_second_overall"]
    assert "metrics.`samples_per_second_overall`" in state["selectedColumns"]
    over = {card["metricKey"]: card["selectedXAxisMetricKey"] for card in cards(state, "LINE")}
    validation = {key for key, axis in over.items() if axis == "validation_epoch"}
    assert validation == {"val/loss", "val/accuracy"}
    assert {over[key] for key in set(over) - validation} == {"epoch"}
    shown = {section["name"]: section["display"] for section in state["compareRunSections"]}
    assert shown["System metrics"]


# In MLflow


def tags_of(address: str, experiment_id: str) -> dict[str, str]:
    """What MLflow's page gets of an experiment."""
    with urlopen(Request(f"{address}/api/2.0/mlflow/experiments/get?experiment_id={experiment_id}"), timeout=20) as got:
        return {tag["key"]: tag["value"] for tag in json.load(got)["experiment"].get("tags", [])}


def closed(folder: Path, about: RunRecord) -> str:
    report = Recorder(folder, about).close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    return str(report.experiment_id)


def test_a_server_serves_what_was_written(tmp_path: Path, server_uri: str, record: Callable[..., RunRecord]) -> None:
    views = sweep_views(story(LR, RULE))
    experiment_id = closed(tmp_path, record(server_uri, views=views, tags=sweep_tags(SWEEP)))
    assert {key: value for key, value in tags_of(server_uri, experiment_id).items() if key in views} == views


def test_a_view_is_set_once(
    tmp_path: Path, sqlite_uri: str, record: Callable[..., RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    sent: list[str] = []
    inner = MlflowClient.set_experiment_tag

    def told(client: Any, experiment_id: str, key: str, value: Any) -> None:
        sent.append(key)
        inner(client, experiment_id, key, value)

    monkeypatch.setattr(MlflowClient, "set_experiment_tag", told)
    first = {**sweep_views(story(LR)), **run_views()}
    closed(tmp_path / "run", record(sqlite_uri, views=first))
    assert sorted(sent) == sorted(first)
    shared(sqlite_uri).forget()  # as another process would begin
    closed(tmp_path / "run", record(sqlite_uri, views=first))
    assert len(sent) == 2
    shared(sqlite_uri).forget()
    experiment_id = closed(tmp_path / "run", record(sqlite_uri, views=sweep_views(story(BATCH))))
    assert sent[2:] == [TAG_PREFIX + sweep_view_id(SWEEP)]
    tags = remote.connect(sqlite_uri).get_experiment(experiment_id).tags
    assert tags[sent[2]] == sweep_views(story(BATCH))[sent[2]]
    assert RunRecord.load(tmp_path / "run").views == sweep_views(story(BATCH))


def test_a_view_that_is_refused_keeps_no_run_back(
    tmp_path: Path, sqlite_uri: str, record: Callable[..., RunRecord]
) -> None:
    views = {TAG_PREFIX + "x" * 300: "no key may be so long", **run_views()}
    experiment_id = closed(tmp_path, record(sqlite_uri, views=views))
    assert set(remote.connect(sqlite_uri).get_experiment(experiment_id).tags) & set(views) == set(run_views())


def test_who_may_not_change_the_experiment_records_runs_all_the_same(record: Callable[..., RunRecord]) -> None:
    from mlflow.entities import Experiment
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    asked: list[str] = []

    class Guarded:
        def get_experiment_by_name(self, name: str) -> Experiment:
            return Experiment("1", name, "", "active")

        def get_experiment(self, experiment_id: str) -> Experiment:
            return Experiment("1", "name", "", "active", tags=[])

        def set_experiment_tag(self, experiment_id: str, key: str, value: str) -> None:
            asked.append(key)
            raise MlflowException("not you", error_code=PERMISSION_DENIED)

    connection, about = Connection(Guarded()), record("http://127.0.0.1:9", views=run_views())  # type: ignore[arg-type]
    connection.set_views(about)
    connection.set_views(about)
    assert asked == list(run_views())


def test_a_server_that_is_away_is_asked_again(record: Callable[..., RunRecord]) -> None:
    class Away:
        def get_experiment_by_name(self, name: str) -> Any:
            raise ConnectionError("away")

    with pytest.raises(ConnectionError):
        Connection(Away()).set_views(record("http://127.0.0.1:9", views=run_views()))  # type: ignore[arg-type]


# Links


def test_a_link_holds_the_view_and_no_credentials() -> None:
    link = view_url("https://me:canary@host:8080/prefix/", "7", "paceline-runs")
    assert link.startswith("https://host:8080/prefix/#/experiments/7/runs?")
    query = {"viewStateShareKey": ["paceline-runs"], "compareRunsMode": ["CHART"], "workflowType": ["machine_learning"]}
    assert parse_qs(urlsplit(link).fragment.partition("?")[2]) == query
    assert view_url("sqlite:////a/mlflow.db", "7", "v").startswith("http://127.0.0.1:5000/#/experiments/7/runs?")
    assert review_url("sqlite:////a/mlflow.db", None, "v") is None


def test_the_newest_runs_are_found_with_their_links(
    tmp_path: Path, server_uri: str, record: Callable[..., RunRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    later = 4_000_000_000_000
    sweep = record(server_uri, run_id=SWEEP, tags=sweep_tags(SWEEP), views=sweep_views(story(LR)), start_time_ms=later)
    older = record(server_uri, run_id="older", start_time_ms=later - 5)
    plain = record(server_uri, run_id="plain", views=run_views(), start_time_ms=later + 5)
    experiment_id, *_ = [closed(tmp_path / about.run_id, about) for about in (sweep, older, plain)]
    address = server_uri.replace("http://", "http://me:canary@")
    links = [view_url(server_uri, experiment_id, view) for view in (sweep_view_id(SWEEP), RUNS_VIEW)]
    names = [f"sweep mnist-cnn/{SWEEP}", "run mnist-cnn/plain"]
    assert newest(address) == list(zip(names, links, strict=True))
    assert ui(address) == 0
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.startswith("Review")] == [
        f"Review: {link}  (the newest {name})" for name, link in zip(names, links, strict=True)
    ]
    assert "canary" not in printed


def test_a_run_without_a_view_has_its_own_page(
    tmp_path: Path, server_uri: str, record: Callable[..., RunRecord]
) -> None:
    about = record(server_uri, start_time_ms=5_000_000_000_000)
    report = Recorder(tmp_path, about).close("FINISHED")
    [(name, link)] = [found for found in newest(server_uri) if found[0].startswith("run")]
    assert name == f"run mnist-cnn/{about.run_id}"
    assert link == run_url(server_uri, str(report.experiment_id), str(report.run_id))


def test_what_does_not_answer_has_no_links() -> None:
    assert newest("http://127.0.0.1:9") == []
