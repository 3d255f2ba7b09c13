"""Texts as windows of bytes."""

import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader

from paceline.config.data import Sizes
from paceline.data._text import python_manual
from paceline.data._text_file import TextWindows
from paceline.data.text_file import TextFileConfig
from paceline.engine.loading import SlicedDataset
from paceline.errors import EnvironmentFault
from support.refusals import refused

IGNORED = -100


def config(**fields: Any) -> TextFileConfig:
    return TextFileConfig.model_validate({"name": "text_file", **fields})


def text_of(size: int) -> bytes:
    return bytes(torch.randint(0, 256, (size,), generator=torch.Generator().manual_seed(0)).tolist())


def build(folder: Path, size: int, **fields: Any) -> Any:
    """The config, and both parts, of a text of that size."""
    (folder / "text").write_bytes(text_of(size))
    made = config(file=str(folder / "text"), **fields)
    return made, *made.build()


def covered(part: TextWindows) -> tuple[bytes, bytes]:
    """All the tokens of a part that have a target, and all the targets that count, in order."""
    tokens, targets = part.batch(torch.arange(len(part)), seed=0, epoch=0)
    counts = targets != IGNORED
    return bytes(tokens[counts].tolist()), bytes(targets[counts].tolist())


# Training parts of 90 to 108 bytes: one to two windows more or less, full and not
@pytest.mark.parametrize("size", [*range(100, 120, 3), 8])
@pytest.mark.parametrize("context_length", [1, 4, 16, 1000])
def test_windows_cover_the_text_once(tmp_path: Path, size: int, context_length: int) -> None:
    fields = {"context_length": context_length, "validation_fraction": 0.25}
    made, train, validation = build(tmp_path, size, **fields)
    assert made.sizes() == Sizes(len(train), len(validation))
    text = text_of(size)
    cut = size - round(size / 4)
    assert covered(train) == (text[: cut - 1], text[1:cut])
    assert covered(validation) == (text[cut:-1], text[cut + 1 :])


def test_only_the_last_window_is_short_and_none_is_empty(tmp_path: Path) -> None:
    _, train, validation = build(tmp_path, 110, context_length=8, validation_fraction=0.1)
    for part, expected in ((train, [8] * 12 + [2]), (validation, [8, 2])):
        _, targets = part.batch(torch.arange(len(part)), seed=0, epoch=0)
        assert (targets != IGNORED).sum(dim=1).tolist() == expected
    tokens, targets = train[len(train) - 1]
    assert targets.tolist()[2:] == [IGNORED] * 6
    assert tokens.tolist()[2:] == [text_of(110)[98]] * 6  # tokens behind the end are bytes too


def test_batches_and_items_agree_whatever_seed_and_epoch(tmp_path: Path) -> None:
    _, train, _ = build(tmp_path, 110, context_length=8)
    ids = torch.tensor([3, 0, 3, 12])
    tokens, targets = train.batch(ids, seed=5, epoch=7)
    assert (tokens.shape, tokens.dtype, targets.dtype) == ((4, 8), torch.int64, torch.int64)
    assert tokens.is_contiguous()
    assert targets.is_contiguous()
    for row, index in enumerate(ids.tolist()):
        assert train[index][0].equal(tokens[row])
        assert train[index][1].equal(targets[row])
    assert isinstance(train, SlicedDataset)


def test_items_end_with_the_text(tmp_path: Path) -> None:
    _, train, _ = build(tmp_path, 110, context_length=8)
    assert len(list(DataLoader(train, batch_size=None))) == len(train) == 13
    for index in (13, -1):
        with pytest.raises(IndexError, match=str(index)):
            train[index]


# The text that is installed


def test_the_default_is_a_long_english_text() -> None:
    text = python_manual().decode()
    assert len(text) > 300_000
    assert text.count(" the ") > 2000
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    assert len(set(paragraphs)) == len(paragraphs)


def test_the_default_has_the_sizes_that_it_says() -> None:
    made = config(context_length=64)
    train, validation = cast("tuple[TextWindows, TextWindows]", made.build())
    assert made.sizes() == (len(train), len(validation))
    assert bytes(train.text.tolist()) + bytes(validation.text.tolist()) == python_manual()


# Files that will not do


def code_of(action: Any) -> str:
    return refused(EnvironmentFault, action).code


@pytest.mark.parametrize("name", ["no.txt", ".", "a" * 300])
def test_an_unreadable_file_has_no_sizes_and_is_an_environment_fault(tmp_path: Path, name: str) -> None:
    made = config(file=f"{tmp_path}/{name}")
    assert made.sizes() is None
    assert code_of(made.build) == "data-unreadable"


@pytest.mark.parametrize(("size", "fraction"), [(0, 0.1), (1, 0.5), (3, 0.5), (14, 0.1), (1000, 0.001), (1000, 0.999)])
def test_a_text_that_is_too_short_is_an_environment_fault(tmp_path: Path, size: int, fraction: float) -> None:
    (tmp_path / "text").write_bytes(text_of(size))
    made = config(file=str(tmp_path / "text"), validation_fraction=fraction)
    assert [code_of(made.sizes), code_of(made.build)] == ["text-too-short"] * 2


def test_a_python_without_its_manual_is_an_environment_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    python_manual.cache_clear()
    assert [code_of(config().sizes), code_of(config().build)] == ["data-missing"] * 2
