"""A recorder and a real MLflow server, with a proxy between them that refuses, stalls and drops."""

import socket
import time
from pathlib import Path

import pytest

from paceline.errors import EnvironmentFault
from paceline.tracking.mlflow_probe import probe
from paceline.tracking.mlflow_uploader import MlflowUploader
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.sync import sync
from support.golden import Golden
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.recording import MakeRecord, artifacts_of, client_of, points, runs_of, steps_of, until


@pytest.mark.parametrize(
    ("faults", "times"),
    [
        # a run and its experiment that were created in spite of it are found: no second try
        (dict.fromkeys(("experiments/create", "runs/create"), "drop"), 1),
        (dict.fromkeys(("log-batch", "runs/update", "artifacts"), "drop"), 2),
        (dict.fromkeys(("experiments/create", "runs/create", "log-batch", "runs/update", "artifacts"), 503), 2),
        ({"log-batch": "refuse"}, 2),
        ({"log-batch": 401}, 2),
        ({"log-batch": "delay"}, 2),
    ],
    ids=["drop a creation", "drop", "503", "refuse", "401", "delay"],
)
def test_everything_arrives_exactly_once(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord, faults: dict[str, str | int], times: int
) -> None:
    for path, fault in faults.items():
        proxy.order(fault, path, 2)
    about = record(proxy.uri, params={"lr": 0.1}, artifacts={"config.yaml": "name: a"})
    recorder = RunRecorder(tmp_path / "run", about)
    recorder.start_uploading()
    for start in range(1, 41, 10):
        before = len(proxy.requests)
        recorder.append(points(start, start + 10))
        until(lambda before=before: len(proxy.requests) > before)  # type: ignore[misc]
    until(lambda: proxy.hits)
    recorder.append(points(41, 51))  # another request
    report = recorder.close("FINISHED")

    assert [sum(path in hit for hit in proxy.hits) for path in faults] == [times] * len(faults)
    assert (report.unsent, report.error) == (0, None)
    assert runs_of(about) == [report.run_id]
    assert steps_of(proxy.uri, report.run_id) == list(range(1, 51))
    run = client_of(proxy.uri).get_run(str(report.run_id))
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "0.1"})
    assert artifacts_of(proxy.uri, report.run_id) == {"config.yaml", "loss_curve.png"}


def test_a_create_that_was_repeated_on_the_way_leaves_one_run(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a user may want that for other programs
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    proxy.order("drop", "runs/create", 1)
    about = record(proxy.uri)
    report = RunRecorder(tmp_path / "run", about).close("FINISHED")
    assert sum("runs/create" in request for request in proxy.requests) == 2
    assert runs_of(about) == [report.run_id]


def test_a_server_that_never_answers_does_not_hold_up_the_end(
    tmp_path: Path, proxy: FaultyProxy, server_uri: str, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.order("sleep", "", 1000)
    recorder = RunRecorder(tmp_path / "run", record(proxy.uri))
    recorder.append(points(1, 11))
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # `sync` waits for the thread that was given up
        report = recorder.close("FINISHED", timeout_seconds=300)  # the test itself would be given up before
    assert report.unsent == 13  # the points, the picture, the note and the status

    later = sync(tmp_path / "run", server_uri)
    assert (later.unsent, later.error) == (0, None)
    assert steps_of(server_uri, later.run_id) == list(range(1, 11))
    assert client_of(server_uri).get_run(str(later.run_id)).info.status == "FINISHED"


# Asked before anything starts


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "credentials-refused"), (404, "not-mlflow"), (503, "mlflow-not-answering"), (200, "not-mlflow")],
)
def test_a_server_that_answers_something_else_is_an_error_with_a_code(
    proxy: FaultyProxy, status: int, code: str, golden: Golden
) -> None:
    probe(proxy.uri)
    proxy.order(status, "/health", 1)  # a 200 with something else than MLflow's answer
    with pytest.raises(EnvironmentFault) as caught:
        probe(proxy.uri)
    assert (caught.value.code, caught.value.fields["uri"]) == (code, proxy.uri)
    golden(str(caught.value).replace(proxy.uri, "<server>"))


def test_a_dead_port_and_a_silent_one_are_noticed_in_time_without_naming_the_secret(golden: Golden) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(EnvironmentFault) as caught:
        probe(f"http://user:canary-S3cr3t@127.0.0.1:{port}")
    assert caught.value.code == "mlflow-not-answering"
    assert caught.value.fields["uri"] == f"http://***@127.0.0.1:{port}"
    assert "canary" not in str(caught.value)
    golden(str(caught.value).replace(str(port), "<port>"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(EnvironmentFault) as caught:
            probe(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.5)
        assert caught.value.code == "mlflow-not-answering"
        assert 0.4 < time.monotonic() - began < 60


def test_a_quiet_run_sends_no_requests(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[object] = []
    upload = MlflowUploader._upload
    monkeypatch.setattr(MlflowUploader, "_upload", lambda self: (upload(self), rounds.append(self)))
    recorder = RunRecorder(tmp_path / "run", record(proxy.uri))
    recorder.append(points(1, 2))
    recorder.start_uploading()
    until(lambda: recorder.report().run_id is not None and not recorder.report().unsent)
    before, sent = len(rounds), len(proxy.requests)
    until(lambda: len(rounds) >= before + 4)
    assert len(proxy.requests) == sent
    recorder.close("FINISHED")
