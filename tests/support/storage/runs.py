"""Runs in a store, looked at from outside."""

import json
from collections import Counter
from typing import Any

from paceline.engine.manifest import MANIFEST
from paceline.storage.remote_folder import RemoteFolder
from paceline.tracking.metric_points import MetricPoint
from support.storage.relay import Relay
from support.storage.training import NAME, STEPS, Training

DETERMINED = ("train/loss", "val/loss", "val/accuracy", "lr", "epoch")


def run_of(remote: RemoteFolder) -> RemoteFolder:
    (run_id,) = (remote / NAME).folders()
    return remote / NAME / run_id


def whole_steps(remote: RemoteFolder) -> list[int]:
    """The checkpoints that count."""
    files = (run_of(remote) / "checkpoints").files()
    return sorted(int(path.split("/")[0].removeprefix("step-")) for path in files if path.endswith(MANIFEST))


def points_in(remote: RemoteFolder) -> list[MetricPoint]:
    """The points of the journal that the store has."""
    data = (run_of(remote) / "tracking").read("journal.jsonl")
    entries = [json.loads(line) for line in (data or b"").splitlines()]
    return [MetricPoint.from_json(entry) for entry in entries if entry["kind"] == "point"]


def complaints(remote: RemoteFolder, result: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """What is not as it must be in the end."""
    found = []
    if result["weights_sha256"] != expected["weights_sha256"]:
        found.append("the weights are others")
    if len((remote / NAME).folders()) != 1:
        return [*found, f"there are the runs {(remote / NAME).folders()}"]
    if json.loads(run_of(remote).read("run.json") or b"{}").get("status") != "finished":
        found.append("the run is not finished")
    points = Counter((point.key, point.step) for point in points_in(remote) if point.key in DETERMINED)
    found += [f"{place} is there {n} times" for place, n in points.items() if n > 1]
    steps = {step for key, step in points if key == "train/loss"}
    found += [f"there is no loss of step {step}" for step in range(1, STEPS + 1) if step not in steps]
    if whole_steps(remote) != [32, 40]:
        found.append(f"the checkpoints {whole_steps(remote)} are there")
    return found


def kill_at(training: Training, relay: Relay, pattern: str) -> None:
    """Give the command, and kill it while a request is on its way."""
    held = relay.hold(pattern)
    training.start()
    training.until(held.is_set)
    training.kill()
    relay.let_go()
