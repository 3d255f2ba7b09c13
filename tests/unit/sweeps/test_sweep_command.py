"""`paceline sweep` as far as it comes without Ray: what it refuses, and with which exit code."""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline import cli
from paceline.errors import OK, TRIALS_FAILED, ConfigError, EnvironmentFault
from paceline.sweeps.launch import SweepLaunch
from paceline.sweeps.results.record import Closing
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import Trial

CONFIG = """\
name: tiny
model: {name: mlp}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
scaling: {num_workers: 1, use_gpu: false}
"""
SWEEP = "sweep: {space: {optimizer.lr: [0.1, 0.2]}}\n"


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a config, in which nothing may start Ray or a database."""
    monkeypatch.chdir(tmp_path)
    for variable in ("RAY_JOB_ID", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("paceline.sweeps.sweep._run", _no_ray)
    monkeypatch.setattr("paceline.sweeps.sweep.start_creating", lambda uri: None)
    (tmp_path / "plain.yaml").write_text(CONFIG)
    (tmp_path / "tiny.yaml").write_text(CONFIG + SWEEP)


def _no_ray(*_: object) -> None:
    raise AssertionError("the sweep was begun")


@pytest.fixture
def sweep(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command; returns its exit code, its stdout and its stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(["sweep", *arguments])
        return code, *capsys.readouterr()

    return run


def test_file_without_a_sweep_is_refused_with_every_flag(sweep: Any, golden: Any) -> None:
    for flag in ("--json", "--dry-run", "--resume"):
        code, out, err = sweep("plain.yaml", flag)
        assert (code, out) == (2, "")
    golden(err)


def test_wrong_value_is_reported_with_its_place(sweep: Any) -> None:
    space = "sweep:\n  space:\n    seed: [1, 2]\n    optimizer.lr:\n      [0.1, [0.2]]\n"
    Path("wrong.yaml").write_text(CONFIG + space)
    override, whole = "sweep.space.optimizer.lr=[0.1, [0.2]]", "sweep.space={scaling.num_workers: [1, 3]}"
    unknown = "sweep.space={optimizer.lrr: [0.1]}"
    for arguments, start in [
        (("wrong.yaml",), "error: wrong.yaml:8:5: sweep.space.optimizer.lr: "),
        (("tiny.yaml", override), f"error: override '{override}': sweep.space.optimizer.lr: "),
        (("wrong.yaml", whole), f"error: override '{whole}': sweep.space: "),
        (("tiny.yaml", unknown), f"error: override '{unknown}': "),
    ]:
        for flags in ((), ("--dry-run",)):
            code, out, err = sweep(*arguments, *flags)
            assert (code, out) == (ConfigError.exit_code, "")
            assert err.startswith(start)
    assert not Path("runs").exists()


def test_resume_needs_a_sweep_to_resume(sweep: Any) -> None:
    assert sweep("tiny.yaml", "--resume")[:2] == (2, "")
    with pytest.raises(SystemExit) as caught:
        cli.run(["sweep", "tiny.yaml", "--resume", "--new"])
    assert caught.value.code == 2


@pytest.mark.parametrize("override", ["sweep.slots=60000", "scaling={num_workers: 512, use_gpu: false}"])
def test_more_than_this_machine_has_is_refused(sweep: Any, override: str) -> None:
    arguments = ("tiny.yaml", override, "data.global_batch_size=512")
    code, out, _ = sweep(*arguments, "--json")
    assert code == json.loads(out)["exit_code"] == EnvironmentFault.exit_code
    assert not Path("runs").exists()
    assert sweep(*arguments, "--dry-run")[0] == EnvironmentFault.exit_code


@pytest.mark.parametrize(
    ("states", "exit_code"),
    [
        (["finished", "failed"], TRIALS_FAILED),
        (["oom", "finished"], TRIALS_FAILED),
        (["finished", "diverged"], TRIALS_FAILED),
        (["finished", "pruned", "skipped"], OK),
    ],
)
def test_failed_trials_change_the_exit_code(
    sweep: Any, states: list[TrialState], exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(launch: SweepLaunch, *given: Any) -> SweepResult:
        trials = tuple(Trial(f"{n:04}", {"optimizer.lr": n + 1.0}, state) for n, state in enumerate(states))
        objectives = tuple(launch.sweep.objectives)
        folder = launch.folder
        return SweepResult(folder.run_id, "tiny", "finished", trials, objectives, launch.config, folder.path, "", 1.0)

    monkeypatch.setattr("paceline.sweeps.sweep._run", lambda launch: Closing("finished", []))
    monkeypatch.setattr("paceline.sweeps.sweep._result", ended)
    code, out, _ = sweep("tiny.yaml", "--json")
    assert code == exit_code
    assert [trial["state"] for trial in json.loads(out)["trials"]] == states
