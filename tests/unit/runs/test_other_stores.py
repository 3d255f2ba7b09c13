"""`paceline ui` shows one store: newer runs of the folder in another one are reported."""

from pathlib import Path

import pytest

from paceline.cluster.run_folder import RunFolder
from paceline.runs.elsewhere import recorded_elsewhere
from paceline.tracking.run_record import RunRecord
from support.golden import Golden

HERE, THERE = "sqlite:////data/mlflow.db", "http://127.0.0.1:5999"


def ran(storage: Path, number: int, uri: str) -> None:
    """A run that was started at such a time."""
    folder = RunFolder(storage / "digits" / f"20260101-00000{number}-abcdef")
    folder.write(status="finished", config={"name": "digits"})
    folder.tracking.mkdir(parents=True)
    RunRecord(folder.run_id, "digits", uri, "digits", start_time_ms=number).save(folder.tracking)


def counted(storage: Path, uri: str) -> list[tuple[int, bool]]:
    """Number of runs, and whether they are in the other store."""
    return [(int(line.split()[0]), THERE in line) for line in recorded_elsewhere(storage, uri)]


def test_newer_runs_of_another_store_are_counted(tmp_path: Path, golden: Golden) -> None:
    ran(tmp_path, 1, THERE)
    ran(tmp_path, 2, HERE)
    assert counted(tmp_path, HERE) == []
    for number in (1, 2):
        ran(tmp_path, 2 + number, THERE)
        assert counted(tmp_path, HERE) == [(number, True)]
    assert counted(tmp_path, THERE.replace("//", "//me:canary@") + "/") == []
    assert counted(tmp_path, "http://other") == [(3, True), (1, False)]
    assert counted(tmp_path / "nowhere", HERE) == []
    golden("\n".join([*recorded_elsewhere(tmp_path, HERE), *recorded_elsewhere(tmp_path, "http://other")]))


@pytest.mark.parametrize("content", ["{broken", "[]"])
def test_a_damaged_record_is_skipped(tmp_path: Path, content: str) -> None:
    ran(tmp_path, 1, THERE)
    next(tmp_path.rglob("record.json")).write_text(content)
    assert recorded_elsewhere(tmp_path, HERE) == []
