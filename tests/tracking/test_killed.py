"""Training, MLflow's server and what sends to it killed at random moments: MLflow ends with each point once.

Here the process that trains is the one that the command starts; with workers of its own: test_killed_on_ray.py.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.tracking import metrics
from paceline.tracking.journal import Journal
from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder, sync
from paceline.tracking.server import free_port
from tracking import killing
from tracking.killing import DETERMINED, STEPS, InMlflow, complaints, moments, play, read_mlflow, scene, undisturbed

IN_PROCESS = ("scaling.num_workers=0", "scaling.use_gpu=false")
MOMENTS = 5
VICTIMS = ("driver", "server", "shipper")
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 7))]
"""Thirty moments in all."""


@pytest.fixture(scope="module")
def whole(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Point]]:
    """The training that nothing happens to."""
    result, points = undisturbed(tmp_path_factory.mktemp("whole") / "run", prepared_database, *IN_PROCESS)
    assert sorted(point.step for point in points if point.key == metrics.TRAIN_LOSS) == list(range(1, STEPS + 1))
    assert {point.key for point in points} >= set(DETERMINED)
    return result, points


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_dies_mlflow_has_each_point_once(
    tmp_path: Path, prepared_database: Path, whole: tuple[dict[str, Any], list[Point]], seed: int
) -> None:
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    port = free_port(15_300 + 40 * own)
    with scene(tmp_path, prepared_database, port, *IN_PROCESS) as (training, server, proxy):
        server.start()  # it comes up while the training does: away at the start
        result = play(moments(seed, MOMENTS, VICTIMS), training, server, proxy)
        assert complaints(training.recorded(), read_mlflow(server.uri), whole[1]) == []
        assert result["weights_sha256"] == whole[0]["weights_sha256"]


def test_the_moments_are_those_of_their_seed_and_hit_everybody() -> None:
    assert moments(1, 5, VICTIMS) == moments(1, 5, VICTIMS)
    thirty = [moment for seed in range(1, 7) for moment in moments(seed, MOMENTS, VICTIMS)]
    assert len(set(thirty)) == 30
    assert {moment.fault for moment in thirty} == set(killing.FAULTS)
    assert {moment.victim for moment in thirty} == set(VICTIMS)


# Whether the comparison sees what it is there for


TAKEN = [Point(key, 1.0 / step, step, 1000 + step) for step in range(1, 6) for key in (metrics.TRAIN_LOSS, "speed")]
GOOD = InMlflow(["Default", killing.NAME], ["FINISHED"], TAKEN)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda good: good, None),
        (lambda good: replace(good, points=[*TAKEN, TAKEN[2]]), "MLflow has train/loss at step 2 2 times"),
        (
            lambda good: replace(good, points=[*TAKEN, replace(TAKEN[2], timestamp_ms=9)]),
            "MLflow has train/loss at step 2 2 times",
        ),
        (lambda good: replace(good, points=TAKEN[:-1]), "MLflow lacks Point(key='speed', value=0.2, step=5"),
        (lambda good: replace(good, points=[replace(TAKEN[0], value=2.0), *TAKEN[1:]]), "MLflow alone has"),
        (lambda good: replace(good, points=[replace(TAKEN[0], timestamp_ms=2), *TAKEN[1:]]), "MLflow alone has"),
        (lambda good: replace(good, statuses=["FINISHED", "RUNNING"]), "runs ['FINISHED', 'RUNNING']"),
        (lambda good: replace(good, statuses=["KILLED"]), "runs ['KILLED']"),
        (lambda good: replace(good, experiments=["Default", killing.NAME, "stray"]), "experiments"),
    ],
)
def test_what_is_wrong_in_mlflow_is_seen(change: Callable[[InMlflow], InMlflow], complaint: str | None) -> None:
    found = complaints(TAKEN, change(GOOD), TAKEN)
    assert (found == []) if complaint is None else any(each.startswith(complaint) for each in found)


def test_what_the_journal_has_lost_or_doubled_is_seen() -> None:
    lost = [point for point in TAKEN if point.step != 3]
    assert complaints(lost, replace(GOOD, points=lost), TAKEN) == [
        "('train/loss', 3) is None rather than 0.3333333333333333"
    ]
    doubled = [*TAKEN, replace(TAKEN[0], timestamp_ms=5)]
    assert "journal has train/loss at step 1 2 times" in complaints(doubled, GOOD, TAKEN)


def test_a_recorder_that_takes_the_time_anew_at_each_replay_is_seen(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted mistake: what is sent once more, after its answer was lost, becomes a second point."""
    about = RunRecord("run", killing.NAME, sqlite_uri, killing.NAME)
    recorder = Recorder(tmp_path / "run", about)
    recorder.append(TAKEN)
    assert recorder.close("FINISHED").unsent == 0
    journal = [point for point in recorder.history() if point.key != metrics.LAG_SECONDS]
    (tmp_path / "run" / "shipped.json").unlink()
    read = Point.from_json
    with monkeypatch.context() as planted:
        planted.setattr(Point, "from_json", lambda content: replace(read(content), timestamp_ms=7))
        sync(tmp_path / "run")
    found = complaints(journal, _without_lag(read_mlflow(sqlite_uri)), TAKEN)
    assert sum("MLflow has" in each and "2 times" in each for each in found) == len(TAKEN)


def test_a_recorder_that_skips_what_it_could_not_send_is_seen(
    tmp_path: Path, sqlite_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted mistake: the place up to which all was sent moves on before the answer comes."""
    recorder = Recorder(tmp_path / "run", RunRecord("run", killing.NAME, sqlite_uri, killing.NAME))
    recorder.append(TAKEN[:4])
    read = Journal.read
    with monkeypatch.context() as planted:
        planted.setattr(
            Journal, "read", lambda self, start=0, stop=None: (e for e in read(self, start, stop) if e.sequence != 2)
        )
        recorder.append(TAKEN[4:])
        assert recorder.close("FINISHED").unsent == 0
    journal = [point for point in recorder.history() if point.key != metrics.LAG_SECONDS]
    assert journal == TAKEN
    found = complaints(journal, _without_lag(read_mlflow(sqlite_uri)), TAKEN)
    assert found == [f"MLflow lacks {TAKEN[1]}"]


def _without_lag(found: InMlflow) -> InMlflow:
    """The points here were taken in 1970, and have waited since."""
    return replace(found, points=[point for point in found.points if point.key != metrics.LAG_SECONDS])
