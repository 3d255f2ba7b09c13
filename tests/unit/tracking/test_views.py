"""Saved views: the tags that MLflow is given, and the links that open them."""

import base64
import json
import random
import zlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest

from paceline.tracking.metrics import axis_metric
from paceline.tracking.mlflow_connection import Connection
from paceline.tracking.mlflow_views import (
    TAG_LENGTH,
    TAG_PREFIX,
    ViewAxis,
    review_url,
    run_views,
    sweep_view_id,
    sweep_views,
)
from paceline.tracking.tracking_uri import view_url
from support.tracking.recording import DEAD, MakeRecord
from support.tracking.stories import BATCH, LR, RULE, SWEEP, story


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
    assert envelope["name"].endswith(f"mnist {SWEEP}")
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
    _, state = opened(run_views())
    assert state["searchFilter"] == "tags.`paceline.kind` = 'run'"
    over = {card["metricKey"]: card["selectedXAxisMetricKey"] for card in cards(state, "LINE")}
    assert {"train/loss", "val/loss", "val/accuracy", "samples_per_second", "peak_memory_bytes"} <= over.keys()
    assert {key for key, axis in over.items() if axis != "epoch"} == {"val/loss", "val/accuracy"}
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
    tags = sweep_views(story(ViewAxis(odd, True), ViewAxis(odd + "2", False), objectives=((odd, "max"),), name=odd))
    envelope, state = opened(tags)
    assert envelope["name"].endswith(f"{odd} {SWEEP}")
    told = json.dumps([state["selectedColumns"], state["orderByKey"], state["compareRunCharts"]], ensure_ascii=False)
    assert not set("'$<>") & set(told)
    assert all(column.count("`") == 2 for column in [*state["selectedColumns"], state["orderByKey"]])


def test_a_view_fits_the_tag_however_many_axes_there_are() -> None:
    rng = random.Random(0)
    axes = [ViewAxis("".join(rng.choices("abcdefghijklmnopqrstuvwxyz.", k=200)), True) for _ in range(100)]
    _, state = opened(sweep_views(story(*axes)))
    assert 0 < len(cards(state, "PARALLEL")[0]["selectedMetrics"]) <= 9


def test_the_same_story_makes_the_same_tag() -> None:
    assert sweep_views(story(LR, RULE)) == sweep_views(story(LR, RULE))
    assert list(sweep_views(story(LR, RULE))) == list(sweep_views(story(BATCH))) == [TAG_PREFIX + sweep_view_id(SWEEP)]
    assert run_views() == run_views()
    assert sweep_view_id("a/b c?&#") == "paceline-sweep-a-b-c---"


# Given to MLflow


def store_that_refuses(code: str) -> Mock:
    """MLflow's client, which refuses to change an experiment with a code."""
    methods = ["get_experiment_by_name", "get_experiment", "set_experiment_tag"]
    store, error = Mock(spec=methods), RuntimeError("not you")
    error.error_code = code  # type: ignore[attr-defined]
    store.get_experiment_by_name.return_value = SimpleNamespace(experiment_id="1", lifecycle_stage="active")
    store.get_experiment.return_value = SimpleNamespace(tags={})
    store.set_experiment_tag.side_effect = error
    return store


def test_who_may_not_change_the_experiment_records_runs_all_the_same(record: MakeRecord) -> None:
    store, about = store_that_refuses("PERMISSION_DENIED"), record(DEAD, views=run_views())
    connection = Connection(store)
    connection.set_views(about)
    connection.set_views(about)
    assert [call.args[1] for call in store.set_experiment_tag.call_args_list] == list(run_views())


def test_a_server_that_fails_is_asked_again(record: MakeRecord) -> None:
    store = store_that_refuses("INTERNAL_ERROR")
    with pytest.raises(RuntimeError):
        Connection(store).set_views(record(DEAD, views=run_views()))
    store.get_experiment_by_name.side_effect = ConnectionError
    with pytest.raises(ConnectionError):
        Connection(store).set_views(record(DEAD, views=run_views()))


def test_a_link_holds_the_view_and_no_credentials() -> None:
    link = view_url("https://me:canary@host:8080/prefix/", "7", "paceline-runs")
    assert link.startswith("https://host:8080/prefix/#/experiments/7/runs?")
    query = {"viewStateShareKey": ["paceline-runs"], "compareRunsMode": ["CHART"], "workflowType": ["machine_learning"]}
    assert parse_qs(urlsplit(link).fragment.partition("?")[2]) == query
    assert view_url("sqlite:////a/mlflow.db", "7", "v").startswith("http://127.0.0.1:5000/#/experiments/7/runs?")
    assert review_url("sqlite:////a/mlflow.db", None, "v") is None
