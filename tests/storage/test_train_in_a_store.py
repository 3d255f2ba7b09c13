"""Runs in an object store: killed anywhere, they go on here or elsewhere, and come to what they would have come to."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from paceline.engine.manifest import MANIFEST
from paceline.storage.remote import RemoteFolder
from paceline.tracking.points import Point
from storage.launching import NAME, STEPS, Training
from storage.relay import Relay

Result = Callable[[], dict[str, Any]]
DETERMINED = ("train/loss", "val/loss", "val/accuracy", "lr", "epoch")


def run_of(remote: RemoteFolder) -> RemoteFolder:
    (run_id,) = (remote / NAME).folders()
    return remote / NAME / run_id


def whole_steps(remote: RemoteFolder) -> list[int]:
    """The checkpoints that count."""
    files = (run_of(remote) / "checkpoints").files()
    return sorted(int(path.split("/")[0].removeprefix("step-")) for path in files if path.endswith(MANIFEST))


def points_in(remote: RemoteFolder) -> list[Point]:
    """The points of the journal that the store has."""
    data = (run_of(remote) / "tracking").read("journal.jsonl")
    entries = [json.loads(line) for line in (data or b"").splitlines()]
    return [Point.from_json(entry) for entry in entries if entry["kind"] == "point"]


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


def test_a_run_is_kept_in_the_store(training: Training, remote: RemoteFolder, undisturbed: Result) -> None:
    result = training.result()
    assert complaints(remote, result, undisturbed()) == []
    assert result["checkpoint"] == f"{run_of(remote).address}/checkpoints/step-40"
    files = set(run_of(remote).files())
    assert {"tracking/record.json", "tracking/outcome.json", "tracking/artifacts/config.yaml"} <= files
    assert not [path for path in files if "/." in path or path.startswith(".")]
    assert (remote / NAME).read(".lease.json") is None


MOMENTS = [
    ("PUT .*/run.json", 1),
    ("PUT .*/tracking/journal.jsonl", 1),
    ("PUT .*/step-16/model.safetensors", 1),
    ("PUT .*/step-24/MANIFEST.json", 1),
    ("POST .*delete", 1),
    ("PUT .*/tracking/outcome.json", 1),
]
"""When the command is killed: while this request is on its way."""


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_killed_again_and_again_it_comes_to_the_same(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result, elsewhere: bool
) -> None:
    """Once at each moment, one after the other; each time it goes on with, or without, the working copy."""
    for pattern, _ in MOMENTS:
        held = relay.hold(pattern)
        training.start()
        training.until(held.is_set)
        training.kill()
        relay.let_go()
        if elsewhere:
            training.forget()
    result = training.result()
    assert complaints(remote, result, undisturbed()) == []
    assert "step 16" in training.told() or "resum" in training.told()
