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
    assert f"`paceline sync {result['checkpoint'].partition('/checkpoints')[0]}` sends the rest" in training.told()


MOMENTS = (
    "PUT .*/run.json",
    "PUT .*/tracking/journal.jsonl",
    "PUT .*/step-16/model.safetensors",
    "PUT .*/step-24/MANIFEST.json",
    "POST .*delete",
    "PUT .*/tracking/outcome.json",
)
"""When the command is killed: while this request is on its way."""
HERE, ELSEWHERE = False, True


def kill_at(training: Training, relay: Relay, pattern: str) -> None:
    """Give the command, and kill it while a request is on its way."""
    held = relay.hold(pattern)
    training.start()
    training.until(held.is_set)
    training.kill()
    relay.let_go()


@pytest.mark.parametrize(
    "moments",
    [
        [(MOMENTS[2], ELSEWHERE), (MOMENTS[3], HERE), (MOMENTS[5], ELSEWHERE)],
        pytest.param([(moment, HERE) for moment in MOMENTS], marks=pytest.mark.slow),
        pytest.param([(moment, ELSEWHERE) for moment in MOMENTS], marks=pytest.mark.slow),
    ],
    ids=["here and elsewhere", "here", "elsewhere"],
)
def test_killed_again_and_again_it_comes_to_the_same(
    training: Training,
    remote: RemoteFolder,
    relay: Relay,
    undisturbed: Result,
    moments: list[tuple[str, bool]],
) -> None:
    """Once at each moment, one after the other; each time it goes on with, or without, the working copy."""
    for pattern, leaves in moments:
        kill_at(training, relay, pattern)
        if leaves:
            training.forget()
    result = training.result()
    assert complaints(remote, result, undisturbed()) == []
    assert "going on from step 8" in training.told()
    assert "going on from step 40" in training.told()


@pytest.mark.slow
def test_what_did_not_get_into_the_store_counts_on_its_machine(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    kill_at(training, relay, "PUT .*/step-16/MANIFEST.json")
    assert whole_steps(remote) == [8]
    result = training.result()
    assert "going on from step 16" in training.told()
    assert complaints(remote, result, undisturbed()) == []


def test_a_machine_that_others_have_gone_on_after_takes_what_they_have_done(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    """It has points and a checkpoint that the store has not; so has, by now, the other one."""
    first = training.cache
    kill_at(training, relay, "PUT .*/step-16/MANIFEST.json")
    training.cache = first.with_name("cache of another machine")
    kill_at(training, relay, "PUT .*/step-32/MANIFEST.json")
    training.cache = first
    points = {point for point in points_in(remote) if point.key in DETERMINED}
    result = training.result()
    assert training.told().count("going on from step 24") == 1
    assert complaints(remote, result, undisturbed()) == []
    assert points <= set(points_in(remote))


def test_a_store_that_goes_away_is_done_without_until_it_comes_back(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    training.hurry()
    training.wait_before(20)
    training.wait_before(34)
    training.start()
    training.until(training.stands)
    training.until(lambda: whole_steps(remote) == [8, 16])
    relay.leave()
    (training.folder / "wait-20").unlink()
    training.until(lambda: "the checkpoint of step 24 is not in its store" in training.told())
    relay.come()
    training.go_on()
    assert training.end() == 0, training.told()
    assert "the store does not answer" in training.told()
    assert complaints(remote, training.printed(), undisturbed()) in ([], ["the checkpoints [16, 40] are there"])


def test_a_store_that_is_away_at_the_end_is_told(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    training.hurry()
    training.wait_before(36)
    training.start()
    training.until(training.stands)
    training.until(lambda: whole_steps(remote) == [24, 32])
    relay.leave()
    training.go_on()
    assert training.end() == 1
    assert "training got to step 40, but its state could not be saved in its store" in training.told()
    assert "the same command on this machine goes on" in training.told()
    relay.come()
    result = training.result()
    assert "going on from step 40" in training.told()
    assert complaints(remote, result, undisturbed()) == []


@pytest.mark.slow
def test_only_what_is_needed_is_brought(training: Training, remote: RemoteFolder, relay: Relay) -> None:
    kill_at(training, relay, "PUT .*/step-40/MANIFEST.json")
    training.forget()
    relay.forget()
    training.result()
    brought = relay.seen("GET .*/checkpoints/")
    assert {each.split("checkpoints/")[1].split("/")[0] for each in brought} == {"step-32", "step-40"}
    assert [each for each in brought if "step-40" in each and "MANIFEST" not in each] == []
    assert len(relay.seen("GET .*/step-32/model.safetensors")) == 1
    assert len(relay.seen("GET .*/tracking/journal.jsonl")) == 1


@pytest.mark.slow
def test_a_flipped_byte_in_the_newest_means_the_one_before(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    kill_at(training, relay, "PUT .*/step-32/MANIFEST.json")
    place = run_of(remote) / "checkpoints" / "step-24"
    data = bytearray(place.read("model.safetensors") or b"")
    data[-2] ^= 4
    place.write("model.safetensors", bytes(data))
    training.forget()
    result = training.result()
    assert "checkpoint step-24 is broken and was set aside: model.safetensors" in training.told()
    assert "going on from step 16" in training.told()
    assert complaints(remote, result, undisturbed()) == []


def test_two_of_one_name_do_not_go_on_at_once(training: Training, remote: RemoteFolder) -> None:
    training.wait_before(4)
    training.start()
    training.until(training.stands)
    second = Training(training._context, training.folder.with_name("second"), training.storage, training._variables)
    second.start()
    assert second.end() == 3
    assert "is going on in s3://" in second.told()
    training.go_on()
    assert training.end() == 0, training.told()
    assert len((remote / NAME).folders()) == 1


@pytest.mark.slow
def test_another_config_is_refused_or_forked(training: Training, remote: RemoteFolder, relay: Relay) -> None:
    kill_at(training, relay, "PUT .*/step-24/MANIFEST.json")
    training.forget()
    training.start("optimizer.lr=0.06")
    assert training.end() == 2
    assert "has 0.05, this config has 0.06" in training.told()
    training.result("optimizer.lr=0.06", "--fork")
    assert len((remote / NAME).folders()) == 2
    assert training.told().count("going on from step 16") == 1


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("s3://no-such-bucket/runs", "there is no such bucket"),
        ("s3://bucket/runs?endpoint_override=127.0.0.1:9", "the store does not answer"),
    ],
)
def test_a_store_that_cannot_be_used_is_told_and_nothing_is_started(
    training: Training, storage: str, words: str
) -> None:
    training.storage = storage
    training.start()
    assert training.end() == 3
    assert words in training.told()
    assert "importing torch" not in training.told()
    assert not training.cache.exists()


@pytest.mark.slow
def test_an_interrupted_run_has_saved_its_state_there(
    training: Training, remote: RemoteFolder, undisturbed: Result
) -> None:
    training.wait_before(12)
    training.start()
    training.until(training.stands)
    training.interrupt()
    training.go_on()
    assert training.end() == 130
    assert whole_steps(remote) == [8, 12]
    assert json.loads(run_of(remote).read("run.json") or b"")["status"] == "interrupted"
    training.forget()
    result = training.result()
    assert complaints(remote, result, undisturbed()) == []


def test_a_dry_run_asks_nobody(training: Training, relay: Relay) -> None:
    training.start("--dry-run")
    assert training.end() == 0
    assert relay.seen() == []
