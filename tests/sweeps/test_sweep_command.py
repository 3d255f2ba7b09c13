"""`paceline sweep` as far as it comes without Ray: what it refuses, with which exit code, and what it says then."""

import json
import shutil
from pathlib import Path

import pytest

from paceline import cli

CONFIG = """\
name: tiny
model: {name: mlp}
data: {name: synthetic, shape: [8], num_classes: 4, num_samples: 64, num_validation_samples: 8, global_batch_size: 16}
scaling: {num_workers: 1, use_gpu: false}
"""
SWEEP = "sweep: {space: {optimizer.lr: [0.1, 0.2]}}\n"


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with a config, in which nothing may start Ray."""
    monkeypatch.chdir(tmp_path)
    for variable in ("RAY_JOB_ID", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("paceline.sweeps.sweep._run", _no_ray)
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    (tmp_path / "plain.yaml").write_text(CONFIG)
    (tmp_path / "tiny.yaml").write_text(CONFIG + SWEEP)


def _no_ray(*_: object) -> None:
    raise AssertionError("the sweep was begun")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit code of a command, its stdout and its stderr."""
    code = cli.run(["sweep", *arguments])
    return code, *capsys.readouterr()


def test_what_is_right_would_begin() -> None:
    with pytest.raises(AssertionError, match="begun"):
        cli.run(["sweep", "tiny.yaml"])
    assert len(list(Path("runs/tiny").glob("*/sweep.json"))) == 1


@pytest.mark.parametrize("flags", [(), ("--dry-run",), ("--resume",), ("--json",)])
def test_without_a_sweep_section(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    code, out, err = answer(capsys, "plain.yaml", *flags)
    assert (code, out) == (2, "")
    assert "sweep: there is no sweep section (add one, such as sweep: {space: {optimizer.lr: [0.01, 0.1]}})" in err


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("space", "words"),
    [
        ("{optimizer.lrr: [0.1]}", "optimizer.lrr"),
        ("{optimizer.lr: fast}", "optimizer.lr"),
        ("{data.global_batch_size: [16, 0]}", "global_batch_size"),
        ("{scaling.num_workers: [1, 3]}", "does not divide evenly by 3 workers"),
    ],
)
def test_a_wrong_axis(capsys: pytest.CaptureFixture[str], space: str, words: str, flags: tuple[str, ...]) -> None:
    code, out, err = answer(capsys, "tiny.yaml", f"sweep.space={space}", *flags)
    assert (code, out) == (2, "")
    assert words in err
    assert not Path("runs").exists()


@pytest.mark.parametrize("flags", [(), ("--dry-run",)])
def test_a_wrong_value_is_told_with_its_place(capsys: pytest.CaptureFixture[str], flags: tuple[str, ...]) -> None:
    space = "sweep:\n  space:\n    seed: [1, 2]\n    optimizer.lr:\n      [0.1, [0.2]]\n"
    Path("wrong.yaml").write_text(CONFIG + space)
    code, _, err = answer(capsys, "wrong.yaml", *flags)
    assert code == 2
    assert err.startswith("wrong.yaml:8:5: [sweep-point] sweep.space.optimizer.lr: optimizer.lr=")
    override = "sweep.space.optimizer.lr=[0.1, [0.2]]"
    code, _, err = answer(capsys, "tiny.yaml", override, *flags)
    assert err.startswith(f"override '{override}': [sweep-point] sweep.space.optimizer.lr: ")
    code, _, err = answer(capsys, "wrong.yaml", "sweep.space={scaling.num_workers: [1, 3]}", *flags)
    assert err.startswith("override 'sweep.space={scaling.num_workers: [1, 3]}': [sweep-point] sweep.space: ")


def test_a_resume_without_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = answer(capsys, "tiny.yaml", "--resume")
    assert (code, out) == (2, "")
    assert "there is no unfinished sweep" in err
    assert "leave --resume out to start one" in err


def test_resume_and_new_are_not_for_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.run(["sweep", "tiny.yaml", "--resume", "--new"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_another_config_than_the_unfinished_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AssertionError, match="begun"):
        cli.run(["sweep", "tiny.yaml"])
    [folder] = Path("runs/tiny").glob("*/")
    (folder / "trials" / "0000").mkdir()
    code, _, err = answer(capsys, "tiny.yaml", "sweep.seeds=2")
    assert code == 2
    assert "sweep.seeds" in err
    assert "--new" in err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sweep.slots=60000", "lower sweep.slots to"),
        ("scaling={num_workers: 512, use_gpu: false}", "lower scaling.num_workers"),
    ],
)
def test_more_than_this_machine_has(capsys: pytest.CaptureFixture[str], override: str, words: str) -> None:
    code, out, err = answer(capsys, "tiny.yaml", override, "data.global_batch_size=512", "--json")
    assert code == 3
    assert words in err
    assert json.loads(out)["exit_code"] == 3
    assert not Path("runs").exists()
    assert answer(capsys, "tiny.yaml", override, "data.global_batch_size=512", "--dry-run")[0] == 3
