"""What a recorder keeps in memory depends on its metrics, not on how long a run is, nor on how many runs there were."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.tracking.recording import DEAD

MEGABYTE = 2**20
PROGRAM = """
import json, os, sys
from pathlib import Path

from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder

KEYS = "train/loss", "val/loss", "lr", "samples_per_second"


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(number, points, ships):
    record = RunRecord(f"run-{number}", f"run {number}", URI, "memory", picture=False)
    recorder = RunRecorder(FOLDER / str(number), record)
    if ships:
        recorder.start_uploading()
    for first in range(0, points, 1000):
        steps = range(first, first + 1000)
        recorder.append([MetricPoint(KEYS[step % 4], 1.0 / (step + 1), step, step) for step in steps])
    before = resident_bytes()
    if ships:
        report = recorder.close("FINISHED")
        assert report.unsent == 0, report
    else:
        recorder.conclude("FINISHED")
        recorder.abandon()
    return before, resident_bytes()


FOLDER, URI = Path(sys.argv[1]), sys.argv[2]
"""


def measured(folder: Path, code: str, uri: str = DEAD) -> list[int]:
    """What the code prints, at the end of the program, in a process of its own."""
    command = [sys.executable, "-c", PROGRAM + code, str(folder), uri]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    values: list[int] = json.loads(done.stdout.splitlines()[-1])
    return values


def test_the_end_of_a_long_run_takes_no_memory(tmp_path: Path) -> None:
    before, after = measured(tmp_path, 'run("warm", 1000, False); print(json.dumps(run("long", 150_000, False)))')
    assert after - before < 10 * MEGABYTE  # its points together would take 35


@pytest.mark.slow
@pytest.mark.parametrize("ships", [False, True])
def test_many_runs_take_the_memory_of_a_few(tmp_path: Path, request: pytest.FixtureRequest, ships: bool) -> None:
    code = f"ends = [run(number, 1000, {ships})[1] for number in range(120)]; print(json.dumps([ends[40], ends[-1]]))"
    few, all_of_them = measured(tmp_path, code, request.getfixturevalue("server_uri") if ships else DEAD)
    assert all_of_them - few < 10 * MEGABYTE
