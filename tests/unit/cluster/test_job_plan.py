"""The plan of `paceline submit`: what travels, which command runs, and what is refused before anything is asked."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster import job_package
from paceline.cluster.job_plan import JobPlan, plan_job
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.sweeps.planning.planned_trials import plan_trials
from support.cluster.job_project import CONFIG, FILE, NET, SECRET, SWEEP, enter_project, paceline_submit
from support.golden import Golden
from support.refusals import refused


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_project(tmp_path, monkeypatch)


def plan(*overrides: str, file: str = FILE, **given: Any) -> JobPlan:
    return plan_job(file, overrides, check_sweep=plan_trials, **given)


def problems_of(*overrides: str, **given: Any) -> tuple[Problem, ...]:
    """What is wrong with a config, which must be something."""
    refusal = refused(ConfigError, plan, *overrides, **given)
    assert SECRET not in str(refusal)
    return refusal.problems


def test_the_folder_and_the_package_travel(project: Path) -> None:
    for name in ("notes.txt", "secret.env", ".env", "runs/own/x", "big.bin", "venv/x", "__pycache__/x.pyc", "data/a"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    (project / ".gitignore").write_text("*.env\n")
    (project / ".rayignore").write_text("*.bin\n")
    made = plan("trainer.epochs=2", flags=["--fork"])
    assert made.command == ("python", "-m", "paceline", "train", FILE, "trainer.epochs=2", "--fork")
    assert re.fullmatch(r"own-\d{8}-\d{6}", made.new_id())
    assert set(made.folder.files) == {".gitignore", ".rayignore", "notes.txt", "own_net.py", FILE, "data/a"}
    assert {"__init__.py", "__main__.py", "data/base.py"} <= {
        name.removeprefix("paceline/") for name in made.package.files
    }
    assert not any("__pycache__" in name for name in made.package.files)
    assert made.environment.env_vars == {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_JOB_STOP_WAIT_TIME_S": "300"}


def test_a_plan_is_made_below_the_working_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "configs")
    (project / "configs" / "own_net.py").write_text(NET)
    assert plan(file="own.yaml").command[3:] == ("train", "own.yaml")


def test_a_dry_run_shows_the_plan(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = "model={path: 'own_net:build', args: {width: 4}}"
    assert paceline_submit(FILE, typed, "--dry-run") == 0
    assert f"train {FILE} {shlex.quote(typed)}" in capsys.readouterr().out
    assert paceline_submit(FILE, "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["working_folder"] == {"path": str(project), "files": 2, "size_bytes": len(NET) + len(CONFIG)}
    assert shown["kind"] == "train"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], f"train {FILE}"),
        (["--wait-for-resources", "90", "--fork"], f"train {FILE} --wait-for-resources=90 --fork"),
        (["tuneup={margin: 0.01}"], f"tuneup {FILE} 'tuneup={{margin: 0.01}}'"),
        (["--job", "tuneup", "--resume"], f"tuneup {FILE} --resume"),
        (["tuneup={margin: 0.01}", "--job", "train"], f"train {FILE} 'tuneup={{margin: 0.01}}'"),
        ([SWEEP, "--new"], f"sweep {FILE} '{SWEEP}' --new"),
        (["--resume", SWEEP], f"sweep {FILE} '{SWEEP}' --resume"),
        (["--extend", SWEEP], f"sweep {FILE} '{SWEEP}' --extend"),
    ],
)
def test_the_sections_and_the_options_say_what_the_driver_runs(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paceline_submit(FILE, *arguments, "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["entrypoint"] == f"python -m paceline {expected} --json"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--job", "sweep", "--fork", SWEEP],
        ["--job", "tuneup", "--extend"],
        ["--follow", "x"],
        ["--extend", "--init-from", "base"],
    ],
)
def test_options_of_another_command_are_refused(arguments: list[str]) -> None:
    assert paceline_submit(FILE, *arguments) == 2


@pytest.mark.parametrize(
    ("override", "code", "key"),
    [
        ("storage.path=null", "storage", "storage.path"),
        ("storage.path=runs", "storage", "storage.path"),
        ("storage.path=s3://key:secret@bucket", "storage", "storage.path"),
        ("tracking.uri=null", "tracking-uri", "tracking.uri"),
        ("tracking.uri=sqlite:///mlflow.db", "tracking-uri", "tracking.uri"),
        ("tracking.uri=ftp://host", "tracking-uri", "tracking.uri"),
        ("trainer.epochs=x", "wrong-type", "trainer.epochs"),
        ("sweep={space: {optimizer.lr: [-1, 1]}}", "sweep-trial", "sweep.space.optimizer.lr"),
        ("model.path=own_net:bild", "import", "model.path"),
        ("tuneup={techniques: {mine: {model.path: 'own_net:bild'}}}", "import", "tuneup.techniques.mine"),
        ("tuneup={techniques: {mine: {model.args.widht: 8}}}", "unknown-key", "tuneup.techniques.mine"),
        (f"model.args.api_key={SECRET}", "secret", "model.args.api_key"),
        (f"tracking.uri=http://me:{SECRET}@host", "secret", "tracking.uri"),
    ],
)
def test_a_wrong_value_is_found(override: str, code: str, key: str) -> None:
    assert (code, key) in {(problem.code, problem.key) for problem in problems_of(override)}


@pytest.mark.parametrize(("key", "value"), [("pad_token", "<|endoftext|>"), ("auth", "attention")])
def test_an_override_that_only_sounds_secret_is_accepted(key: str, value: str) -> None:
    Path("own_net.py").write_text(f"import torch\n\n\ndef build({key}=''):\n    return torch.nn.Linear(8, 4)\n")
    override = f"model.args.{key}={value}"
    assert override in shlex.split(plan(override).entrypoint)


def test_a_wrong_job_is_found_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert [problem.code for problem in problems_of(kind="sweep")] == ["sweep"]
    tuneup = problems_of("tuneup={}", "storage.path=s3://bucket", kind="tuneup")
    assert [problem.key for problem in tuneup] == ["storage.path"]
    assert problems_of("data.global_batch_size=100", "data.drop_last=true")


def test_a_sweep_may_be_kept_in_a_store() -> None:
    assert "storage.path=s3://bucket/runs" in plan(SWEEP, "storage.path=s3://bucket/runs").command


def test_several_mistakes_are_reported_at_once(golden: Golden) -> None:
    refusal = refused(ConfigError, plan, "storage.path=null", "tracking.uri=null", f"model.args.api_key={SECRET}")
    assert {problem.code for problem in refusal.problems} == {"storage", "tracking-uri", "secret"}
    assert all(problem.place for problem in refusal.problems)
    golden(str(refusal))


TUNEUP = "tuneup={techniques: {mine: {model.path: 'elsewhere_net:build'}}}"


@pytest.mark.parametrize(
    ("override", "file", "key"),
    [
        ("model.path=elsewhere_net:build", FILE, "model.path"),
        ("sweep={space: {model.path: ['own_net:build', 'elsewhere_net:build']}}", FILE, "model.path"),
        (TUNEUP, FILE, "tuneup.techniques.mine"),
        ("seed=1", "../outside.yaml", ""),
        ("seed=1", "configs/child.yaml", "extends"),
    ],
)
def test_what_lies_outside_the_folder_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, override: str, file: str, key: str
) -> None:
    (project.parent / "lib").mkdir()
    (project.parent / "lib" / "elsewhere_net.py").write_text(NET)
    (project.parent / "outside.yaml").write_text(CONFIG)
    (project / "configs" / "child.yaml").write_text("extends: ../../outside.yaml\n")
    monkeypatch.syspath_prepend(str(project.parent / "lib"))
    (problem,) = problems_of(override, file=file)
    assert (problem.code, problem.key) == ("outside-folder", key)
    assert ("elsewhere_net.py" in problem.reason) == ("elsewhere" in override)
    plan(TUNEUP, kind="train")  # which does not import it


@pytest.mark.parametrize(
    ("ignored", "override", "key"),
    [
        ("left_net.py", TUNEUP.replace("elsewhere", "left"), "tuneup.techniques.mine"),
        ("own_net.py", "seed=1", "model.path"),
        ("configs", "seed=1", ""),
    ],
)
def test_ignored_files_that_the_job_needs_are_refused(project: Path, ignored: str, override: str, key: str) -> None:
    (project / "configs" / "left_net.py").write_text(NET)
    (project / ".gitignore").write_text(f"{ignored}\n")
    assert ("left-out", key) in {(problem.code, problem.key) for problem in problems_of(override)}


def test_a_module_that_the_job_would_not_find_is_refused_or_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src" / "own_pkg").mkdir(parents=True)
    (project / "src" / "own_pkg" / "nets.py").write_text(NET)
    monkeypatch.syspath_prepend(str(project / "src"))
    override = "model.path=own_pkg.nets:build"
    (problem,) = problems_of(override)
    assert (problem.code, problem.key) == ("not-importable", "model.path")
    (project / "env.yaml").write_text("py_modules: [src/own_pkg]\n")
    made = plan(override, environment_file=Path("env.yaml"))
    assert made.environment.modules == (str(project / "src" / "own_pkg"),)


def test_the_runtime_environment_of_the_user_is_taken_over(project: Path) -> None:
    (project / "data").mkdir()
    (project / "data" / "large").write_text("x")
    text = """\
working_dir: .
py_modules: [platform/paceline]
pip: [einops]
excludes: [data, "*.txt"]
env_vars: {FLAG: "1", RAY_JOB_STOP_WAIT_TIME_S: "9", MLFLOW_TRACKING_URI: "http://mlflow:5000"}
"""
    (project / "configs" / "deploy").mkdir()
    (project / "configs" / "deploy" / "runtime_env.yaml").write_text(text)
    made = plan("tracking.uri=null")
    assert made.environment.others["pip"] == ["einops"]
    assert made.environment.env_vars == {
        "FLAG": "1",
        "RAY_JOB_STOP_WAIT_TIME_S": "9",
        "MLFLOW_TRACKING_URI": "http://mlflow:5000",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    assert not any(name.startswith("data") for name in made.folder.files)
    assert any(name.endswith("data/base.py") for name in made.package.files)  # `excludes` is for the folder


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("a: [", ""),
        ("env_vars: {A: 1}\n", "env_vars"),
        ("env_vars: [A]\n", "env_vars"),
        ("excludes: data\n", "excludes"),
        ("working_dir: nowhere\n", "working_dir"),
        ("working_dir: s3://bucket/x.zip\n", "working_dir"),
        ("py_modules: [own_net.py]\n", "py_modules"),
        ("pip: 5\n", ""),
        (None, ""),
    ],
)
def test_a_wrong_runtime_environment_is_refused(project: Path, text: str | None, key: str, golden: Golden) -> None:
    if text is not None:
        (project / "env.yaml").write_text(text)
    (problem,) = problems_of(environment_file=Path("env.yaml"))
    assert (problem.code, problem.key) == ("runtime-env", key)
    assert Path(problem.place).name == "env.yaml"
    if key:
        golden(str(problem))


def test_the_tracking_address_of_this_machine_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    assert plan("tracking.uri=null").environment.env_vars["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    for uri, code in (("sqlite:///mlflow.db", "tracking-uri"), (f"http://me:{SECRET}@mlflow:5000", "secret")):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        assert [problem.code for problem in problems_of("tracking.uri=null")] == [code]


def test_secrets_of_the_runtime_environment_are_warned_of_and_not_shown(
    project: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    (project / "env.yaml").write_text(f"env_vars: {{HF_TOKEN: {SECRET}}}\n")
    made = plan(environment_file=Path("env.yaml"))
    golden("\n".join(made.warnings))
    for flags in ([], ["--json"]):
        assert paceline_submit(FILE, "--runtime-env", "env.yaml", "--dry-run", *flags) == 0
    shown = capsys.readouterr()
    assert "HF_TOKEN" in shown.out
    assert SECRET not in shown.err + shown.out


def test_data_that_stay_at_home_are_warned_of(project: Path) -> None:
    (project / "texts").mkdir()
    (project / "texts" / "one.txt").write_text("a text " * 100)
    text = [
        "task={name: language_modeling}",
        "model={name: gpt, context_length: 8, num_layers: 1, num_heads: 1, embedding_dim: 8}",
        "data={name: text_file, file: texts/one.txt, context_length: 8, global_batch_size: 4}",
    ]
    assert plan(*text).warnings == ()
    (project / ".gitignore").write_text("/texts/\n")
    (warning,) = plan(*text).warnings
    assert str(project / "texts" / "one.txt") in warning


def test_a_folder_that_is_too_large_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_package, "MOST_BYTES", 4 * 2**20)  # the package itself is smaller
    (project / "films").mkdir()
    (project / "films" / "one").write_bytes(bytes(5 * 2**20))
    refusal = refused(EnvironmentFault, plan)
    assert (refusal.code, refusal.exit_code) == ("folder-too-large", 3)
    assert (refusal.fields["largest"][0], refusal.fields["limit_bytes"]) == ("films", 4 * 2**20)  # type: ignore[index]
