"""Files and folders that we make are their owner's alone, and a group's where the folder above is shared with it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.durable import write_durably, write_pieces_synced, write_synced
from paceline.private_files import make_folder, open_private, restrict, write_private


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(params=["private", "shared"])
def modes(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, int]:
    """Modes of files and folders in the test's folder."""
    if request.param == "private":
        tmp_path.chmod(0o755)
        return 0o600, 0o700
    tmp_path.chmod(0o2775)
    return 0o660, 0o2770


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def append(path: Path) -> None:
    with open(path, "a", opener=open_private) as file:
        file.write("a line")


WRITERS = {
    "durably": lambda path: write_durably(path, b"data"),
    "synced": lambda path: write_synced(path, b"data"),
    "pieces": lambda path: write_pieces_synced(path, [(0, memoryview(b"data"))]),
    "plainly": lambda path: write_private(path, b"data"),
    "appending": append,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_files_and_the_folders_above_them(tmp_path: Path, modes: tuple[int, int], write: object) -> None:
    folder = tmp_path / "runs" / "name" / "run"
    make_folder(folder)
    make_folder(folder)
    write(folder / "file")  # type: ignore[operator]
    assert mode(folder / "file") == modes[0]
    assert {mode(path) for path in (folder, folder.parent, folder.parent.parent)} == {modes[1]}


def test_a_setgid_folder_that_its_group_only_reads_is_not_shared(tmp_path: Path) -> None:
    tmp_path.chmod(0o2755)
    make_folder(tmp_path / "folder")
    write_private(tmp_path / "file", b"data")
    assert mode(tmp_path / "folder") & 0o777 == 0o700
    assert mode(tmp_path / "file") == 0o600


def test_a_copied_tree_gets_the_modes_of_its_new_place(tmp_path: Path, modes: tuple[int, int]) -> None:
    (tmp_path / "copied" / "deeper").mkdir(parents=True)
    (tmp_path / "copied" / "deeper" / "file").write_text("data")
    restrict(tmp_path / "copied")
    assert [mode(tmp_path / "copied" / part) for part in ("", "deeper", "deeper/file")] == [
        modes[1],
        modes[1],
        modes[0],
    ]


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("data")
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        make_folder(tmp_path / "file" / "folder")
