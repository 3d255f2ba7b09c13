"""Hosts that die or are cut off during a run. Slow: run with `-m slow`."""

import json
import sqlite3
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.cluster.two_hosts import Running, TwoHosts

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]

EPOCHS = 12
STEPS = EPOCHS * 8
PAUSE = 0.15
"""Seconds of a forward pass, so that there is time to break something in mid-run."""


def given(cluster: TwoHosts, name: str, pause: float, *more: str) -> list[str]:
    """Arguments of a run; in float64, so that other numbers of workers can be compared."""
    places = f"storage.path={cluster.home}/{name}", f"tracking.uri=sqlite:///{cluster.home}/{name}.db"
    task = f"task={{path: 'slow_task:SlowTask', args: {{pause: {pause}}}}}"
    own = f"name={name}", f"trainer.epochs={EPOCHS}", "checkpoint.every_n_steps=4", "trainer.precision=64-true", task
    return ["over.yaml", "--json", *own, *places, *more]


def start(cluster: TwoHosts, name: str, *more: str) -> Running:
    return cluster.start_paceline("train", *given(cluster, name, PAUSE, *more), "--address", cluster.address)


def undisturbed(cluster: TwoHosts) -> dict[str, Any]:
    """The same run in two workers on one host, without breaking anything."""
    done = cluster.paceline("train", *given(cluster, "undisturbed", 0.0, "scaling.placement=pack"))
    return result_of(done)


def result_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def checkpoints(cluster: TwoHosts, name: str) -> list[Path]:
    return list((cluster.home / name).glob(f"{name}/*/checkpoints/step-*/MANIFEST.json"))


def points(cluster: TwoHosts, name: str, key: str) -> list[tuple[int, float]]:
    """Step and value of each point that MLflow has of a metric."""
    with sqlite3.connect(cluster.home / f"{name}.db") as database:
        rows: Sequence[Any] = database.execute("select step, value from metrics where key = ? order by step", (key,))
        return [(int(step), float(value)) for step, value in rows]


def tag(cluster: TwoHosts, name: str, key: str) -> str:
    with sqlite3.connect(cluster.home / f"{name}.db") as database:
        return str(database.execute("select value from tags where key = ?", (key,)).fetchone()[0])


def same_losses(cluster: TwoHosts, name: str) -> None:
    """Each step has been recorded once, and has the loss of the undisturbed run."""
    mine, expected = points(cluster, name, "train/loss"), points(cluster, "undisturbed", "train/loss")
    assert [step for step, _ in mine] == [step for step, _ in expected] == list(range(1, STEPS + 1))
    assert [loss for _, loss in mine] == pytest.approx([loss for _, loss in expected], abs=1e-9)


@pytest.fixture(scope="module")
def expected(two_hosts: TwoHosts) -> dict[str, Any]:
    return undisturbed(two_hosts)


def test_an_elastic_run_continues_on_the_host_that_is_left(two_hosts: TwoHosts, expected: dict[str, Any]) -> None:
    own = "scaling.num_workers=[1, 2]", "scaling.placement=spread", "scaling.cpus_per_worker=2"  # all that a host has
    going = start(two_hosts, "elastic", *own)
    going.until(lambda: len(checkpoints(two_hosts, "elastic")) >= 2)
    try:
        two_hosts.kill_node(two_hosts.hosts[1])
        result = result_of(going.ended(600))
    finally:
        two_hosts.start_node(two_hosts.hosts[1])
        two_hosts.until_complete()
    assert result["status"] == "finished"
    assert result["metrics"]["val/loss"] == pytest.approx(expected["metrics"]["val/loss"], abs=1e-9)
    same_losses(two_hosts, "elastic")
    assert result["cost"]["gap"] < 0.01
    both, alone = tag(two_hosts, "elastic", "paceline.ranks").splitlines()  # the hosts have one name
    assert (both.partition(": ")[2], alone.partition(": ")[2]) == ("0 1", "0")


def test_a_run_of_fixed_size_waits_for_the_host_to_return(two_hosts: TwoHosts, expected: dict[str, Any]) -> None:
    going = start(two_hosts, "fixed")
    going.until(lambda: len(checkpoints(two_hosts, "fixed")) >= 2)
    two_hosts.kill_node(two_hosts.hosts[1])
    two_hosts.start_node(two_hosts.hosts[1])
    result = result_of(going.ended(600))
    assert result["status"] == "finished"
    assert result["weights_sha256"] == expected["weights_sha256"]
    same_losses(two_hosts, "fixed")


def test_a_host_that_is_announced_to_go_costs_no_failure(two_hosts: TwoHosts, expected: dict[str, Any]) -> None:
    own = "scaling.max_failures=0", "checkpoint.every_n_steps=1000"  # nothing is saved but for the notice
    going = start(two_hosts, "spot", *own, f"task.args.pause={4 * PAUSE}")
    going.until(lambda: len(points_so_far(two_hosts, "spot")) >= 3)
    two_hosts.announce_the_end_of(two_hosts.hosts[1], 25)
    going.until(lambda: checkpoints(two_hosts, "spot"))
    time.sleep(5)
    before = len(points_so_far(two_hosts, "spot"))
    saved = max(int(file.parent.name.removeprefix("step-")) for file in checkpoints(two_hosts, "spot"))
    two_hosts.kill_node(two_hosts.hosts[1])
    two_hosts.start_node(two_hosts.hosts[1])
    result = result_of(going.ended(600))
    assert before < STEPS
    assert result["weights_sha256"] == expected["weights_sha256"]
    assert tag(two_hosts, "spot", "paceline.preemptions") == "1"
    same_losses(two_hosts, "spot")
    assert saved >= before - 1  # at most a step and the one that was under way are computed again


def test_a_cut_cable_ends_in_a_recovery(two_hosts: TwoHosts, expected: dict[str, Any]) -> None:
    going = start(two_hosts, "cut", "parallel.timeout_seconds=15", "scaling.max_failures=5")
    going.until(lambda: len(checkpoints(two_hosts, "cut")) >= 2)
    two_hosts.hosts[1].cut()
    try:
        time.sleep(2)  # what was on its way
        before = len(points_so_far(two_hosts, "cut"))
        time.sleep(25)  # more than the time-out
        assert len(points_so_far(two_hosts, "cut")) == before < STEPS
    finally:
        two_hosts.hosts[1].join()
    result = result_of(going.ended(600))
    assert result["weights_sha256"] == expected["weights_sha256"]
    same_losses(two_hosts, "cut")


def points_so_far(cluster: TwoHosts, name: str) -> list[str]:
    journals = (cluster.home / name).glob(f"{name}/*/tracking/journal.jsonl")
    return [line for journal in journals for line in journal.read_text().splitlines() if '"train/loss"' in line]
