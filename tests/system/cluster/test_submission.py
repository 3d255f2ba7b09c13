"""`paceline submit` against a fake of Ray's dashboard: what is sent and refused, and how a log is followed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import job_client, job_log
from paceline.cluster.job_plan import plan_job
from paceline.cluster.submission import follow, submit
from paceline.errors import EnvironmentFault
from support.cluster.job_cluster import wait_until
from support.cluster.job_project import CONFIG, FILE, NET, SECRET, enter_project, paceline_submit
from support.cluster.ray_dashboard import Dashboard
from support.golden import Golden

LOG = "".join(f"line {number} of the log\n" for number in range(100))


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch, project: Path) -> Iterator[Dashboard]:
    """The one that commands find by default."""
    with Dashboard().running() as running:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", running.url)
        yield running


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(job_log, "PAUSES_SECONDS", (0.01,))
    return enter_project(tmp_path, monkeypatch)


def refused(overrides: Sequence[str] = (), **given: Any) -> EnvironmentFault:
    """The error that a submission ends with."""
    with pytest.raises(EnvironmentFault) as caught:
        submit(plan_job(FILE, overrides), **given)
    return caught.value


# What is sent


def test_the_folder_and_the_package_are_sent_once(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "secret.env").write_text("x")
    (project / ".gitignore").write_text("*.env\n")
    dashboard.log = "first\nlast\n"
    assert paceline_submit(FILE, "trainer.epochs=2", "--fork") == 0
    sent = dashboard.submitted
    assert sent["entrypoint"] == f"python -m paceline train {FILE} trainer.epochs=2 --fork"
    assert re.fullmatch(r"own-\d{8}-\d{6}", sent["submission_id"])
    files = dashboard.unpacked(sent["runtime_env"]["working_dir"])
    assert set(files) == {".gitignore", "own_net.py", FILE}
    assert files["own_net.py"].decode() == NET
    (module,) = sent["runtime_env"]["py_modules"]
    package = dashboard.unpacked(module)
    assert {"paceline/__init__.py", "paceline/__main__.py", "paceline/data/base.py"} <= set(package)
    shown = capsys.readouterr()
    assert shown.out == "first\nlast\n"
    assert sent["submission_id"] in shown.err
    (project / "own_net.py").touch()  # another time, the same content
    dashboard.jobs.clear()
    assert paceline_submit(FILE) == 0
    assert sum(request.startswith("PUT") for request in dashboard.requests) == 2


def test_nothing_is_asked_by_a_dry_run_or_with_a_wrong_config(dashboard: Dashboard) -> None:
    assert paceline_submit(FILE, "--dry-run") == 0
    assert paceline_submit(FILE, "storage.path=null") == 2
    assert dashboard.requests == []


def test_a_secret_in_the_config_file_is_neither_sent_in_the_open_nor_shown(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / FILE).write_text(CONFIG.replace('build"}', f'build", args: {{api_key: {SECRET}}}}}'))
    dashboard.log = f"the driver says {SECRET}\nand a token: {SECRET[::-1]}\n"
    assert paceline_submit(FILE) == 0
    assert SECRET.encode() not in dashboard.bodies[0]
    shown = capsys.readouterr()
    assert SECRET not in shown.err + shown.out
    assert SECRET[::-1] not in shown.out


def test_a_second_job_of_the_same_run_is_refused(dashboard: Dashboard, golden: Golden) -> None:
    dashboard.has_job("other", paceline_name="own", paceline_storage="/elsewhere")
    dashboard.has_job("ended", "FAILED", paceline_name="own", paceline_storage="/shared/runs")
    dashboard.has_job("foreign")
    assert paceline_submit(FILE) == 0
    dashboard.has_job("own-20260101-000000", "PENDING", paceline_name="own", paceline_storage="/shared/runs")
    uploads = len(dashboard.packages)
    error = refused(overrides=["trainer.epochs=3"])
    assert (error.code, error.exit_code, error.fields["job_id"]) == ("job-running", 3, "own-20260101-000000")
    golden(str(error).replace(dashboard.url, "<url>"))
    assert len(dashboard.packages) == uploads
    assert len(dashboard.bodies) == 1


GPUS = ("scaling.use_gpu=true", "scaling.num_workers=4")
SMALL: list[dict[str, float]] = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 1.0}]


def test_what_the_cluster_can_never_hold_is_not_sent(dashboard: Dashboard, golden: Golden) -> None:
    dashboard.nodes = SMALL
    error = refused(overrides=GPUS)
    assert (error.code, error.exit_code) == ("cluster-too-small", 3)
    assert (error.fields["workers"], error.fields["nodes"], error.fields["most_workers"]) == (4, 2, 2)
    assert dashboard.packages == {}
    assert dashboard.bodies == []
    golden(str(error).replace(dashboard.url, "<url>"))


@pytest.mark.parametrize(
    ("nodes", "types", "arguments"),
    [
        (SMALL, None, ["scaling.use_gpu=true", "scaling.num_workers=2"]),  # there is room
        ([{"CPU": 8.0}], None, ["scaling.num_workers=4"]),  # auto: on CPU
        (SMALL, None, [*GPUS, "--wait-for-resources", "600"]),
        (SMALL, ["headgroup", "gpu"], GPUS),  # an autoscaler
        (SMALL, [], GPUS),  # nobody tells whether there is one
        (None, None, GPUS),
        ([{"CPU": 1.0}], None, ["scaling.num_workers=0"]),
        (SMALL, None, ["sweep={space: {scaling.num_workers: [1, 2]}}", *GPUS]),
    ],
)
def test_what_may_run_is_left_to_the_job(
    dashboard: Dashboard, nodes: Any, types: list[str] | None, arguments: list[str]
) -> None:
    dashboard.nodes, dashboard.node_types = nodes, types
    assert paceline_submit(FILE, *arguments) == 0
    assert len(dashboard.bodies) == 1


# How a job ends


@pytest.mark.parametrize(
    ("outcome", "code", "status"),
    [
        *((("FAILED", code, None), code, "failed") for code in (1, 2, 3, 4, 130)),
        (("SUCCEEDED", 0, None), 0, "succeeded"),
        (("FAILED", -9, "killed"), 137, "failed"),
        (("FAILED", 137, "killed"), 137, "failed"),
        (("STOPPED", None, None), 130, "stopped"),
        (("FAILED", None, "runtime_env setup failed: no such package"), 3, "failed"),
    ],
)
def test_the_exit_code_is_that_of_the_driver(dashboard: Dashboard, outcome: Any, code: int, status: str) -> None:
    dashboard.outcome = outcome
    end = submit(plan_job(FILE), tell=lambda text: None)
    assert (end.exit_code, end.status) == (code, status)
    assert end.message == (outcome[2] if outcome[1] is None and status == "failed" else "")


def test_the_last_line_about_a_job_says_how_it_ended(dashboard: Dashboard, golden: Golden) -> None:
    outcomes: dict[str, Any] = {
        "ended": ("FAILED", 4, None),
        "killed": ("FAILED", -9, "killed"),
        "stopped": ("STOPPED", None, None),
        "not-started": ("FAILED", None, f"no such package, token={SECRET}"),
    }
    for name, outcome in outcomes.items():
        dashboard.jobs[name] = {"metadata": {}, "outcome": outcome}
        told: list[str] = []
        follow(name, write=told.append, tell=told.append)
        assert SECRET not in told[-1]
        golden(told[-1], name)


def test_a_followed_job_is_shown_from_its_beginning(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.jobs["earlier"] = {"metadata": {}, "outcome": ("FAILED", 4, None)}
    dashboard.log = LOG
    assert paceline_submit("--follow", "earlier") == 4
    assert capsys.readouterr().out == LOG


def test_without_waiting_the_id_is_printed(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.outcome = None
    assert paceline_submit(FILE, "--detach") == 0
    assert capsys.readouterr().out == f"{dashboard.submitted['submission_id']}\n"
    dashboard.jobs.clear()
    assert paceline_submit(FILE, "--detach", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["job_id"]) == ("submitted", dashboard.submitted["submission_id"])


def test_json_has_the_result_of_the_driver(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.log = '{"no": "result"}\nline\n{"status": "finished", "steps": 4}\nlast words\n'
    assert paceline_submit(FILE, "--json") == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["result"] == {"status": "finished", "steps": 4}
    assert (told["status"], told["exit_code"]) == ("succeeded", 0)
    assert "last words" in shown.err
    assert '"steps"' not in shown.err  # once is enough


def test_only_the_last_result_of_a_log_is_the_drivers(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    own, of_the_driver = '{"status": "warm"}', '{"status": "finished"}'
    dashboard.log = f"{own}\n{of_the_driver}\n"
    assert paceline_submit(FILE, "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["result"] == {"status": "finished"}
    assert own in shown.err
    assert of_the_driver not in shown.err
    dashboard.jobs.clear()
    assert paceline_submit(FILE) == 0
    assert capsys.readouterr().out == dashboard.log


# The connection


def test_an_option_goes_before_the_environment(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", dashboard.url)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    error = refused()
    assert (error.code, error.fields["address"]) == ("dashboard-unreachable", "http://127.0.0.1:9")
    assert paceline_submit(FILE, "--address", f"{dashboard.url}/") == 0
    dashboard.jobs.clear()
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    assert paceline_submit(FILE) == 0
    assert os.environ["RAY_ADDRESS"] == dashboard.url


@pytest.mark.parametrize("kind", ["closed", "silent", "other", "head"])
def test_a_missing_dashboard_is_reported_soon(kind: str, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    assert sum(job_client.AT_FIRST) <= 5
    assert job_client.FIND_SECONDS <= 5
    monkeypatch.setattr(job_client, "AT_FIRST", (0.2, 0.2))
    monkeypatch.setattr(job_client, "FIND_SECONDS", 0.5)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if kind != "closed":
            listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        if kind == "other":  # one that hangs up
            listening.settimeout(20)
            threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        error = refused(address=address if kind == "head" else f"http://{address}")
    assert (error.code, error.exit_code) == ("dashboard-unreachable", 3)
    assert str(error.fields["address"]).endswith(address)
    if kind == "closed":
        golden(str(error).replace(address, "<address>"))


def test_a_search_that_is_given_up_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, seen = threading.Event(), []
    searching: list[threading.Thread] = []

    def search(address: str) -> str:
        searching.append(threading.current_thread())
        seen.append(os.environ["RAY_API_SERVER_ADDRESS"])
        answer.wait(60)
        return address

    monkeypatch.setattr("ray.dashboard.utils.get_address_for_submission_client", search)
    monkeypatch.setattr(job_client, "FIND_SECONDS", 0.2)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://before")
    assert refused(address="127.0.0.1:9").code == "dashboard-unreachable"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://after")
    answer.set()
    searching[0].join(60)
    assert (seen, os.environ["RAY_API_SERVER_ADDRESS"]) == (["127.0.0.1:9"], "http://after")


def test_a_token_is_asked_for_and_never_shown(dashboard: Dashboard, project: Path, golden: Golden) -> None:
    dashboard.token = SECRET
    # in processes of their own: Ray reads the token once in each, and a private Ray turns tokens on for good
    command = start_command(dashboard, "--json", RAY_AUTH_MODE="disabled")
    error = json.loads(command.communicate(timeout=120)[0])
    assert (error["code"], error["exit_code"], command.returncode) == ("token-missing", 3, 3)
    golden(error["error"].replace(dashboard.url, "<url>"))
    file = project.parent / "token"
    for token, code in ((SECRET, 0), ("another-0123456789", 3)):
        file.write_text(token)
        command = start_command(dashboard, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(file))
        shown = "".join(command.communicate(timeout=120))
        assert command.returncode == code, shown
        assert token not in shown
        assert "Traceback" not in shown
    assert dashboard.submitted


def test_a_log_that_breaks_off_is_shown_once(dashboard: Dashboard) -> None:
    dashboard.log = LOG + "without an end"
    dashboard.cuts = [1, 7, 8, 333, 1200, 1201]
    dashboard.closes = [40, 900]
    lines: list[str] = []
    assert submit(plan_job(FILE), write=lines.append, tell=lambda text: None).exit_code == 0
    assert "".join(lines) == LOG + "without an end\n"
    assert dashboard.tails == 9
    assert dashboard.cuts == dashboard.closes == []


def test_a_dead_tunnel_is_noticed(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection stays open, and nothing comes."""
    monkeypatch.setattr(job_log, "ASK_SECONDS", 0.05)
    dashboard.log, dashboard.outcome = LOG[:500], None
    told: list[str] = []
    lines: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if dashboard.is_frozen:  # reached again
            dashboard.log, dashboard.outcome, dashboard.is_frozen = LOG, ("SUCCEEDED", 0, None), False

    def write(text: str) -> None:
        lines.append(text)
        dashboard.is_frozen = dashboard.is_frozen or len(lines) == 10

    end = submit(plan_job(FILE), write=write, tell=tell)
    assert end.exit_code == 0
    assert "".join(lines) == LOG
    assert len(told) == 4  # what is sent, the job, that the connection is lost, the end


def test_a_cluster_that_is_away_for_too_long_is_given_up(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(job_log, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(job_log, "PATIENCE_SECONDS", 0.3)
    dashboard.log, dashboard.outcome = "one\n", None

    def write(text: str) -> None:
        dashboard.is_frozen = True

    error = refused(write=write, tell=lambda text: None)
    job = str(error.fields["job_id"])
    assert (error.code, job) == ("connection-lost", dashboard.submitted["submission_id"])
    text = re.sub(r"\(.*\)", "(<reason>)", str(error))
    golden(text.replace(job, "<job>").replace(dashboard.url, "<url>"))


def test_a_cluster_that_forgot_the_job_ends_the_following(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        follow("nothing")
    assert (caught.value.code, caught.value.fields["job_id"]) == ("job-unknown", "nothing")
    monkeypatch.setattr(job_log, "ASK_SECONDS", 0.05)
    dashboard.log, dashboard.outcome = "one\n", None
    assert refused(write=lambda text: dashboard.jobs.clear()).code == "job-unknown"


def test_a_reader_that_is_gone_ends_the_following(dashboard: Dashboard) -> None:
    dashboard.log, dashboard.outcome = "one\n", None

    def write(text: str) -> None:
        raise BrokenPipeError

    told: list[str] = []
    with pytest.raises(BrokenPipeError):
        submit(plan_job(FILE), write=write, tell=told.append)
    assert f"--follow {dashboard.submitted['submission_id']}" in told[-1]


SLOW_CTRL_C = pytest.param(signal.SIGINT, marks=pytest.mark.slow)  # the first signal of those that send two
SLOW_SIGTERM = pytest.param(signal.SIGTERM, marks=pytest.mark.slow)


def signalled(command: "subprocess.Popen[str]", dashboard: Dashboard, *signals: signal.Signals) -> tuple[str, str]:
    """Send signals to a command that follows a job, each once the one before was seen to; its output and errors."""
    try:
        assert command.stdout is not None
        assert command.stdout.readline() == "it goes on\n"
        for number, each in enumerate(signals):
            wait_until(lambda number=number: not number or stops(dashboard), 30)  # type: ignore[misc]
            command.send_signal(each)
        return command.communicate(timeout=60)
    finally:
        command.kill()


def stops(dashboard: Dashboard) -> list[str]:
    """The requests to stop a job."""
    return [request for request in dashboard.requests if request.endswith("/stop") or request.startswith("DELETE")]


@pytest.mark.parametrize("first", [SLOW_CTRL_C, signal.SIGTERM])
def test_a_signal_stops_the_job_and_waits_for_its_end(dashboard: Dashboard, first: signal.Signals) -> None:
    dashboard.log, dashboard.outcome = "it goes on\n", None
    command = start_command(dashboard)
    out, error = signalled(command, dashboard, first)
    job = dashboard.submitted["submission_id"]
    assert (command.returncode, out) == (130, "its state is saved\n")
    assert stops(dashboard) == [f"POST /api/jobs/{job}/stop"]
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("stop_status", "second"),
    [
        *(pytest.param(None, second, marks=pytest.mark.slow) for second in (signal.SIGINT, signal.SIGTERM)),
        (500, signal.SIGINT),
    ],
)
def test_a_second_signal_leaves_the_job(dashboard: Dashboard, stop_status: int | None, second: signal.Signals) -> None:
    dashboard.log, dashboard.outcome, dashboard.stop_status = "it goes on\n", None, stop_status
    command = start_command(dashboard, "--json")
    try:
        wait_until(lambda: bool(dashboard.tails), 60)
        command.send_signal(signal.SIGINT)
        wait_until(lambda: bool(stops(dashboard)), 30)
        command.send_signal(second)
        out, error = command.communicate(timeout=60)
    finally:
        command.kill()
    job = dashboard.submitted["submission_id"]
    told = json.loads(out)
    assert (command.returncode, told["status"], told["exit_code"], told["job_id"]) == (130, "left", 130, job)
    assert stops(dashboard) == [f"POST /api/jobs/{job}/stop"]
    assert f"paceline submit --follow {job} --address {dashboard.url}" in error
    assert f"ray job stop {job} --address {dashboard.url}" in error
    assert ("the job agent is gone" in error) is (stop_status == 500)
    assert "Traceback" not in error


@pytest.mark.parametrize("first", [signal.SIGINT, SLOW_SIGTERM])
def test_a_signal_leaves_a_job_that_is_followed_again(dashboard: Dashboard, first: signal.Signals) -> None:
    dashboard.log, dashboard.outcome = "it goes on\n", None
    dashboard.has_job("earlier")
    arguments = [sys.executable, "-m", "paceline", "submit", "--follow", "earlier", "--address", dashboard.url]
    command = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, error = signalled(command, dashboard, first)
    assert command.returncode == 130
    assert f"paceline submit --follow earlier --address {dashboard.url}" in error
    assert stops(dashboard) == []
    assert "Traceback" not in error


def start_command(dashboard: Dashboard, *options: str, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "paceline", "submit", FILE, "--address", dashboard.url, *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env={**os.environ, **environment}, text=True, **streams)  # type: ignore[call-overload,no-any-return]
