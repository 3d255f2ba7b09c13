"""Paths that the system refuses: each command reports them with a code, and exits with 3."""

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from paceline.cli import run
from paceline.errors import EnvironmentFault
from paceline.places import place_of
from support.cli.command import Ended, working_folder
from support.golden import Golden
from support.refusals import refused

LONG = "x" * 300


def test_a_place_is_absolute_and_need_not_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("a/b") == tmp_path / "a" / "b"
    assert place_of("~/x") == Path.home() / "x"
    (tmp_path / "file").touch()
    assert place_of("file/below") == tmp_path / "file" / "below"


@pytest.mark.parametrize("text", [LONG, "~nosuch/x", "a\0b"])
def test_a_name_that_the_system_refuses_is_reported(text: str, golden: Golden) -> None:
    refusal = refused(EnvironmentFault, place_of, text)
    assert refusal.code == "bad-path"
    golden(str(refusal))


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "{}"),
        ("report", "n", "--storage", "{}"),
        ("sync", "{}"),
        ("export", "{}"),
        ("export", "n", "--storage", "{}"),
        ("train", "tiny.yaml", "storage.path='{}'"),
        ("train", "{}"),
    ],
)
@pytest.mark.parametrize("text", [LONG, "~nosuch/x"])
def test_no_command_ends_in_a_traceback(command: Callable[..., Ended], arguments: tuple[str, ...], text: str) -> None:
    ended = command(*(word.format(text) for word in arguments))
    assert ended.code in (2, 3)
    first, *hints = ended.err.splitlines()
    assert first.endswith("]")
    assert all(line.startswith("    hint: ") for line in hints)


@pytest.mark.parametrize("arguments", [["report", "n"], ["sync"], ["export", "n"], ["ui"], ["train", "{config}"]])
def test_a_working_folder_that_is_gone_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    config = (folder / "tiny.yaml").rename(folder.parent / "c.yaml")
    with working_folder(folder):
        shutil.rmtree(folder)
        assert run([word.format(config=config) for word in arguments]) == 3
    assert "[no-working-folder]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "printed"),
    [
        (PermissionError(13, "No access", "/some/file"), "error: /some/file: No access [file-system]\n"),
        (OSError("no more of it"), "error: no more of it [file-system]\n"),
    ],
    ids=["with a file", "without"],
)
def test_an_unexpected_error_of_the_file_system_names_its_file(
    command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, raised: OSError, printed: str
) -> None:
    monkeypatch.setattr("paceline.runs.finding.find_run", Mock(side_effect=raised))
    ended = command("report", "n")
    assert (ended.code, ended.err) == (3, printed)


@pytest.mark.parametrize("port", ["-1", "65536", "x", "1e3", "²"])
def test_a_port_out_of_range_is_refused(command: Callable[..., Ended], port: str) -> None:
    assert command("ui", f"--port={port}").code == 2


@pytest.mark.parametrize("port", [0, 65535])
def test_a_port_that_is_one_is_taken(command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    serve = Mock(return_value=0)
    monkeypatch.setattr("paceline.tracking.mlflow_server.ui", serve)
    assert command("ui", "--port", str(port)).code == 0
    assert serve.call_args.args[1] == port
