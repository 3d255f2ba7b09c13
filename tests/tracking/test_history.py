"""The points of runs, read from their journals."""

import math
import time
from pathlib import Path

from paceline.tracking.history import Histories, read_points
from paceline.tracking.journal import Journal
from paceline.tracking.points import Point
from paceline.tracking.recorder import JOURNAL_FILE


def write(folder: Path, points: list[Point]) -> Path:
    journal = Journal(folder / JOURNAL_FILE)
    journal.append([("tags", {"tags": {"a": 'no "kind":"point" of its own'}})])
    journal.append([("point", point.to_json()) for point in points])
    journal.append([("status", {"status": "FINISHED", "time_ms": 1})])
    journal.close()
    return folder


POINTS = [
    Point("train/loss", 2.5, 1, 10),
    Point("val/loss", math.inf, 1, 11),
    Point('odd "key", \\ ü', 1.0, 2, 12),
    Point("train/loss", 2.0, 2, 13),
]


def test_points_come_back_as_they_were_and_nothing_else(tmp_path: Path) -> None:
    folder = write(tmp_path, POINTS)
    assert read_points(folder) == POINTS
    assert read_points(folder, ["train/loss"]) == [POINTS[0], POINTS[3]]
    assert read_points(folder, ['odd "key", \\ ü']) == [POINTS[2]]
    assert read_points(folder, ["loss", "train"]) == []
    assert read_points(tmp_path / "none") == []


def test_a_torn_or_damaged_line_costs_nothing_but_itself(tmp_path: Path) -> None:
    file = write(tmp_path, POINTS) / JOURNAL_FILE
    torn = b'{"n":9,"kind":"point","key":"train/loss","value":9.0,"step":9,"timestamp_ms":9}'
    damaged = b'{"n":8,"kind":"point","key":"train/loss","value":\n{"kind":"point"}\n[1]\n'
    file.write_bytes(file.read_bytes() + damaged + torn)
    assert read_points(tmp_path) == POINTS
    file.write_bytes(file.read_bytes() + b"\n")
    assert [point.step for point in read_points(tmp_path, ["train/loss"])] == [1, 2, 9]


def test_histories_read_each_journal_once_and_only_when_asked(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("one", "two", "none")}
    write(folders["one"], POINTS)
    histories = Histories(folders, ["train/loss"])
    write(folders["two"], POINTS[:1])  # after it was made
    assert [len(histories[name]) for name in histories] == [2, 1, 0]
    (folders["one"] / JOURNAL_FILE).unlink()
    assert len(histories["one"]) == 2
    assert histories.get("another") is None


def test_a_hundred_thousand_points_are_read_in_seconds(tmp_path: Path) -> None:
    write(tmp_path, [Point(key, 0.1, step, step) for step in range(20_000) for key in ("a", "b", "c", "d", "e")])
    start = time.process_time()
    assert len(read_points(tmp_path)) == 100_000
    everything = time.process_time() - start
    start = time.process_time()
    assert len(read_points(tmp_path, ["b"])) == 20_000
    assert everything < 5
    assert time.process_time() - start < everything
