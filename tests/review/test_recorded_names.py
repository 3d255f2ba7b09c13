"""Whatever a run, a sweep and its trials write down has a name that `tracking.metrics` declares."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.tracking import metrics, shipping
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.record import RECORD_FILE
from review.trained_runs import CNN, trained
from sweeps.desk_players import Floor, played, with_rungs

METRICS, _, TAGS = inspect.getsource(metrics).partition("# --- tags")
MADE = ("val/", "axis/", "best/", "rank_seconds/", "trials/", "cost/", metrics.SYSTEM)
"""How the keys begin that functions of the module make, which refuse the names they do not know."""
FREE = (*metrics.FOUND_SIZES, metrics.version_tag(""))
"""How tags begin, or are, that are made of parts."""


def declared(source: str) -> set[str]:
    return set(re.findall(r'^[A-Z0-9_]+ = "(.*[^/])"$', source, re.MULTILINE))


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Kind and key of all that the records below a folder hold."""
    for file in folder.rglob(RECORD_FILE):
        yield from (("tag", key) for key in json.loads(file.read_text())["tags"])
        for entry in Journal(file.with_name(JOURNAL_FILE)).read():
            yield from (("tag", key) for key in entry.content.get("tags", {}))
            if entry.kind == "point":
                yield "metric", entry.content["key"]


def strangers(folder: Path) -> set[tuple[str, str]]:
    """What is declared nowhere."""
    known = {("metric", key) for key in declared(METRICS)} | {("tag", key) for key in declared(TAGS)}
    beginnings = {"metric": MADE, "tag": FREE}
    return {(kind, key) for kind, key in written(folder) if not key.startswith(beginnings[kind])} - known


def test_a_run(tmp_path: Path) -> None:
    trained(tmp_path, "named", **CNN)
    keys = {key for _, key in written(tmp_path)}
    assert {metrics.TRAIN_LOSS, metrics.VAL_LOSS, metrics.COMMAND, metrics.NOTE, metrics.SPEED_STAMP} <= keys
    assert {"cost/core_seconds", "system/cpu_utilization_percentage"} <= keys
    assert strangers(tmp_path) == set()


def test_a_sweep_and_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping.Shipper, "start", lambda shipper: None)
    monkeypatch.setattr(shipping.Shipper, "finish", lambda shipper, timeout_seconds: shipper.report())
    sweep = Floor(tmp_path, points=2)
    sweep.trainings["0001"] = [with_rungs(5)]

    async def scene() -> None:
        for trial in ("0000", "0001"):
            await sweep.run(trial, **{"optimizer.lr": 0.1})

    played(sweep, scene)
    keys = {key for _, key in written(tmp_path)}
    assert {"best/val/accuracy", "trials/finished", "val/accuracy", metrics.TRIAL_STATE, metrics.NOTE} <= keys
    assert strangers(tmp_path) == set()


@pytest.mark.parametrize(("kind", "key"), [("tag", "paceline.new"), ("metric", "speed")])
def test_a_stranger_is_seen(tmp_path: Path, kind: str, key: str) -> None:
    (tmp_path / RECORD_FILE).write_text(json.dumps({"tags": {}}))
    point = {"key": key, "value": 1.0, "step": 1, "timestamp_ms": 1}
    entry = ("point", point) if kind == "metric" else ("tags", {"tags": {key: "x"}})
    Journal(tmp_path / JOURNAL_FILE).append([entry])
    assert strangers(tmp_path) == {(kind, key)}
