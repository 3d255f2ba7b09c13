"""Golden texts: a changed text fails, an update writes it, and entries without a test are found."""

from pathlib import Path

import pytest

from support.golden import FOLDER, Golden, GoldenFile, key_of


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = GoldenFile(tmp_path / "room.txt", {"b": "two\n\nlines", "a": "one"}, seen={"a", "b"})
    file.write([])
    assert GoldenFile.read(file.path).texts == file.texts


def test_a_changed_text_fails_and_an_update_keeps_it(tmp_path: Path) -> None:
    file = GoldenFile(tmp_path / "room.txt", {"test": "old"})
    with pytest.raises(AssertionError):
        Golden(file, "test", {}, update=False)("new")
    file.seen.clear()
    Golden(file, "test", {"here": "<tmp>"}, update=True)("new, from here")
    assert file.texts == {"test": "new, from <tmp>"}


def test_an_update_drops_what_a_test_that_passed_no_longer_asks_for(tmp_path: Path) -> None:
    here = "test_golden.py::test_keys_hold_file_test_and_parameters"
    texts = {f"{here} | 1": "x", f"{here} | 2": "x", f"{here}[b]": "x", "test_golden.py::test_is_gone": "x"}
    file = GoldenFile(tmp_path / "tests.txt", texts, seen={f"{here} | 1"})
    file.write([here])
    assert set(GoldenFile.read(file.path).texts) == {f"{here} | 1", f"{here}[b]"}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_every_golden_text_has_its_test(path: Path) -> None:
    assert GoldenFile.read(path).orphans() == set()


def test_keys_hold_file_test_and_parameters() -> None:
    assert key_of("tests/unit/config/test_a.py::test_b[x/y]") == "test_a.py::test_b[x/y]"
