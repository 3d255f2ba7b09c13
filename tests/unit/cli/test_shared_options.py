"""Options that commands share: how much they show, variables of the environment, suggestions and completion."""

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.cli import COMMANDS, parse
from paceline.cluster.listener import RunProgress
from paceline.config.experiment import validate
from paceline.config.loading import load_config
from paceline.display import PlainListener, QuietListener
from paceline.runs.finding import find_run
from paceline.sweeps.display import PlainSweepListener, QuietSweepListener
from paceline.sweeps.trial import Trial, TrialTable

CONFIG = "name: x\nmodel: {name: cnn}\ndata: {name: mnist5k, global_batch_size: 8}\n"
PROGRESS = RunProgress(3, 10, 20.0, {"train/loss": 0.5, "val/loss": 0.25, "lr": 0.125})


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def written(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("kind", [QuietListener, QuietSweepListener])
def test_quiet_shows_warnings_alone(kind: Any) -> None:
    shown, warning = console(), {"message": "slow disk", "code": "not-written"}
    listener = kind(shown)
    listener.stage("starting")
    listener.planned([("steps", "10")])
    listener.progress(PROGRESS)
    listener.event("checkpoint", {"step": 3})
    listener.event("warning", warning)
    lines = ["warning: slow disk [not-written]"]
    if kind is QuietSweepListener:
        listener.event("warning", {**warning, "trial": "0003"})
        lines.append(f"trial 0003: {lines[0]}")
    assert written(shown) == lines


def test_verbose_shows_each_metric_of_each_report() -> None:
    for verbose in (False, True):
        shown = console()
        listener = PlainListener(shown, verbose)
        for step in (3, 4):
            listener.progress(RunProgress(step, 10, 20.0, PROGRESS.metrics))
        lines = written(shown)
        assert len(lines) == (2 if verbose else 1)
        assert all(("0.125" in line) == verbose for line in lines)


def test_verbose_shows_each_trial_that_ends_once() -> None:
    ended = [Trial(f"000{index}", {"optimizer.lr": index}, "finished", metrics={"val/loss": 0.5}) for index in range(3)]
    for verbose in (False, True):
        shown = console()
        listener = PlainSweepListener(shown, [("val/loss", "min")], 4, verbose)
        for count in (1, 3, 3):
            listener.trials(TrialTable([*ended[:count], Trial("0003", {"optimizer.lr": 3}, "running")]))
        lines = [line for line in written(shown) if "trial 000" in line]
        assert len(lines) == (3 if verbose else 0)


ARGUMENTS = {"predict": ["run", "--output=x.safetensors"]}
ARGUMENTS |= {name: [] for name in ("init", "list", "ui", "sync", "doctor", "explain", "schema")}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_options_of_verbosity_and_shows_its_usage_for_others(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [name, *ARGUMENTS.get(name, ["x"])]
    assert [parse([*arguments, flag]).quiet for flag in ("-q", "-v")] == [True, False]
    with pytest.raises(SystemExit, match=r"^2$"):
        parse([*arguments, "--no-such-flag"])
    assert capsys.readouterr().err.startswith(f"usage: paceline {name} ")


def test_a_misspelt_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parse(["--json", "tuenup", "x.yaml"])
    assert "tuneup" in capsys.readouterr().err


def test_the_environment_names_the_storage_and_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.yaml").write_text(CONFIG)
    monkeypatch.delenv("PACELINE_STORAGE", raising=False)
    stored = load_config(tmp_path / "x.yaml").model_dump(mode="json")
    assert stored["storage"]["path"] is None
    assert parse(["train", "x.yaml"]).address is None

    monkeypatch.setenv("PACELINE_STORAGE", "/shared/runs")
    monkeypatch.setenv("PACELINE_ADDRESS", "head:6379")
    assert load_config(tmp_path / "x.yaml").storage.path == "/shared/runs"
    assert load_config(tmp_path / "x.yaml", {"storage.path": "/mine"}).storage.path == "/mine"
    assert validate(stored).storage.path is None  # a run that is reopened stays where it was
    assert parse(["train", "x.yaml"]).address == "head:6379"
    assert parse(["train", "x.yaml", "--address", "other:6379"]).address == "other:6379"
    assert parse(["sync"]).folder == "/shared/runs"


def test_a_run_on_this_machine_is_found_whatever_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / "x" / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    monkeypatch.setenv("PACELINE_STORAGE", "s3://bucket/prefix")
    monkeypatch.chdir(tmp_path)
    assert find_run(folder).folder == folder
    assert find_run("runs/x/20260101-000000-abcdef").folder == folder


def test_the_shell_completes_commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = "paceline tun"
    words = tmp_path / "words"
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    monkeypatch.setenv("_ARGCOMPLETE_STDOUT_FILENAME", str(words))
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    ended: list[int] = []

    def end(code: int) -> None:
        ended.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", end)  # argcomplete leaves the process without cleaning up
    with pytest.raises(SystemExit):
        parse(["tun"])
    assert ended == [0]
    assert words.read_text().split("\x0b")[0].strip() == "tuneup"
