"""DistContext that resume from a store: rank 0 chooses, each machine brings it, however long that takes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from paceline._compat.torch import set_group_timeout
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.outcome import CheckpointLost
from paceline.engine.reporter import MemoryReporter
from paceline.errors import EnvironmentFault
from support.ranks import end_ranks, run_ranks
from support.toys import points, toy_config


class FolderStore:
    """A store that is a folder, and slow. Each rank works in a folder of its own, as on several machines."""

    def __init__(
        self, there: Path, here: Path, fetch_seconds: float = 0.0, put_seconds: float = 0.0, is_away: bool = False
    ) -> None:
        self.there, self.here, self.is_away = there, here, is_away
        self.fetch_seconds, self.put_seconds = fetch_seconds, put_seconds
        self.fetched: list[int] = []

    def place_of(self, step: int) -> str:
        return f"there/step-{step}"

    def put(self, checkpoint: Path, is_recorded: Callable[[], bool], is_last: bool = False) -> None:
        if not is_recorded():
            raise EnvironmentFault("not recorded", "mlflow-offline")
        if self.is_away:
            raise EnvironmentFault("the store is away", "store-unreachable")
        time.sleep(self.put_seconds)
        shutil.copytree(checkpoint, self.there / checkpoint.name)

    def prune(self, keep: int, protected: Any = ()) -> None:
        pass

    def newest(self, on_broken: Callable[[Path, str], None], is_recorded: Callable[[], bool]) -> Path | None:
        steps = sorted(int(path.name.removeprefix("step-")) for path in self.there.glob("step-*"))
        return self.fetch(steps[-1]) if steps else None

    def fetch(self, step: int) -> Path:
        time.sleep(self.fetch_seconds)
        self.fetched.append(step)
        shutil.copytree(self.there / f"step-{step}", self.here / f"step-{step}", dirs_exist_ok=True)
        return self.here / f"step-{step}"


LIMIT_SECONDS = 4.0
"""Time that a collective operation may take, where the store is slow."""
SLOW_SECONDS = 2 * LIMIT_SECONDS


def part(
    ranks: DistContext, folder: Path, stop_at: int | None = None, limit_seconds: float = 120.0, **store: Any
) -> dict[str, Any]:
    """Train until asked to stop, or to the end, with a checkpoint after 20 of 28 steps."""
    ranks.sum_numbers([1.0])  # the ranks start together: one that is seconds behind would look dead
    set_group_timeout(timedelta(seconds=limit_seconds), dist.group.WORLD)
    config = toy_config(
        data__path=lambda: points(103, 31, noisy=True),
        scaling__num_workers=ranks.world_size,
        parallel__timeout_seconds=limit_seconds,
        trainer__epochs=4,
        checkpoint__every_n_steps=20,
    )
    there = folder / "there"
    there.mkdir(exist_ok=True)
    here = folder / f"machine-{ranks.rank}-{stop_at}"
    remote = FolderStore(there, here, **store)
    reporter = MemoryReporter(stop_at_step=stop_at)
    trainer = build_trainer(config, ranks, reporter, here, store=remote)
    start = trainer.state.position.step
    outcome = trainer.fit()
    told = [details["path"] for kind, details in reporter.events if kind in ("checkpoint", "resumed")]
    return {"from": start, "to": outcome.step, "sha": outcome.weights_sha256, "fetched": remote.fetched, "told": told}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The run that nothing happens to."""
    return run_ranks(part, 2, tmp_path_factory.mktemp("whole"))[0]


def test_all_ranks_fetch_the_checkpoint_of_rank_0(tmp_path: Path, whole: dict[str, Any]) -> None:
    stopped = run_ranks(part, 2, tmp_path, 2)[0]["to"]
    assert stopped < whole["to"]
    resumed = run_ranks(part, 2, tmp_path, limit_seconds=LIMIT_SECONDS, fetch_seconds=SLOW_SECONDS)
    assert [each["from"] for each in resumed] == [stopped, stopped]
    assert [each["fetched"] for each in resumed] == [[stopped, stopped], [stopped]]
    assert resumed[0]["told"][0] == f"there/step-{stopped}"
    assert {each["sha"] for each in resumed} == {whole["sha"]}


def test_the_others_wait_while_rank_0_stores_a_checkpoint(tmp_path: Path, whole: dict[str, Any]) -> None:
    # a save waits for the one before it, and the end for the last one
    slow = run_ranks(part, 2, tmp_path, limit_seconds=LIMIT_SECONDS, put_seconds=SLOW_SECONDS)
    assert [each["to"] for each in slow] == [whole["to"]] * 2
    assert {each["sha"] for each in slow} == {whole["sha"]}
    assert (tmp_path / "there" / f"step-{whole['to']}").is_dir()


def test_a_store_that_stays_away_fails_the_run_and_its_state_is_on_this_machine(tmp_path: Path) -> None:
    first, _ = end_ranks(lost, 2, tmp_path)
    assert first.value == ("checkpoint-lost", 28)
    assert (tmp_path / "machine-0-None" / "step-28" / "MANIFEST.json").is_file()
    assert not list((tmp_path / "there").iterdir())


def lost(ranks: DistContext, folder: Path) -> tuple[str, int] | None:
    try:
        part(ranks, folder, is_away=True)
    except CheckpointLost as error:
        return error.code, error.fields["step"]
    return None


def each(ranks: DistContext) -> str:
    def work() -> str:
        if ranks.rank == 1:
            raise EnvironmentFault("no room", "disk-full")
        return "done"

    return ranks.each(work, 0.5)


def test_a_rank_that_fails_raises_once_all_are_done() -> None:
    first, second = end_ranks(each, 2)
    assert first.value == "done"
    assert "no room" in str(second.error)
