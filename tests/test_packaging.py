"""What holds for the repository as a whole: its files, its pins, who imports whom, and what a command costs."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import paceline
from paceline.config import ExperimentConfig, load_config

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "platform" / "paceline"
TEST_COMMAND = "uv run pytest"
TRAIN_COMMAND = "pip install uv && uv run paceline train configs/mnist_cnn.yaml"
CONFIG_LINES = 18
COMPONENTS = ("models", "data", "tasks", "optimizers", "lr_schedulers")
HEAVY = ("torch", "torchvision", "ray", "mlflow")

TOP_LEVEL = {
    "platform",
    "jobs",
    "configs",
    "cluster.yaml",
    "tests",
    "pyproject.toml",
    "README.md",
    "docs",
    "CHANGELOG.md",
    "requirements.lock",
}
"""Beside these, only dot files and `.ci/`."""

FORBIDDEN = {
    "config": (
        *HEAVY,
        *("paceline.engine", "paceline.tracking", "paceline.cluster", "paceline.sweeps", "paceline.cli"),
    ),
    **dict.fromkeys(COMPONENTS, ("ray", "mlflow", "paceline.engine", "paceline.tracking", "paceline.cluster")),
    "engine": (
        "ray",
        "mlflow",
        "paceline.storage",
        "paceline.tracking",
        "paceline.cluster",
        "paceline.sweeps",
        "paceline.cli",
    ),
    "tracking": (
        *("torch", "torchvision", "ray", "paceline.engine", "paceline.cluster", "paceline.sweeps", "paceline.cli"),
        *("paceline.storage", *(f"paceline.{room}" for room in COMPONENTS)),
    ),
    "storage": ("torch", "ray", "mlflow", "paceline.cluster", "paceline.sweeps", "paceline.cli"),
    "cluster": ("mlflow", "paceline.sweeps", "paceline.cli", "paceline.doctor"),
    "sweeps": ("mlflow", "paceline.study.tuneup", "paceline.cli", "paceline.doctor"),
    "study": ("mlflow", "paceline.cli", "paceline.doctor"),
    "review": ("ray", "paceline.engine.trainer", "paceline.cli", "paceline.doctor"),
    "cli": (*HEAVY, "paceline.engine"),
    "doctor.py": ("mlflow", "paceline.engine", "paceline.cli"),
    "display.py": (*HEAVY, "paceline.engine", "paceline.tracking", "paceline.cli"),
    "errors.py": (*HEAVY, "paceline"),
    "durable.py": (*HEAVY, "paceline"),
    "direction.py": (*HEAVY, "paceline"),
    "places.py": (*HEAVY, "paceline.engine", "paceline.tracking", "paceline.cli"),
    "__init__.py": (*HEAVY, "paceline.engine", "paceline.tracking", "paceline.cli"),
}
"""What no file of a room may import."""


def python(code: str, *arguments: str, cwd: Path = ROOT) -> str:
    """Run a piece of code in a fresh process; its output."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocking(*modules: str) -> str:
    """Code that makes modules fail to import."""
    return f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n"


def repository_files() -> list[Path]:
    """All files that belong to the repository, those not committed yet included."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# The files


def test_the_standard_platform_module_is_not_shadowed() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    found = python("import paceline, platform; print(platform.system(), platform.__file__)")
    assert found.split()[0] in ("Linux", "Darwin")
    assert str(ROOT / "platform") not in found


def test_the_top_level_holds_only_what_belongs_there() -> None:
    found = {file.relative_to(ROOT).parts[0] for file in repository_files()}
    assert {name for name in found if not name.startswith(".")} - TOP_LEVEL == set()


def test_no_file_names_a_package_registry() -> None:
    hosts = [("pypi", "org"), ("python[h]osted", "org"), ("download", "pytorch", "org"), ("anaconda", "org")]
    pattern = re.compile("|".join(r"\.".join(parts) for parts in hosts))
    assert pattern.search(".".join(("files", "python" + "hosted", "org")))
    naming = [
        str(file.relative_to(ROOT))
        for file in repository_files()
        if pattern.search(file.read_bytes().decode("utf-8", "replace"))
    ]
    assert naming == []


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text().splitlines()
    assert os.access(script, os.X_OK)
    assert [line for line in lines if "pytest" in line] == [TEST_COMMAND]
    assert "set -euo pipefail" in lines


@pytest.mark.parametrize("command", [TRAIN_COMMAND, TEST_COMMAND])
def test_the_readme_has_the_two_commands_on_lines_of_their_own(command: str) -> None:
    assert command in (ROOT / "README.md").read_text().splitlines()


def test_the_pictures_and_files_that_the_readme_links_are_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if "://" not in link and not (ROOT / link).is_file()] == []


def shipped_configs() -> list[Path]:
    """The experiment files in `configs/`; Ray's runtime environment is none."""
    return [file for file in sorted((ROOT / "configs").rglob("*.yaml")) if "model" in yaml.safe_load(file.read_text())]


def test_a_config_is_shipped() -> None:
    assert ROOT / "configs" / "mnist_cnn.yaml" in shipped_configs()


def command_of(config: ExperimentConfig) -> str:
    """The command that a file is for, by its sections."""
    if config.tuneup is not None:
        return "tuneup"
    return "train" if config.sweep is None else "sweep"


@pytest.mark.parametrize("file", shipped_configs(), ids=lambda file: file.name)
def test_a_shipped_config_loads_and_is_short(file: Path) -> None:
    command = command_of(load_config(file))
    lines = [line for line in file.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(lines) <= CONFIG_LINES
    assert file.read_text().startswith(f"# uv run paceline {command} configs/{file.name}")


# The pins


def test_the_constraints_are_the_locked_versions() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    constraints = dict(each.split("==") for each in settings["tool"]["uv"]["constraint-dependencies"])
    locked = dict(re.findall(r"^([a-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;]+)", lock_text(), re.MULTILINE))
    assert set(constraints) == {"torch", "torchvision", "ray", "mlflow"}
    assert {name: locked.get(name) for name in constraints} == constraints


def test_every_requirement_is_locked_with_a_hash() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = settings["project"]["dependencies"] + settings["dependency-groups"]["dev"]
    names = {re.split(r"[\[<>=!~ ]", requirement)[0].lower() for requirement in wanted}
    # each entry begins at the start of a line, and goes on in indented ones
    entries = re.findall(r"^([a-z0-9][\w.-]*)[^\n]*((?:\n[ \t]+[^\n]*)*)", lock_text(), re.MULTILINE)
    hashed = {name for name, rest in entries if "--hash=sha256:" in rest}
    assert names - hashed == set()
    assert {name for name, _ in entries} == hashed


def test_the_lock_has_no_address_and_no_local_path() -> None:
    options = [line for line in lock_text().splitlines() if line.startswith("-")]
    assert options == []
    assert "://" not in lock_text()
    assert "file:" not in lock_text()


def lock_text() -> str:
    """The lock file."""
    return (ROOT / "requirements.lock").read_text()


# The layers


def imports_of(source: str) -> Iterator[str]:
    """Every module that a piece of code imports, wherever in it, and every name taken from one, as dotted paths."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def breaches(source: str, forbidden: tuple[str, ...]) -> list[str]:
    """The imports that are forbidden, or below what is."""
    return [name for name in imports_of(source) if any(f"{name}.".startswith(f"{each}.") for each in forbidden)]


def room_of(file: Path) -> str:
    """The folder of a module within the package, or the file's name for those beside the rooms."""
    return file.relative_to(PACKAGE).parts[0]


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize(
    ("source", "room"),
    [
        ("def f():\n    import ray.train", "engine"),
        ("from paceline import cluster", "engine"),
        ("from torch import nn", "tracking"),
        ("from paceline.engine.trainer import Trainer", "tracking"),
        ("import torch.nn as nn", "config"),
    ],
)
def test_a_planted_import_is_found(source: str, room: str) -> None:
    assert breaches(source, FORBIDDEN[room])
    assert not breaches("import rayon, torchless\nfrom paceline import errors", FORBIDDEN[room])


def test_every_room_has_its_rule() -> None:
    rooms = {room_of(file) for file in MODULES}
    assert set(FORBIDDEN) == rooms


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    found = {
        str(file.relative_to(PACKAGE)): breaches(file.read_text(), FORBIDDEN[room])
        for file in MODULES
        if room_of(file) == room
    }
    assert found
    assert {file: names for file, names in found.items() if names} == {}


def test_only_the_cluster_the_sweeps_and_the_doctor_import_ray() -> None:
    importing = {room_of(file) for file in MODULES if breaches(file.read_text(), ("ray",))}
    assert {"cluster", "sweeps"} <= importing
    assert importing <= {"cluster", "sweeps", "study", "doctor.py"}


def test_the_command_line_imports_no_private_name() -> None:
    sources = [file.read_text() for file in (PACKAGE / "cli").glob("*.py")]
    imported = [name for source in sources for name in imports_of(source) if name.startswith("paceline")]
    assert imported
    assert [name for name in imported if any(part.startswith("_") for part in name.split("."))] == []


# What an import pays for


def test_public_names_are_imported_when_asked_for() -> None:
    code = """
import sys
import paceline
assert dir(paceline) == sorted(paceline.__all__)
early = [name for name in ("torch", "torchvision", "ray", "mlflow", "pydantic") if name in sys.modules]
assert not early, early
for name in paceline.__all__:
    assert getattr(paceline, name) is not None, name
paceline.load_config and paceline.train
late = [name for name in ("ray", "mlflow") if name in sys.modules]
assert not late, late
"""
    python(code)
    with pytest.raises(AttributeError, match="no_such_name"):
        paceline.no_such_name  # noqa: B018


def test_the_engine_imports_without_ray_and_mlflow() -> None:
    code = """
import pkgutil
from importlib import import_module
import paceline.engine
for module in pkgutil.walk_packages(paceline.engine.__path__, "paceline.engine."):
    import_module(module.name)
    print(module.name)
"""
    assert "paceline.engine.trainer" in python(blocking("ray", "mlflow") + code)


def test_a_dry_run_needs_no_torch(tmp_path: Path) -> None:
    code = "from paceline.cli import main\nmain(['train', *sys.argv[1:], '--dry-run'])"
    printed = python(blocking(*HEAVY) + code, str(ROOT / "configs" / "mnist_cnn.yaml"), cwd=tmp_path)
    assert "# batch: 128 micro x 1 accumulation x 2 workers = 256 global" in printed
    assert list(tmp_path.iterdir()) == []


SWEEP = "sweep={space: {data.global_batch_size: [64, 256], optimizer.lr: [0.05, 0.1]}, seeds: 2, scheduler: asha}"


def test_a_sweeps_dry_run_needs_no_torch(tmp_path: Path) -> None:
    code = "from paceline.cli import main\nmain(['sweep', *sys.argv[1:], '--dry-run'])"
    printed = python(blocking(*HEAVY) + code, str(ROOT / "configs" / "mnist_cnn.yaml"), SWEEP, cwd=tmp_path)
    assert re.search(r"^0007 +256 +0\.1 ", printed, re.MULTILINE)
    assert re.search(r"^trials +8$", printed, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_a_sweeps_help_and_errors_need_no_torch(tmp_path: Path) -> None:
    code = """
from paceline.cli import run
config, sweep = sys.argv[1:]
try:
    run(["sweep", "--help"])
except SystemExit as done:
    assert not done.code
assert run(["sweep", config]) == 2
assert run(["sweep", config, sweep, "sweep.space={optimizer.lrr: [1]}"]) == 2
assert run(["sweep", config, sweep, "sweep.space={scaling.num_workers: [7]}"]) == 2
assert run(["sweep", config, sweep, "--resume"]) == 2
assert run(["sweep", config, sweep, "sweep.slots=60_000"]) == 3
"""
    assert "--dry-run" in python(blocking(*HEAVY) + code, str(ROOT / "configs" / "mnist_cnn.yaml"), SWEEP, cwd=tmp_path)


# What a command costs


def cpu_seconds(*arguments: str, expected: int) -> float:
    """CPU time of the command line, the best of three."""
    command = [sys.executable, "-m", "paceline.cli", *arguments]
    return min(_cpu_seconds_once(command, expected) for _ in range(3))


def _cpu_seconds_once(command: list[str], expected: int) -> float:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == expected
    return usage.ru_utime + usage.ru_stime


def test_help_comes_at_once() -> None:
    assert cpu_seconds("--help", expected=0) < 0.4
    assert cpu_seconds("train", "--help", expected=0) < 0.4
    assert cpu_seconds("sweep", "--help", expected=0) < 0.4


def test_a_config_error_comes_within_a_second() -> None:
    wrong = ("trainer.epoch=2", "optimizer.lr=fast")
    assert cpu_seconds("train", str(ROOT / "configs" / "mnist_cnn.yaml"), *wrong, expected=2) < 1.0


def test_a_sweeps_config_error_comes_within_a_second() -> None:
    wrong = ("sweep.space={optimizer.lrr: [0.1, 0.2]}", "optimizer.lr=fast")
    assert cpu_seconds("sweep", str(ROOT / "configs" / "mnist_cnn.yaml"), *wrong, expected=2) < 1.0


@pytest.mark.parametrize("file", shipped_configs(), ids=lambda file: file.name)
def test_a_sweeps_dry_run_comes_within_a_second_and_a_half(file: Path) -> None:
    space = ["sweep={space: {optimizer.lr: [0.001, 0.01], trainer.epochs: [1, 2]}}"]
    overrides = space if load_config(file).sweep is None else []
    assert cpu_seconds("sweep", str(file), *overrides, "--dry-run", expected=0) < 1.5


def test_readme_holds_no_figure_that_is_still_to_be_measured() -> None:
    assert "@@" not in (ROOT / "README.md").read_text()
