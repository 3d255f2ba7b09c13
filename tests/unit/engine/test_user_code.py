"""User code that changes between a checkpoint and the launch that resumes it."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.engine.reporter import MemoryReporter
from support.toys import fit, toy_config

NET = """\
from torch import nn
from width_of_user_code import WIDTH


def net():
    return nn.Sequential(nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "net_of_user_code.py").write_text(NET)
    (tmp_path / "width_of_user_code.py").write_text("WIDTH = 4\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    forget()


def forget() -> None:
    for name in ("net_of_user_code", "width_of_user_code"):
        sys.modules.pop(name, None)


def codes(reporter: MemoryReporter) -> list[str]:
    return [details["code"] for event, details in reporter.events if event == "warning"]


@pytest.mark.parametrize(
    ("changed", "is_warned_of"), [(None, False), ("width_of_user_code", True), ("net_of_user_code", True)]
)
def test_a_module_that_has_changed_is_named(folder: Path, changed: str | None, is_warned_of: bool) -> None:
    config = toy_config(model__path="net_of_user_code:net")
    fit(config, checkpoints=folder / "checkpoints", reporter=MemoryReporter(stop_at_step=2))
    if changed is not None:
        file = folder / f"{changed}.py"
        file.write_text(f"{file.read_text()}\n# other code\n")
    shutil.copytree(folder / "checkpoints", folder / "copy")
    assert codes(fit(config, checkpoints=folder / "copy")[2]) == []  # this process has the old code
    forget()  # as in the process of the next launch
    reporter = fit(config, checkpoints=folder / "checkpoints")[2]
    assert codes(reporter) == ["code-changed"] * is_warned_of
    if is_warned_of:
        (message,) = [details["message"] for event, details in reporter.events if event == "warning"]
        assert message.startswith(f"{changed} ")
