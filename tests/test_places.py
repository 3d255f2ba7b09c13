"""Places that the system refuses: each command tells of them in a sentence, and ends with 3."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.cli import run
from paceline.errors import EnvironmentFault
from paceline.places import place_of

LONG = "x" * 300
CONFIG = "name: n\nmodel: {name: mlp}\ndata: {name: synthetic, global_batch_size: 32}\nscaling: {num_workers: 0}\n"


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder; whatever becomes of it, the tests that follow have one."""
    for variable in ("MLFLOW_TRACKING_URI", "RAY_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    before = Path.cwd()
    (tmp_path / "here").mkdir()
    os.chdir(tmp_path / "here")
    yield tmp_path / "here"
    os.chdir(before)


def test_a_place_is_absolute_and_need_not_be_there(working: Path) -> None:
    assert place_of("a/b") == working / "a" / "b"
    assert place_of("~/x") == Path.home() / "x"
    (working / "file").touch()
    assert place_of("file/below") == working / "file" / "below"


@pytest.mark.parametrize(
    ("text", "told"), [(LONG, "File name too long"), ("~nosuch/x", "home directory"), ("a\0b", "null byte")]
)
def test_a_name_that_the_system_refuses_is_told(working: Path, text: str, told: str) -> None:
    with pytest.raises(EnvironmentFault, match=told) as caught:
        place_of(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "command",
    [
        ["report", "{}"],
        ["report", "n", "--storage", "{}"],
        ["sync", "{}"],
        ["export", "{}"],
        ["export", "n", "--storage", "{}"],
        ["train", "c.yaml", "storage.path='{}'"],
        ["train", "{}"],
    ],
)
@pytest.mark.parametrize("text", [LONG, "~nosuch/x"])
def test_no_command_ends_in_a_traceback(
    working: Path, capsys: pytest.CaptureFixture[str], command: list[str], text: str
) -> None:
    (working / "c.yaml").write_text(CONFIG)
    code = run([word.format(text) for word in command])
    printed = capsys.readouterr().err
    assert code in (2, 3)
    assert "too long" in printed or "nosuch" in printed


@pytest.mark.parametrize("command", [["report", "n"], ["sync"], ["export", "n"], ["ui"], ["train", "/c.yaml"]])
def test_a_working_folder_that_is_gone_is_told(
    working: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    config = working.parent / "c.yaml"
    config.write_text(CONFIG)
    working.rmdir()
    assert run([word.replace("/c.yaml", str(config)) for word in command]) == 3
    assert "change to a folder that is there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (PermissionError(13, "Permission denied", "/some/file"), "error: /some/file: Permission denied\n"),
        (OSError("no more of it"), "error: no more of it\n"),
    ],
)
def test_what_nobody_has_looked_at_before_is_told_with_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: OSError, told: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("paceline.review.finding.find_run", fails)
    assert run(["report", "n"]) == 3
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("port", ["-1", "65536", "x", "1e3", "²"])
def test_a_port_that_is_none_is_refused(capsys: pytest.CaptureFixture[str], port: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["ui", f"--port={port}"])
    assert ended.value.code == 2
    assert "is no port: give one from 1 to 65535" in capsys.readouterr().err


def given_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    ports: list[int] = []
    monkeypatch.setattr("paceline.tracking.server.ui", lambda uri, port: (ports.append(port), 0)[1])
    return lambda: ports


def test_a_port_that_is_one_is_taken(working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = given_to(monkeypatch)
    assert [run(["ui", "--port", each]) for each in ("0", "1", "65535")] == [0, 0, 0]
    assert ports() == [0, 1, 65535]
