"""The report of a sweep of 200 trials with 1,000 points each is small and takes little memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.runs.finding import FoundRun
from paceline.runs.report.report import report_of
from paceline.sweeps.sweep_folder import claim_sweep
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.tracking.run_record import RunRecord
from support.reports.folders import BEGAN_MS, config, made_sweep, page_of, some_trials, trial

pytestmark = pytest.mark.slow

TRIALS = 200
STEPS = 1000
SIZE_BYTES = 5_000_000
MEMORY_BYTES = 150 * 2**20
"""What the report may take beside what Python and its packages do; the points alone would take twice as much."""
KEYS = ("train/loss", "samples_per_second", "step_seconds")
LRS = [round(0.01 * 1.1**number, 5) for number in range(50)]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> FoundRun:
    """50 learning rates and 2 batch sizes, 2 seeds each."""
    own = config(sweep={"space": {"optimizer.lr": LRS, "data.global_batch_size": [32, 64]}, "seeds": 2})
    claimed = claim_sweep(own, tmp_path_factory.mktemp("runs"), intent="new")
    log = SweepLog(claimed.folder.path)
    for number in range(TRIALS):
        lr, batch, seed = LRS[number // 4], [32, 64][number // 2 % 2], number % 2
        where = {"optimizer.lr": lr, "data.global_batch_size": batch, "seed": seed}
        each = trial(number, 0.5 + 0.003 * (number // 2), **where)
        log.append([trial_entry(each)])
        write(claimed.folder.trials / each.id / "tracking", number)
    log.close()
    claimed.folder.write(status="finished")
    claimed.release()
    return FoundRun("sweep", claimed.folder.path)


def write(folder: Path, number: int) -> None:
    """The record of one trial."""
    RunRecord(f"t{number}", "trial", "http://host:5000", "compare", start_time_ms=BEGAN_MS).save(_made(folder))
    points = [(key, 1 + number / (step + 1), step) for step in range(STEPS) for key in KEYS]
    points += [("val/accuracy", 0.5 + number / 1000, step) for step in range(0, STEPS, 50)]
    lines = [
        f'{{"n":{place},"kind":"point","key":"{key}","value":{value},"step":{step},"timestamp_ms":{BEGAN_MS}}}\n'
        for place, (key, value, step) in enumerate(points, 1)
    ]
    (folder / "journal.jsonl").write_text("".join(lines))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_it_is_small(large: FoundRun) -> None:
    page = page_of(large)
    assert len(report_of(large)) < SIZE_BYTES
    assert page.one(data_others=None).attributes["data-others"] == str(TRIALS // 2 - 1)
    assert page.all("svg", role="img")


MEASURE = """
import resource, sys
from pathlib import Path
import paceline.runs.report.report as report
import paceline.sweeps.results.pictures as pictures
from paceline.runs.finding import FoundRun
pictures.importances = lambda *all: {}  # what scikit-learn takes is not what is looked at
report.report_of(FoundRun("sweep", Path(sys.argv[2])))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report.report_of(FoundRun("sweep", Path(sys.argv[1])))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def test_its_memory_does_not_grow_with_the_points(large: FoundRun, tmp_path: Path) -> None:
    small = made_sweep(tmp_path, some_trials())
    command = [sys.executable, "-c", MEASURE, str(large.folder), str(small.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < MEMORY_BYTES
