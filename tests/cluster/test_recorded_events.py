"""Events that belong to the record: they become tags, and no watcher is shown them."""

import json
from pathlib import Path

import pytest

from paceline.cluster.desk import Desk
from paceline.tracking import metrics
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.record import RunRecord


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """One whose server is not there."""
    return Desk(tmp_path, RunRecord("r", "n", "http://127.0.0.1:9", "e"))


def tags(folder: Path) -> dict[str, str]:
    """What the journal has, the newest value of each."""
    found: dict[str, str] = {}
    for entry in Journal(folder / JOURNAL_FILE).read():
        if entry.kind == "tags":
            found |= entry.content["tags"]
    return found


def test_the_newest_stamp_is_the_runs_tag(desk: Desk, tmp_path: Path) -> None:
    for steps in (0, 40):
        desk.event("stamp", {"device": "cpu", "measured_steps": steps, "gpu_mhz": None})
    stamp = json.loads(tags(tmp_path)[metrics.SPEED_STAMP])
    assert stamp == {"device": "cpu", "measured_steps": 40, "gpu_mhz": None}
    assert desk.view(0).events == []


def test_each_straggler_is_a_line_of_the_runs_tag(desk: Desk, tmp_path: Path) -> None:
    for rank in (3, 1):
        desk.event("warning", {"message": f"rank {rank} is slow, look at it"})
        desk.event("straggler", {"rank": rank, "text": f"rank {rank} is slow"})
    assert tags(tmp_path)[metrics.STRAGGLER] == "rank 3 is slow\nrank 1 is slow"
    assert [kind for kind, _ in desk.view(0).events] == ["warning", "warning"]
    assert desk.close("FINISHED", None, 0.1)["straggler"] == "rank 3 is slow\nrank 1 is slow"
