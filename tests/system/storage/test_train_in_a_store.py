"""Runs in an object store: killed anywhere, they are resumed here or elsewhere, and end as they would have ended."""

import json
from typing import Any

import pytest

from paceline.storage.remote_folder import RemoteFolder
from support.storage.relay import Relay
from support.storage.runs import DETERMINED, complaints, kill_at, points_in, run_of, whole_steps
from support.storage.training import HURRIED, NAME, Training

Result = dict[str, Any]


def test_a_run_is_kept_in_the_store(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    training.start("--dry-run")
    assert training.end() == 0
    assert relay.seen() == []
    result = training.run()
    assert complaints(remote, result, undisturbed) == []
    assert result["checkpoint"] == f"{run_of(remote).address}/checkpoints/step-40"
    files = set(run_of(remote).files())
    assert {"tracking/record.json", "tracking/outcome.json", "tracking/artifacts/config.yaml"} <= files
    assert not [path for path in files if "/." in path or path.startswith(".")]
    assert (remote / NAME).read(".lease.json") is None
    assert f"paceline sync {run_of(remote).address}`" in training.told()


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


@pytest.mark.parametrize(
    "moments",
    [
        [(MOMENTS[2], ELSEWHERE), (MOMENTS[3], HERE), (MOMENTS[5], ELSEWHERE)],
        pytest.param([(moment, HERE) for moment in MOMENTS], marks=pytest.mark.slow),
        pytest.param([(moment, ELSEWHERE) for moment in MOMENTS], marks=pytest.mark.slow),
    ],
    ids=["here and elsewhere", "here", "elsewhere"],
)
def test_a_run_killed_again_and_again_ends_as_if_undisturbed(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result, moments: list[tuple[str, bool]]
) -> None:
    """Once at each moment, one after the other; each time it is resumed with, or without, the working copy."""
    for pattern, leaves in moments:
        kill_at(training, relay, pattern)
        if leaves:
            training.forget()
    assert complaints(remote, training.run(), undisturbed) == []
    assert training.resumed[0] == 8
    # the outcome is in the working copy before it is in the store: then there is nothing to resume, only to record
    assert (training.resumed[-1] == 40) == leaves


def test_a_machine_resumes_from_what_others_have_done_meanwhile(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    """It has points and a checkpoint that the store has not; so has, by now, the other one."""
    first = training.cache
    kill_at(training, relay, "PUT .*/step-16/MANIFEST.json")
    training.cache = first.with_name("cache of another machine")
    kill_at(training, relay, "PUT .*/step-32/MANIFEST.json")
    training.cache = first
    points = {point for point in points_in(remote) if point.key in DETERMINED}
    result = training.run()
    assert training.resumed.count(24) == 1
    assert complaints(remote, result, undisturbed) == []
    assert points <= set(points_in(remote))


def test_training_continues_while_the_store_is_away(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    training.settings = HURRIED
    training.start_and_wait_before(20, 34)
    training.until(lambda: whole_steps(remote) == [8, 16])
    relay.leave()
    training.go_on(20)
    training.until(lambda: training.events("warning"))
    relay.come()
    training.go_on()
    assert complaints(remote, training.result(), undisturbed) in ([], ["the checkpoints [16, 40] are there"])


@pytest.mark.slow
def test_a_store_that_is_away_at_the_end_is_reported(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    training.settings = HURRIED
    training.start_and_wait_before(36)
    training.until(lambda: whole_steps(remote) == [24, 32])
    relay.leave()
    training.go_on()
    assert training.end() == 1
    assert training.error["code"] == "checkpoint-lost"
    relay.come()
    result = training.run()
    assert training.resumed == [40]
    assert complaints(remote, result, undisturbed) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_flipped", "brought"), [(False, [24]), (True, [16, 24])], ids=["whole", "with a flipped byte"]
)
def test_only_the_checkpoint_that_is_resumed_from_is_brought_and_the_one_before_where_it_is_broken(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result, is_flipped: bool, brought: list[int]
) -> None:
    kill_at(training, relay, "PUT .*/step-32/MANIFEST.json")
    if is_flipped:
        place = run_of(remote) / "checkpoints" / "step-24"
        data = bytearray(place.read("model.safetensors") or b"")
        data[-2] ^= 4
        place.write("model.safetensors", bytes(data))
    training.forget()
    relay.forget()
    result = training.run()
    assert training.resumed == [brought[0]]
    weights = [each.split("checkpoints/")[1] for each in relay.seen("GET .*/model.safetensors")]
    assert sorted(weights) == [f"step-{step}/model.safetensors" for step in brought]
    assert len(relay.seen("GET .*/tracking/journal.jsonl")) == 1
    assert complaints(remote, result, undisturbed) == []


def test_two_runs_of_one_name_are_not_at_work_at_once(training: Training, remote: RemoteFolder) -> None:
    training.start_and_wait_before(4)
    second = Training(training.folder.with_name("second"), training.storage, training.variables)
    second.start()
    assert second.end() == 3
    assert second.error["code"] == "run-in-use"
    training.go_on()
    training.result()
    assert len((remote / NAME).folders()) == 1


@pytest.mark.slow
def test_another_config_is_refused_or_forked(training: Training, remote: RemoteFolder, relay: Relay) -> None:
    kill_at(training, relay, "PUT .*/step-24/MANIFEST.json")
    training.forget()
    training.start("optimizer.lr=0.06")
    assert training.end() == 2
    assert training.error["keys"] == ["optimizer.lr"]
    training.run("optimizer.lr=0.06", "--fork")
    assert len((remote / NAME).folders()) == 2
    assert training.resumed == [16]


@pytest.mark.slow
def test_a_run_starts_from_the_weights_of_another_in_the_store(training: Training, remote: RemoteFolder) -> None:
    base = training.run("trainer.epochs=4")
    training.forget()
    loaded = []
    for weights in (NAME, base["checkpoint"]):
        tuned = training.run("name=tuned", "--new", "--init-from", weights)
        content = json.loads((remote / "tuned" / tuned["run_id"]).read("run.json") or b"{}")
        loaded.append((tuned["weights_sha256"], content["config"]["model"]["weights"]))
    assert [name for _, name in loaded] == [f"{NAME}/{base['run_id']}", base["checkpoint"]]
    assert len({sha for sha, _ in loaded}) == 1
    training.start("name=tuned", "--new", "--init-from", "nowhere")
    assert training.end() == 2
    assert training.error["keys"] == ["model.weights"]


@pytest.mark.slow
def test_a_finished_run_is_extended_elsewhere(
    training: Training, remote: RemoteFolder, relay: Relay, undisturbed: Result
) -> None:
    first = training.run("trainer.epochs=4")
    training.forget()
    training.start("--extend", "trainer.epochs=4")
    assert training.end() == 2
    assert training.error["keys"] == ["trainer.epochs"]
    extended = training.run("--extend")
    assert extended["weights_sha256"] == undisturbed["weights_sha256"] != first["weights_sha256"]
    assert training.resumed == [first["steps"]]
    contents = [json.loads((remote / NAME / run).read("run.json") or b"{}") for run in (remote / NAME).folders()]
    assert [each.get("extended_from") for each in contents] == [None, first["run_id"]]


@pytest.mark.parametrize(
    ("storage", "code"),
    [
        ("s3://no-such-bucket/runs", "no-such-bucket"),
        ("s3://bucket/runs?endpoint_override=127.0.0.1:9", "store-silent"),
    ],
)
def test_a_store_that_cannot_be_used_is_reported_and_nothing_is_started(
    training: Training, storage: str, code: str
) -> None:
    training.storage = storage
    training.start()
    assert training.end() == 3
    assert training.error["code"] == code
    assert training.events("stage") == []
    assert not training.cache.exists()


@pytest.mark.slow
def test_an_interrupted_run_has_saved_its_state_there(
    training: Training, remote: RemoteFolder, undisturbed: Result
) -> None:
    training.start_and_wait_before(12)
    training.interrupt()
    training.go_on()
    assert training.end() == 130
    assert whole_steps(remote) == [8, 12]
    assert json.loads(run_of(remote).read("run.json") or b"")["status"] == "interrupted"
    training.forget()
    assert complaints(remote, training.run(), undisturbed) == []
