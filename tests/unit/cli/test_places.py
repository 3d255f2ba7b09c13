"""Paths that the system refuses: each command reports them with a code, and exits with 3."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.cli import run
from paceline.errors import EnvironmentFault
from paceline.places import place_of
from support.golden import Golden

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


@pytest.mark.parametrize("text", [LONG, "~nosuch/x", "a\0b"])
def test_a_name_that_the_system_refuses_is_reported(working: Path, text: str, golden: Golden) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        place_of(text)
    assert caught.value.code == "bad-path"
    golden(str(caught.value))


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
    assert len(printed.splitlines()) == 1


@pytest.mark.parametrize("command", [["report", "n"], ["sync"], ["export", "n"], ["ui"], ["train", "/c.yaml"]])
def test_a_working_folder_that_is_gone_is_told(
    working: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    config = working.parent / "c.yaml"
    config.write_text(CONFIG)
    working.rmdir()
    assert run([word.replace("/c.yaml", str(config)) for word in command]) == 3
    assert "[no-working-folder]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "printed"),
    [
        (
            PermissionError(13, "No access", "/some/file"),
            "error: /some/file: No access [file-system]\n",
        ),
        (OSError("no more of it"), "error: no more of it [file-system]\n"),
    ],
    ids=["with a file", "without"],
)
def test_an_unexpected_error_of_the_file_system_names_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: OSError, printed: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("paceline.review.finding.find_run", fails)
    assert run(["report", "n"]) == 3
    assert capsys.readouterr().err == printed


@pytest.mark.parametrize("port", ["-1", "65536", "x", "1e3", "²"])
def test_a_port_out_of_range_is_refused(port: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["ui", f"--port={port}"])
    assert ended.value.code == 2


def given_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    ports: list[int] = []
    monkeypatch.setattr("paceline.tracking.server.ui", lambda uri, port: (ports.append(port), 0)[1])
    return lambda: ports


def test_a_port_that_is_one_is_taken(working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = given_to(monkeypatch)
    assert [run(["ui", "--port", each]) for each in ("0", "1", "65535")] == [0, 0, 0]
    assert ports() == [0, 1, 65535]
