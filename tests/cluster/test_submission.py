"""`paceline submit` against a stand-in for Ray's dashboard: what is sent and refused, and how a log is followed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline import cli
from paceline.cluster import job_client, job_folder, job_log
from paceline.cluster.submission import submit
from paceline.errors import EnvironmentFault
from support.ray_dashboard import Dashboard

NET = "import torch\n\n\ndef build(width=4, api_key=''):\n    return torch.nn.Linear(8, width)\n"
CONFIG = """\
name: own
model: {path: "own_net:build"}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, global_batch_size: 16}
scaling: {num_workers: 1}
storage: {path: /shared/runs}
tracking: {uri: "sqlite:////shared/mlflow.db"}
"""
SWEEP = "sweep: {space: {optimizer.lr: [0.1, 0.2]}}\n"
SECRET = "canary-0123456789"
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS", "MLFLOW_TRACKING_URI", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    """The one that commands find by default."""
    with Dashboard().running() as running:
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", running.url)
        yield running


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the command is given in."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(job_log, "PAUSES_SECONDS", (0.01,))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "project"
    (folder / "configs").mkdir(parents=True)
    (folder / "own_net.py").write_text(NET)
    (folder / "configs" / "own.yaml").write_text(CONFIG)
    monkeypatch.chdir(folder)
    return folder


def paceline(*arguments: str) -> int:
    """The exit code of `paceline submit`."""
    try:
        return cli.run(["submit", *arguments])
    except SystemExit as end:  # argparse's own refusals
        return int(end.code or 0)


def test_the_folder_and_the_package_travel(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("notes.txt", "secret.env", ".env", "runs/own/x", "big.bin", "venv/x", "__pycache__/x.pyc", "data/a"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    (project / ".gitignore").write_text("*.env\n")
    (project / ".rayignore").write_text("*.bin\n")
    dashboard.log = "first\nlast\n"
    assert paceline("configs/own.yaml", "trainer.epochs=2", "--fork", "--wait", "90") == 0
    sent = dashboard.submitted
    assert sent["entrypoint"] == "python -m paceline.cli train configs/own.yaml trainer.epochs=2 --wait 90 --fork"
    assert re.fullmatch(r"own-\d{8}-\d{6}", sent["submission_id"])
    environment = sent["runtime_env"]
    files = dashboard.unpacked(environment["working_dir"])
    assert set(files) == {".gitignore", ".rayignore", "notes.txt", "own_net.py", "configs/own.yaml", "data/a"}
    assert files["own_net.py"].decode() == NET
    (module,) = environment["py_modules"]
    package = dashboard.unpacked(module)
    assert {"paceline/__init__.py", "paceline/cli/__main__.py", "paceline/data/base.py"} <= set(package)
    assert not any("__pycache__" in name for name in package)
    assert environment["env_vars"] == {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_JOB_STOP_WAIT_TIME_S": "300"}
    shown = capsys.readouterr()
    assert shown.out == "first\nlast\n"
    assert f"job {sent['submission_id']}" in shown.err
    assert "6 files" in shown.err
    assert "succeeded (exit code 0)" in shown.err


def test_a_second_submission_of_the_same_files_sends_them_once(dashboard: Dashboard, project: Path) -> None:
    assert paceline("configs/own.yaml") == 0
    (project / "own_net.py").touch()  # another time, the same content
    dashboard.jobs.clear()
    assert paceline("configs/own.yaml") == 0
    assert sum(request.startswith("PUT") for request in dashboard.requests) == 2


def test_it_works_below_the_working_folder(dashboard: Dashboard, project: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(project / "configs")
    (project / "configs" / "own_net.py").write_text(NET)
    assert paceline("own.yaml") == 0
    assert dashboard.submitted["entrypoint"] == "python -m paceline.cli train own.yaml"


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130])
def test_the_exit_code_is_the_drivers_own(dashboard: Dashboard, code: int) -> None:
    dashboard.outcome = ("FAILED" if code else "SUCCEEDED", code, None)
    assert paceline("configs/own.yaml") == code


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        (("FAILED", -9, "killed"), 137, "was killed (signal 9)"),
        (("FAILED", 137, "killed"), 137, "was killed (signal 9)"),
        (("STOPPED", None, None), 130, "was stopped"),
        (("FAILED", None, "runtime_env setup failed: no such package"), 3, "no such package"),
        (("FAILED", None, f"token={SECRET}"), 3, "could not be started"),
    ],
)
def test_other_ends_have_codes_of_their_own(
    dashboard: Dashboard, outcome: Any, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dashboard.outcome = outcome
    assert paceline("configs/own.yaml") == code
    error = capsys.readouterr().err
    assert told in error
    assert SECRET not in error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["storage.path=null"], "[storage] storage.path: must be set"),
        (["storage.path=runs"], "[storage] storage.path: must be an absolute path"),
        (["storage.path=s3://key:secret@bucket"], "[storage] storage.path: has credentials in it"),
        (
            ["storage.path=s3://bucket", SWEEP.strip().replace(": ", "=", 1)],
            "sweeps and tune-ups cannot be kept in an object store yet",
        ),
        (["tracking.uri=null"], "[tracking] tracking.uri: must be set"),
        (["tracking.uri=sqlite:///mlflow.db"], "[tracking] tracking.uri: must be an absolute path"),
        (["tracking.uri=ftp://host"], "no kind of store"),
        (["trainer.epochs=x"], "trainer.epochs"),
        (["data.global_batch_size=100", "data.drop_last=true"], "an epoch has no step"),
        (["--job", "sweep"], "there is no sweep section"),
        (["sweep={space: {optimizer.lr: [-1, 1]}}"], "optimizer.lr"),
        (["model.path=own_net:bild"], "did you mean build?"),
        (["tuneup={arms: {mine: {model.path: 'nomodule:build'}}}"], "tuneup.arms.mine: model.path: no module named"),
        (["tuneup={arms: {mine: {model.path: 'own_net:bild'}}}"], "did you mean build?"),
        (["tuneup={arms: {mine: {model.args.widht: 8}}}"], "did you mean width?"),
        ([f"model.args.api_key={SECRET}"], "everybody who may list jobs"),
        ([f"tracking.uri=http://me:{SECRET}@host"], "everybody who may list jobs"),
        (["--runtime-env", "none.yaml"], "there is no such file"),
        (["--new"], "--new and --resume alone are for sweep"),
        (["--job", "sweep", "--fork", SWEEP.strip().replace(": ", "=", 1)], "--fork and --resume auto or never"),
        (["--follow", "x"], "--follow takes neither CONFIG"),
    ],
)
def test_what_is_wrong_is_found_before_anything_is_asked(
    dashboard: Dashboard, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline("configs/own.yaml", *arguments) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert SECRET not in shown.err + shown.out
    assert dashboard.requests == []


def test_several_mistakes_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ("storage.path=null", "tracking.uri=null", f"model.args.api_key={SECRET}")
    assert paceline("configs/own.yaml", *overrides) == 2
    error = capsys.readouterr().err
    assert all(code in error for code in ("[storage]", "[tracking]", "[secret]"))
    assert "override 'storage.path=null'" in error


def test_a_wrong_config_is_told_without_ray(project: Path) -> None:
    script = "import sys; sys.modules['ray'] = None; from paceline.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, "submit", "configs/own.yaml", "storage.path=null"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "[storage]" in done.stderr


def test_what_does_not_travel_is_refused(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = project.parent / "outside.yaml"
    outside.write_text(CONFIG)
    assert paceline(str(outside)) == 2
    assert "is not below the working folder" in capsys.readouterr().err
    (project.parent / "lib").mkdir()
    (project.parent / "lib" / "elsewhere_net.py").write_text(NET)
    monkeypatch.syspath_prepend(str(project.parent / "lib"))
    assert paceline("configs/own.yaml", "model.path=elsewhere_net:build") == 2
    assert "elsewhere_net.py is not below the working folder" in capsys.readouterr().err
    sweep = "sweep={space: {model.path: ['own_net:build', 'elsewhere_net:build']}}"
    assert paceline("configs/own.yaml", sweep) == 2
    assert "elsewhere_net.py is not below the working folder" in capsys.readouterr().err
    tuneup = "tuneup={arms: {mine: {model.path: 'elsewhere_net:build'}}}"
    assert paceline("configs/own.yaml", tuneup) == 2
    assert re.search(
        r"tuneup\.arms\.mine: .*elsewhere_net\.py is not below the working folder", capsys.readouterr().err
    )
    assert paceline("configs/own.yaml", tuneup, "--job", "train", "--dry-run") == 0  # which does not import it
    capsys.readouterr()
    (project / "configs" / "left_net.py").write_text(NET)
    (project / ".gitignore").write_text("left_net.py\n")
    assert paceline("configs/own.yaml", tuneup.replace("elsewhere", "left")) == 2
    assert re.search(r"tuneup\.arms\.mine: .*left_net\.py is left out", capsys.readouterr().err)
    (project / ".gitignore").write_text("own_net.py\n")
    assert paceline("configs/own.yaml") == 2
    assert "own_net.py is left out" in capsys.readouterr().err
    (project / ".gitignore").write_text("configs\n")
    assert paceline("configs/own.yaml") == 2
    assert "own.yaml: [left-out]" in capsys.readouterr().err
    assert dashboard.requests == []


def test_a_module_that_the_job_would_not_find_is_refused_or_named(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src" / "own_pkg").mkdir(parents=True)
    (project / "src" / "own_pkg" / "nets.py").write_text(NET)
    monkeypatch.syspath_prepend(str(project / "src"))
    override = "model.path=own_pkg.nets:build"
    assert paceline("configs/own.yaml", override) == 2
    assert "the job would not find it" in capsys.readouterr().err
    (project / "env.yaml").write_text("py_modules: [src/own_pkg]\n")
    assert paceline("configs/own.yaml", override, "--runtime-env", "env.yaml") == 0
    _, module = dashboard.submitted["runtime_env"]["py_modules"]
    assert set(dashboard.unpacked(module)) == {"own_pkg/nets.py"}


def test_the_users_runtime_environment_is_taken_over(dashboard: Dashboard, project: Path) -> None:
    (project / "data").mkdir()
    (project / "data" / "large").write_text("x")
    text = """\
working_dir: .
py_modules: [platform/paceline]
pip: [einops]
excludes: [data, "*.txt"]
env_vars: {FLAG: "1", RAY_JOB_STOP_WAIT_TIME_S: "9", MLFLOW_TRACKING_URI: "http://mlflow:5000"}
"""
    (project / "configs" / "runtime_env.yaml").write_text(text)
    assert paceline("configs/own.yaml", "tracking.uri=null") == 0
    environment = dashboard.submitted["runtime_env"]
    assert environment["pip"]["packages"] == ["einops"]
    assert environment["env_vars"]["FLAG"] == "1"
    assert environment["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "9"
    assert environment["env_vars"]["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] == "0"
    assert not any(name.startswith("data") for name in dashboard.unpacked(environment["working_dir"]))
    (module,) = environment["py_modules"]
    assert "paceline/data/base.py" in dashboard.unpacked(module)  # what the user leaves out is the user's


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- a\n", "must hold keys and values"),
        ("a: [", "is no YAML"),
        ("env_vars: {A: 1}\n", "variables are texts"),
        ("env_vars: [A]\n", "must hold names and values"),
        ("excludes: data\n", "must be a list of texts"),
        ("working_dir: nowhere\n", "there is no folder"),
        ("working_dir: s3://bucket/x.zip\n", "must be a folder of this machine"),
        ("py_modules: [own_net.py]\n", "neither a package's folder nor a wheel"),
        ("pip: 5\n", "runtime_env['pip'] must be of type"),
        ("pip: none.txt\n", "none.txt is not a valid file"),
    ],
)
def test_a_wrong_runtime_environment_is_refused(
    dashboard: Dashboard, project: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "env.yaml").write_text(text)
    assert paceline("configs/own.yaml", "--runtime-env", "env.yaml") == 2
    error = capsys.readouterr().err
    assert "env.yaml: [runtime-env]" in error
    assert told in error
    assert dashboard.requests == []


def test_the_tracking_address_of_this_machine_travels(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert paceline("configs/own.yaml", "tracking.uri=null") == 0
    assert dashboard.submitted["runtime_env"]["env_vars"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    dashboard.requests.clear()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    assert paceline("configs/own.yaml", "tracking.uri=null") == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@mlflow:5000")
    assert paceline("configs/own.yaml", "tracking.uri=null") == 2
    error = capsys.readouterr().err
    assert "MLFLOW_TRACKING_URI has a password" in error
    assert SECRET not in error
    assert dashboard.requests == []


def test_secrets_of_the_runtime_environment_are_warned_of(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "env.yaml").write_text(f"env_vars: {{HF_TOKEN: {SECRET}}}\n")
    assert paceline("configs/own.yaml", "--runtime-env", "env.yaml", "--dry-run") == 0
    assert paceline("configs/own.yaml", "--runtime-env", "env.yaml", "--dry-run", "--json") == 0
    assert paceline("configs/own.yaml", "--runtime-env", "env.yaml") == 0
    shown = capsys.readouterr()
    assert "warning: Ray shows HF_TOKEN" in shown.err
    assert SECRET not in shown.err + shown.out


def test_data_that_stay_at_home_are_warned_of(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "texts").mkdir()
    (project / "texts" / "one.txt").write_text("a text " * 100)
    text = [
        "task={name: language_modeling}",
        "model={name: gpt, context_length: 8, num_layers: 1, num_heads: 1, embedding_dim: 8}",
        "data={name: text_file, file: texts/one.txt, context_length: 8, global_batch_size: 4}",
    ]
    assert paceline("configs/own.yaml", *text) == 0
    assert "warning" not in capsys.readouterr().err
    (project / ".gitignore").write_text("/texts/\n")
    dashboard.jobs.clear()
    assert paceline("configs/own.yaml", *text) == 0
    assert "warning: data.file: " in capsys.readouterr().err


def test_a_secret_in_the_config_file_is_not_shown(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = CONFIG.replace('build"}', f'build", args: {{api_key: {SECRET}}}}}')
    (project / "configs" / "own.yaml").write_text(own)
    dashboard.log = f"the driver says {SECRET}\nand a token: {SECRET[::-1]}\n"
    assert paceline("configs/own.yaml") == 0
    assert SECRET.encode() not in dashboard.bodies[0]
    shown = capsys.readouterr()
    assert SECRET not in shown.err + shown.out
    assert SECRET[::-1] not in shown.out


def test_a_folder_that_is_too_large_is_refused(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_folder, "MOST_BYTES", 4 * 2**20)  # the package itself is smaller
    (project / "films").mkdir()
    (project / "films" / "one").write_bytes(bytes(5 * 2**20))
    assert paceline("configs/own.yaml") == 3
    error = capsys.readouterr().err
    assert "films (5.0 MiB)" in error
    assert ".rayignore" in error
    assert dashboard.requests == []


def test_a_second_job_of_the_same_run_is_refused(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.has_job("other", paceline_name="own", paceline_storage="/elsewhere")
    dashboard.has_job("ended", "FAILED", paceline_name="own", paceline_storage="/shared/runs")
    dashboard.has_job("foreign")
    assert paceline("configs/own.yaml") == 0
    dashboard.has_job("own-20260101-000000", "PENDING", paceline_name="own", paceline_storage="/shared/runs")
    uploads = len(dashboard.packages)
    assert paceline("configs/own.yaml", "trainer.epochs=3") == 3
    error = capsys.readouterr().err
    assert "going on: own-20260101-000000" in error
    assert f"paceline submit --follow own-20260101-000000 --address {dashboard.url}" in error
    assert "ray job stop own-20260101-000000" in error
    assert len(dashboard.packages) == uploads
    assert len(dashboard.bodies) == 1


def test_a_sweep_is_told_by_its_section(dashboard: Dashboard, project: Path) -> None:
    (project / "configs" / "both.yaml").write_text(CONFIG + SWEEP)
    for arguments, command in (
        ([], "sweep configs/both.yaml"),
        (["--new"], "sweep configs/both.yaml --new"),
        (["--resume"], "sweep configs/both.yaml --resume"),
        (["--json"], "sweep configs/both.yaml --json"),
        (["--job", "train"], "train configs/both.yaml"),
        (["--job", "train", "--resume", "never"], "train configs/both.yaml --resume never"),
    ):
        dashboard.jobs.clear()
        assert paceline("configs/both.yaml", *arguments) == 0
        assert dashboard.submitted["entrypoint"] == f"python -m paceline.cli {command}"
    dashboard.jobs.clear()
    assert paceline("--resume", "configs/both.yaml", "trainer.epochs=2") == 0
    assert (
        dashboard.submitted["entrypoint"] == "python -m paceline.cli sweep configs/both.yaml trainer.epochs=2 --resume"
    )
    dashboard.jobs.clear()
    assert paceline("configs/both.yaml", "--resume", "trainer.epochs=2") == 0
    assert (
        dashboard.submitted["entrypoint"] == "python -m paceline.cli sweep configs/both.yaml trainer.epochs=2 --resume"
    )


def test_values_reach_the_driver_as_they_were_typed(dashboard: Dashboard) -> None:
    assert paceline("configs/own.yaml", "model={path: 'own_net:build', args: {width: 4}}") == 0
    entrypoint = dashboard.submitted["entrypoint"]
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {entrypoint}"], capture_output=True, text=True, check=True)
    assert words.stdout.splitlines()[-1] == "model={path: 'own_net:build', args: {width: 4}}"


def test_a_dry_run_asks_nobody(dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paceline("configs/own.yaml", "--dry-run") == 0
    text = capsys.readouterr().out
    assert "python -m paceline.cli train configs/own.yaml" in text
    assert f"{project}: 2 files" in text
    assert paceline("configs/own.yaml", "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["working_folder"] == {"path": str(project), "files": 2, "size_bytes": len(NET) + len(CONFIG)}
    assert told["address"] == dashboard.url
    assert dashboard.requests == []


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ([], "train"),
        (["tuneup={margin: 0.01}"], "tuneup"),
        (["sweep={space: {optimizer.lr: [0.1, 0.2]}}"], "sweep"),
        (["tuneup={margin: 0.01}", "--job", "train"], "train"),
        (["--job", "tuneup"], "tuneup"),
    ],
)
def test_the_sections_of_a_config_say_what_it_is_submitted_for(
    overrides: list[str], kind: str, dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline("configs/own.yaml", *overrides, "--dry-run") == 0
    assert f"python -m paceline.cli {kind} configs/own.yaml" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--resume", "--new"])
def test_a_tune_up_is_told_to_go_on_or_to_start_anew(
    option: str, dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline("configs/own.yaml", "--job", "tuneup", option, "--dry-run") == 0
    assert f"tuneup configs/own.yaml {option}" in capsys.readouterr().out


def test_a_tune_up_is_no_run_to_branch_off(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paceline("configs/own.yaml", "--job", "tuneup", "--fork") == 2
    assert "for tuneup: --resume without a value, or --new" in capsys.readouterr().err


def test_an_option_goes_before_the_environment(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", dashboard.url)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    assert paceline("configs/own.yaml") == 3
    assert "no Ray dashboard answers at http://127.0.0.1:9" in capsys.readouterr().err
    assert paceline("configs/own.yaml", "--address", f"{dashboard.url}/") == 0
    dashboard.jobs.clear()
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS")
    assert paceline("configs/own.yaml") == 0
    assert os.environ["RAY_ADDRESS"] == dashboard.url


@pytest.mark.parametrize("kind", ["closed", "silent", "other", "head"])
def test_where_no_dashboard_answers_is_told_soon(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(job_client.AT_FIRST) <= 5
    assert job_client.FIND_SECONDS <= 5
    monkeypatch.setattr(job_client, "AT_FIRST", (0.5, 0.5))
    monkeypatch.setattr(job_client, "FIND_SECONDS", 1.0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        if kind != "closed":
            listening.listen()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if kind == "other":  # one that hangs up
            listening.settimeout(20)
            threading.Thread(target=lambda: listening.accept()[0].close(), daemon=True).start()
        begun = time.monotonic()
        assert paceline("configs/own.yaml", "--address", address.removeprefix("http://" if kind == "head" else "")) == 3
        seconds = time.monotonic() - begun
    error = capsys.readouterr().err
    assert address.removeprefix("http://") in error
    assert "ray dashboard cluster.yaml" in error
    assert "ssh -N -L 8265:127.0.0.1:8265" in error
    assert seconds < 15  # a second of it is waiting


def test_a_token_is_asked_for_and_never_shown(
    dashboard: Dashboard, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dashboard.token = SECRET
    assert paceline("configs/own.yaml") == 3
    error = capsys.readouterr().err
    assert "asks for a token" in error
    assert "RAY_AUTH_MODE=token" in error
    assert "RAY_AUTH_TOKEN_PATH" in error
    file = project.parent / "token"
    for token, code, told in ((SECRET, 0, "succeeded"), ("another-0123456789", 3, "refuses the token")):
        file.write_text(token)
        done = _command(project, dashboard, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(file)).communicate()
        assert told in done[1], done
        assert code == 3 or dashboard.submitted
        assert token not in done[0] + done[1]
    done = _command(project, dashboard, RAY_AUTH_MODE="token", HOME=str(project)).communicate()
    assert "RAY_AUTH_TOKEN_PATH" in done[1]
    assert "Traceback" not in done[1]


LOG = "".join(f"line {number} of the log\n" for number in range(100))


def test_a_log_that_breaks_off_is_shown_once(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.log = LOG + "without an end"
    dashboard.cuts = [1, 7, 8, 333, 1200, 1201]
    dashboard.closes = [40, 900]
    assert paceline("configs/own.yaml") == 0
    shown = capsys.readouterr()
    assert shown.out == LOG + "without an end\n"
    assert dashboard.tails == 9
    assert "the connection to the job is lost" in shown.err
    assert dashboard.cuts == dashboard.closes == []


def test_a_dead_tunnel_is_noticed(
    dashboard: Dashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open, and nothing comes."""
    monkeypatch.setattr(job_log, "ASK_SECONDS", 0.05)
    dashboard.log, dashboard.outcome = LOG[:500], None
    told: list[str] = []
    lines: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if "lost" in text:  # reached again
            dashboard.log, dashboard.outcome, dashboard.is_frozen = LOG, ("SUCCEEDED", 0, None), False

    def write(text: str) -> None:
        lines.append(text)
        dashboard.is_frozen = dashboard.is_frozen or len(lines) == 10

    end = submit("configs/own.yaml", write=write, tell=tell)
    assert end.exit_code == 0
    assert "".join(lines) == LOG
    assert sum("the connection to the job is lost" in text for text in told) == 1


def test_what_is_not_reached_any_more_is_given_up(
    dashboard: Dashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_log, "ASK_SECONDS", 0.05)
    monkeypatch.setattr(job_log, "PATIENCE_SECONDS", 0.3)
    dashboard.log, dashboard.outcome = "one\n", None

    def write(text: str) -> None:
        dashboard.is_frozen = True

    with pytest.raises(EnvironmentFault, match=r"(?s)cannot be reached any more.*--follow own-"):
        submit("configs/own.yaml", write=write, tell=print)


def test_a_cluster_that_forgot_the_job_ends_the_following(
    dashboard: Dashboard, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert paceline("--follow", "nothing") == 3
    assert "knows no job nothing" in capsys.readouterr().err
    monkeypatch.setattr(job_log, "ASK_SECONDS", 0.05)
    dashboard.log, dashboard.outcome = "one\n", None
    monkeypatch.setattr(sys.stdout, "write", lambda text: dashboard.jobs.clear())
    assert paceline("configs/own.yaml") == 3
    assert "may have been started anew" in capsys.readouterr().err


def test_a_reader_that_is_gone_ends_the_following(dashboard: Dashboard) -> None:
    dashboard.log, dashboard.outcome = "one\n", None

    def write(text: str) -> None:
        raise BrokenPipeError

    told: list[str] = []
    with pytest.raises(BrokenPipeError):
        submit("configs/own.yaml", write=write, tell=told.append)
    assert "--follow own-" in told[-1]


def test_a_job_is_followed_again_from_its_beginning(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.has_job("earlier", "FAILED")
    dashboard.jobs["earlier"]["outcome"] = ("FAILED", 4, None)
    dashboard.log = LOG
    assert paceline("--follow", "earlier") == 4
    assert capsys.readouterr().out == LOG


def test_without_waiting_the_id_is_printed(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.outcome = None
    assert paceline("configs/own.yaml", "--no-wait") == 0
    shown = capsys.readouterr()
    assert shown.out == f"{dashboard.submitted['submission_id']}\n"
    assert "--follow" in shown.err
    dashboard.jobs.clear()
    assert paceline("configs/own.yaml", "--no-wait", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "submitted"
    assert told["job_id"] == dashboard.submitted["submission_id"]


def test_json_has_the_drivers_result(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    dashboard.log = '{"no": "result"}\nline\n{"status": "finished", "steps": 4}\nlast words\n'
    assert paceline("configs/own.yaml", "--json") == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert told["result"] == {"status": "finished", "steps": 4}
    assert (told["status"], told["exit_code"]) == ("succeeded", 0)
    assert "last words" in shown.err


def test_ctrl_c_leaves_the_job_running(dashboard: Dashboard, project: Path) -> None:
    dashboard.log, dashboard.outcome = "it goes on\n", None
    command = _command(project, dashboard)
    try:
        assert command.stdout is not None
        assert command.stdout.readline() == "it goes on\n"
        command.send_signal(signal.SIGINT)
        _, error = command.communicate(timeout=60)
    finally:
        command.kill()
    job = dashboard.submitted["submission_id"]
    assert command.returncode == 130
    assert f"the job {job} goes on" in error
    assert f"paceline submit --follow {job} --address {dashboard.url}" in error
    assert f"ray job stop {job} --address {dashboard.url}" in error
    assert "Traceback" not in error
    assert not any("stop" in request or request.startswith("DELETE") for request in dashboard.requests)


def _command(project: Path, dashboard: Dashboard, **environment: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "paceline.cli", "submit", "configs/own.yaml", "--address", dashboard.url]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=project, env={**os.environ, **environment}, text=True, **streams)  # type: ignore[call-overload,no-any-return]
