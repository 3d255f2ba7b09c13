"""`list` and `compare`: what a storage holds, and several runs side by side."""

import json
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline import RunResult, compare, list_runs
from paceline.bench.study_launch import claim_study
from paceline.cli import run as command
from paceline.errors import ConfigError, EnvironmentFault, RunFailed
from paceline.runs import comparing
from paceline.tuneups.folder import TUNEUPS
from support.runs.trained_runs import CNN, config, swept, trained


@pytest.fixture(scope="module")
def made(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with an MLflow store."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(prepared_database, home / "mlflow.db")
    return home


@pytest.fixture(scope="module")
def runs(made: Path) -> list[RunResult]:
    """Two seeds of one config, and one of another."""
    short = {**CNN, "trainer": {"epochs": 1}}
    return [
        trained(made, "slow", **short, seed=0),
        trained(made, "slow", **short, seed=1),
        trained(made, "fast", **short, optimizer={"name": "sgd", "lr": 0.1}),
    ]


@pytest.fixture
def home(made: Path, runs: list[RunResult], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same as the folder to work in, with the runs."""
    monkeypatch.chdir(made)
    return made  # type: ignore[return-value]


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert command([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def label(run: RunResult) -> str:
    return f"{run.name}/{run.run_id}"


def test_runs_are_listed_by_name_and_time(
    home: Path, runs: list[RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    listed = printed(capsys, "list")["runs"]
    assert [(each["name"], each["id"]) for each in listed] == [
        ("fast", runs[2].run_id),
        ("slow", runs[0].run_id),
        ("slow", runs[1].run_id),
    ]
    assert {(each["kind"], each["status"]) for each in listed} == {("run", "finished")}
    assert listed[0]["metrics"]["val/loss"] == runs[2].metrics["val/loss"]
    assert all(each["started"].replace("-", "").replace(":", "")[:8] == each["id"][:8] for each in listed)
    assert [each.id for each in list_runs("slow")] == [runs[0].run_id, runs[1].run_id]
    assert command(["list", "slow"]) == 0
    assert label(runs[0]) in capsys.readouterr().out


def test_sweeps_tune_ups_and_damaged_runs_are_listed(home: Path, tmp_path: Path) -> None:
    shutil.copy(home / "mlflow.db", tmp_path / "mlflow.db")
    sweep = swept(tmp_path, "swept", {"0000": 0.1}, **{**CNN, "trainer": {"epochs": 1}})
    claimed = claim_study(TUNEUPS, config(tmp_path, "tuned", **CNN), tmp_path / "runs")
    broken = tmp_path / "runs" / "broken" / "20260101-000000-abcdef"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    found = {each.name: (each.kind, each.status) for each in list_runs(storage=tmp_path / "runs")}
    claimed.release()
    # the trial's own run was moved into the sweep, but for its file
    assert {name: found[name] for name in ("broken", "swept", "tuned")} == {
        "broken": ("run", "damaged"),
        "swept": ("sweep", "finished"),
        "tuned": ("tune-up", "running"),
    }
    with pytest.raises(EnvironmentFault) as caught:
        compare(sweep.path, label_of_any(home), storage=home / "runs")
    assert caught.value.code == "other-kind"


class Exploding(nn.Linear):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("the user's own mistake")


def exploding() -> nn.Module:
    return Exploding(64, 10)


def test_the_reason_of_a_failure_is_listed(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(home / "mlflow.db", tmp_path / "mlflow.db")
    with pytest.raises(RunFailed):
        trained(tmp_path, "exploded", **{**CNN, "model": {"path": exploding}})
    (listed,) = printed(capsys, "list", "--storage", str(tmp_path / "runs"))["runs"]
    assert (listed["status"], listed["metrics"]) == ("failed", {})
    assert "the user's own mistake" in listed["summary"]
    assert command(["list", "--storage", str(tmp_path / "runs")]) == 0
    assert "the user's own mistake" in capsys.readouterr().out


def label_of_any(home: Path) -> str:
    return f"fast/{list_runs('fast', home / 'runs')[0].id}"


def test_an_empty_storage_has_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "list", "--storage", str(tmp_path))["runs"] == []
    assert command(["list", "--storage", str(tmp_path)]) == 0


def test_seeds_are_one_group_with_mean_and_deviation(
    home: Path, runs: list[RunResult], capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, "compare", *map(label, runs))
    assert found["groups"] == [[label(runs[0]), label(runs[1])], [label(runs[2])]]
    assert found["config"] == {"optimizer.lr": [0.01, 0.1]}
    losses = [run.metrics["val/loss"] for run in runs]
    seeds, alone = found["metrics"]["val/loss"]
    assert seeds["mean"] == pytest.approx(statistics.fmean(losses[:2]), rel=1e-12)
    assert seeds["deviation"] == pytest.approx(statistics.stdev(losses[:2]), rel=1e-12)
    assert alone == {"mean": losses[2], "deviation": None, "count": 1}
    assert command(["compare", *map(label, runs)]) == 0
    assert "optimizer.lr" in capsys.readouterr().out


def test_runs_of_other_code_are_no_repeats(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same config and seed, but the model's file was changed in between."""
    made = [trained(home, "same", **{**CNN, "trainer": {"epochs": 1}}) for _ in range(3)]
    for run, digest in zip(made, ("aa", "aa", "bb"), strict=True):
        state = Path(run.checkpoint) / "state.json"
        state.write_text(json.dumps({**json.loads(state.read_text()), "code": {"own": digest, "helpers": "cc"}}))
    found = printed(capsys, "compare", *map(label, made))
    assert found["groups"] == [[label(made[0]), label(made[1])], [label(made[2])]]
    assert found["code"] == {"own": ["aa", "bb"]}
    assert found["config"] == {}
    assert command(["compare", *map(label, made)]) == 0
    assert "own" in capsys.readouterr().out


def test_speeds_are_compared_under_the_same_conditions_alone(
    home: Path, runs: list[RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = {"device": "cpu", "measured_steps": 100, "warm_up_steps": 10, "other_load_start": 0.0}
    stamps = iter([stamp, stamp])
    monkeypatch.setattr(comparing, "_stamp", lambda found: next(stamps))
    same = compare(label(runs[0]), label(runs[2]))
    assert same.is_speed_comparable
    assert any(row[0] == "samples/s" for _, rows in same.tables() for row in rows)

    stamps = iter([stamp, {**stamp, "device": "H100"}])
    other = compare(label(runs[0]), label(runs[2]))
    assert not other.is_speed_comparable
    assert len(other.speed_differences) == 1

    short = {**stamp, "measured_steps": 4}
    stamps = iter([short, {**stamp, "device": "H100"}, stamp])
    three = compare(*map(label, runs)).speed_differences
    # what lies in one run is told once, with its name; what lies in two names both
    assert sum("4 steps" in each for each in three) == 1
    assert [each for each in three if "4 steps" in each and label(runs[0]) in each and label(runs[2]) not in each]
    assert sum("H100" in each for each in three) == 2
    assert all(row[0] != "samples/s" for _, rows in other.tables() for row in rows)


def test_a_picture_has_a_line_for_each_run(home: Path, runs: list[RunResult], tmp_path: Path) -> None:
    found = compare(*map(label, runs))
    (axes,) = found.plot("val/loss").axes
    assert len(axes.lines) == 3
    assert len({line.get_color() for line in axes.lines}) == 2
    for name in ("a.png", "a.svg"):
        assert command(["compare", *map(label, runs), "--plot", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--metric", "val/none", "--plot", "a.png"], "unknown-metric"), (["--plot", "a.docx"], "picture-format")],
)
def test_a_wrong_picture_is_refused(
    home: Path, runs: list[RunResult], arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["compare", *map(label, runs[1:]), *arguments]) == 2
    assert f"[{code}]" in capsys.readouterr().err
    assert not (home / "a.docx").exists()


def test_one_run_is_too_few(home: Path) -> None:
    for named in (["fast"], ["fast", label_of_any(home)]):  # the same one twice
        with pytest.raises(ConfigError) as caught:
            compare(*named)
        assert [problem.code for problem in caught.value.problems] == ["too-few-runs"]
