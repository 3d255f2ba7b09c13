"""DistContext that resume from a store: rank 0 chooses, each machine brings it, however long that takes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.errors import EnvironmentFault
from support.ranks import end_ranks, run_ranks
from support.toys import points, toy_config


class FolderStore:
    """A store that is a folder, and slow. Each rank works in a folder of its own, as on several machines."""

    def __init__(self, there: Path, here: Path, fetch_seconds: float = 0.0, put_seconds: float = 0.0) -> None:
        self.there, self.here = there, here
        self.fetch_seconds, self.put_seconds = fetch_seconds, put_seconds
        self.fetched: list[int] = []

    def place_of(self, step: int) -> str:
        return f"there/step-{step}"

    def put(self, checkpoint: Path, is_recorded: Callable[[], bool], is_last: bool = False) -> None:
        if not is_recorded():
            raise EnvironmentFault("not recorded", "mlflow-offline")
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


def part(
    ranks: DistContext, folder: Path, stop_at: int | None, save_every: int = 100, **seconds: float
) -> dict[str, Any]:
    """Train until asked to stop, or to the end, with a collective time-out of one second."""
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), dist.group.WORLD)
    config = toy_config(
        data__path=lambda: points(103, 31, noisy=True),
        scaling__num_workers=ranks.world_size,
        parallel__timeout_seconds=1,
        trainer__epochs=4,
        checkpoint__every_n_steps=save_every,
    )
    there = folder / "there"
    there.mkdir(exist_ok=True)
    here = folder / f"machine-{ranks.rank}-{stop_at}"
    store = FolderStore(there, here, **seconds)
    reporter = MemoryReporter(stop_at_step=stop_at)
    trainer = build_trainer(config, ranks, reporter, here, store=store)
    start = trainer.state.position.step
    outcome = trainer.fit()
    told = [details["path"] for kind, details in reporter.events if kind in ("checkpoint", "resumed")]
    return {"from": start, "to": outcome.step, "sha": outcome.weights_sha256, "fetched": store.fetched, "told": told}


def test_all_ranks_fetch_the_checkpoint_of_rank_0(tmp_path: Path) -> None:
    whole = run_ranks(part, 2, _made(tmp_path / "whole"), None)
    stopped = run_ranks(part, 2, _made(tmp_path / "parts"), 2)[0]["to"]
    assert stopped < whole[0]["to"]
    # longer than a collective operation may take
    resumed = run_ranks(part, 2, tmp_path / "parts", None, fetch_seconds=2.0)
    assert [each["from"] for each in resumed] == [stopped, stopped]
    assert [each["fetched"] for each in resumed] == [[stopped, stopped], [stopped]]
    assert resumed[0]["told"][0] == f"there/step-{stopped}"
    assert {each["sha"] for each in resumed} == {whole[0]["sha"]}


def test_the_others_wait_while_rank_0_stores_a_checkpoint(tmp_path: Path) -> None:
    whole = run_ranks(part, 2, _made(tmp_path / "whole"), None)
    # a save waits for the one before it, and the end for the last one: both longer than a collective operation may take
    slow = run_ranks(part, 2, _made(tmp_path / "slow"), None, save_every=20, put_seconds=2.0)
    assert [each["to"] for each in slow] == [whole[0]["to"]] * 2
    assert {each["sha"] for each in slow} == {whole[0]["sha"]}
    assert (tmp_path / "slow" / "there" / f"step-{whole[0]['to']}").is_dir()


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


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
