"""What a run from Python shows, and where."""

import re
import sys
from contextlib import redirect_stdout
from typing import Any

import pytest
from rich.console import Console

from paceline.cluster import train
from paceline.cluster.listener import RunProgress, SilentListener
from paceline.config.experiment import validate
from paceline.display import LiveListener, event_text, numbers, print_rows, watched
from support.golden import Golden


def test_only_warnings_in_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    with watched("run") as listener:
        listener.stage("starting")
        listener.planned([("steps", "12"), ("warning", "x has no effect [no-effect]")])
        listener.progress(RunProgress(3, 10, 20.0, {"train/loss": 0.5}))
        listener.event("checkpoint", {"step": 3})
        listener.event("warning", {"code": "no-validation", "message": "the validation set is empty " * 9})
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split()[-1] for line in err.splitlines()] == ["[no-effect]", "[no-validation]"]


def test_lines_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with watched("run") as listener, redirect_stdout(sys.stderr):
        listener.stage("starting")
        listener.progress(RunProgress(3, 10, 20.0, {"train/loss": 0.5}))
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2
    golden("\n".join(line.split("s  ", 1)[1] for line in out.splitlines()))
    assert err == ""


@pytest.mark.parametrize("is_long", [False, True])
def test_a_speed_that_was_not_measured_is_left_out(is_long: bool) -> None:
    assert numbers(RunProgress(3, 10, 0.0, {"train/loss": 0.5}), is_long) == ("loss 0.5" if is_long else "loss 0.5000")
    assert "samples/s" in numbers(RunProgress(3, 10, 20.0, {"train/loss": 0.5}), is_long)


def test_the_weights_that_a_run_starts_from_are_named() -> None:
    text = event_text("initial_weights", {"weights": "base/1", "path": "runs/base/1/checkpoints/step-8", "sha256": ""})
    assert text == "starting from the weights of base/1 (runs/base/1/checkpoints/step-8)"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    with watched("run") as listener:
        assert isinstance(listener, LiveListener)


def test_a_listener_of_the_caller_replaces_the_display(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(train, "_train", lambda *arguments: given.append(arguments[4]))
    config = validate({"name": "x", "model": {"path": dict}, "data": {"path": list, "global_batch_size": 1}})
    mine = SilentListener()
    train.train(config, listener=mine)
    train.train(config)
    assert given[0] is mine
    assert given[1] is not mine


def test_rows_are_aligned_and_never_cut(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/home/{'x' * 200}/model.safetensors"
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    print_rows([("run", "[bold] :smile: a/1"), ("val/accuracy/rotated", "0.95"), ("written", path)])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "run                   [bold] :smile: a/1",
        "val/accuracy/rotated  0.95",
        f"written               {path}",
    ]
