"""The files of the repository that anyone can check by reading them: README, configs, pins, CI."""

import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import paceline
from paceline import __version__
from paceline.config import load_config
from paceline.doctor import FLOORS

ROOT = Path(__file__).resolve().parents[2]
TEST_COMMAND = "uv run pytest"
TRAIN_COMMAND = "pip install uv && uv run paceline train configs/mnist_cnn.yaml"
CONFIG_LINES = 18


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert os.access(script, os.X_OK)
    assert [line for line in lines if "pytest" in line] == [TEST_COMMAND]
    assert "set -euo pipefail" in lines


def test_the_readme_has_the_two_commands_on_lines_of_their_own() -> None:
    assert {TRAIN_COMMAND, TEST_COMMAND} <= set((ROOT / "README.md").read_text().splitlines())
    assert ROOT / "configs" / "mnist_cnn.yaml" in shipped_configs()


def shipped_configs() -> list[Path]:
    """The experiment files in `configs/`; Ray's runtime environment is none."""
    return [file for file in sorted((ROOT / "configs").rglob("*.yaml")) if "model" in yaml.safe_load(file.read_text())]


@pytest.mark.parametrize("file", shipped_configs(), ids=lambda file: file.name)
def test_a_shipped_config_loads_and_is_short(file: Path) -> None:
    config = load_config(file)
    command = "tuneup" if config.tuneup is not None else "sweep" if config.sweep is not None else "train"
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) <= CONFIG_LINES
    assert file.read_text().startswith(f"# uv run paceline {command} configs/{file.name}")


def test_the_newest_release_of_the_changelog_is_the_version() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == __version__
    assert settings["project"]["dynamic"] == ["version"]
    assert ROOT / settings["tool"]["hatch"]["version"]["path"] == Path(paceline.__file__)


def test_doctor_asks_for_the_lowest_versions_that_are_allowed() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = {name: version for each in wanted for name, version in re.findall(r"^([\w-]+)\S*?>=([\d.]+)", each)}
    asked = {name: ".".join(map(str, floor)) for name, floor in FLOORS.items()}
    assert asked == {name: lowest[name] for name in FLOORS}


def test_the_constraints_are_the_locked_versions() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    constraints = dict(each.split("==") for each in settings["tool"]["uv"]["constraint-dependencies"])
    locked = dict(re.findall(r"^([a-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;]+)", lock_text(), re.MULTILINE))
    assert set(constraints) == {"torch", "torchvision", "ray", "mlflow"}
    assert {name: locked.get(name) for name in constraints} == constraints


def test_every_requirement_is_locked_with_a_hash() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = settings["project"]["dependencies"] + settings["dependency-groups"]["dev"]
    wanted += settings["dependency-groups"]["integrations"]
    names = {re.split(r"[\[<>=!~ ]", requirement)[0].lower() for requirement in wanted}
    # each entry begins at the start of a line, and goes on in indented ones
    entries = re.findall(r"^([a-z0-9][\w.-]*)[^\n]*((?:\n[ \t]+[^\n]*)*)", lock_text(), re.MULTILINE)
    hashed = {name for name, rest in entries if "--hash=sha256:" in rest}
    assert names - hashed == set()
    assert {name for name, _ in entries} == hashed


def test_the_lock_has_no_address_and_no_local_path() -> None:
    assert [line for line in lock_text().splitlines() if line.startswith("-")] == []
    assert "://" not in lock_text()
    assert "file:" not in lock_text()


def lock_text() -> str:
    """The lock file."""
    return (ROOT / "requirements.lock").read_text()
