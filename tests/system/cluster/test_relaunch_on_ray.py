"""Several launches in one Ray that stays up, as in a notebook. Slow: run with `-m slow`."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline import load_config, train
from paceline.cluster.listener import RunProgress, SilentListener
from support.cluster.job_cluster import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]

TASK = """
import os
from pathlib import Path

from own_code import OwnTask


class Traced(OwnTask):
    def __init__(self, model, trace, **options):
        super().__init__(model, **options)
        self.trace = Path(trace)

    def forward(self, batch):
        with self.trace.open("a") as file:
            file.write(f"{os.getpid()}\\n")
        return super().forward(batch)
"""


class Left(Exception):
    """The driver went away in the middle."""


class Leaving(SilentListener):
    """Leaves once a checkpoint has been saved."""

    def __init__(self) -> None:
        self.saved = False

    def event(self, kind: str, details: Any) -> None:
        self.saved = self.saved or kind == "checkpoint"

    def progress(self, progress: RunProgress) -> None:
        if self.saved:
            raise Left


def config(home: Path, **changes: Any) -> Any:
    (home / "traced.py").write_text(TASK)
    tree = {
        "name": "shared",
        "model": {"path": "own_code:net"},
        "task": {"path": "traced:Traced", "args": {"trace": str(home / "trace"), "pause": 0.1}},
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"epochs": 10, "log_every_n_steps": 1},
        "scaling": {"num_workers": 2, "cpus_per_worker": 0.5},
        "checkpoint": {"every_n_steps": 4},
    }
    (home / "shared.yaml").write_text(json.dumps(tree))
    return load_config(home / "shared.yaml", {key.replace("__", "."): value for key, value in changes.items()})


def test_abandoned_workers_do_not_disturb_the_next_launch(home: Path) -> None:
    with pytest.raises(Left):
        train(config(home), listener=Leaving())
    left = {int(line) for line in (home / "trace").read_text().split()}
    assert len(left) == 2
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in left), 10)
    again = train(config(home))
    assert again.status == "finished"
    assert again.steps == 60
    assert again.history.index.tolist() == list(range(1, 61))
    (run,) = (home / "runs" / "shared").glob("*/run.json")
    assert run.parent.name == again.run_id
    entries = [json.loads(line)["n"] for line in (run.parent / "tracking" / "journal.jsonl").read_text().splitlines()]
    assert entries == list(range(1, len(entries) + 1)), "two coordinators wrote at the same time"
