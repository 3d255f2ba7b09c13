"""What a trial's worker group could not get recorded comes with how the trial ended, and is recorded then."""

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.exceptions import ActorUnavailableError

from paceline.cluster import outbox
from paceline.cluster.assignment import Assignment, TrialPart
from paceline.cluster.last_words import LastWords
from paceline.engine.ranks import Ranks
from paceline.sweeps import worker
from paceline.sweeps.work import Work
from paceline.tracking import metrics
from paceline.tracking.history import read_points
from paceline.tracking.journal import JOURNAL_FILE
from paceline.tracking.points import Reading
from sweeps.desk_players import Floor, ending, played
from sweeps.played_actor import PlayedActor, answers_at_once

READINGS = [Reading(step, step, {"train/loss": 1.0 / step}) for step in (1, 2, 3)]


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_the_desk_records_it_once(floor: Callable[..., Floor], tmp_path: Path, status: str) -> None:
    sweep = floor(points=1)

    async def away_at_the_end(floor: Floor, work: Work) -> None:
        await floor.desk.metrics(work.trial_id, work.attempt, READINGS[:1])
        words = LastWords(ending(status), READINGS, lost=7)
        await floor.desk.finish(work.trial_id, work.attempt, words.message())

    sweep.trainings["0000"] = [away_at_the_end]

    async def scene() -> None:
        await sweep.run("0000")
        await asyncio.sleep(0)

    played(sweep, scene)
    tracking = tmp_path / "sweep" / "trials" / "0000" / "tracking"
    assert [point.step for point in read_points(tracking, ["train/loss"])] == [1, 2, 3]
    assert f'"{metrics.NOT_RECORDED}":"7 readings' in (tracking / JOURNAL_FILE).read_text()
    if status == "failed":
        assert sweep.desk._books.trials["0000"].metrics["train/loss"] == 1.0 / 3


def test_the_group_gives_it_to_the_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    answers_at_once(monkeypatch)
    monkeypatch.setattr(outbox, "GATHER_SECONDS", 0.01)

    def trains(assignment: Any, ranks: Any, reporter: Any) -> dict[str, Any]:
        reporter.metrics(3, {"train/loss": 0.5})
        return ending()

    monkeypatch.setattr(worker, "run_rank", trains)
    desk = PlayedActor(metrics=ActorUnavailableError("it is being started again", None))
    work = Work(1, "0000", 1, pickle.dumps(TrialPart("{}")), 60.0)
    worker._run(work, Assignment("{}", {}), desk, Ranks.current(torch.device("cpu")))
    [(_, _, message)] = desk.calls("finish")
    words = LastWords.read(message)
    assert words.ending == ending()
    assert [(reading.step, reading.values) for reading in words.unrecorded] == [(3, {"train/loss": 0.5})]
