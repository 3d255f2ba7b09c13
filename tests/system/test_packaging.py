"""What a fresh process pays for an import or a command, and what the repository holds as git sees it."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).resolve().parents[2]
CONFIG = str(ROOT / "configs" / "mnist_cnn.yaml")
HEAVY = ("torch", "torchvision", "ray", "mlflow")
TOP_LEVEL = {
    *("platform", "jobs", "configs", "tests", "docs"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "mkdocs.yml"),
    *("pyproject.toml", "requirements.lock", "cluster.yaml"),
}
"""Beside these, only dot files and `.ci/`."""


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


def test_the_standard_platform_module_is_not_shadowed() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    found = python("import paceline, platform; print(platform.system(), platform.__file__)")
    assert found.split()[0] in ("Linux", "Darwin")
    assert str(ROOT / "platform") not in found


def test_the_top_level_holds_only_what_belongs_there() -> None:
    found = {file.relative_to(ROOT).parts[0] for file in repository_files()}
    assert {name for name in found if not name.startswith(".")} - TOP_LEVEL == set()


@pytest.mark.slow
def test_the_wheel_has_the_license_the_explanations_and_no_test(tmp_path: Path) -> None:
    command = ["uv", "build", "-q", "--wheel", "--out-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("paceline-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name.partition("/")[0] for name in names if ".dist-info/" in name)
        metadata = archive.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in metadata.splitlines()
    assert f"{info}/licenses/LICENSE" in names
    assert "paceline/explanations/1_config.md" in names
    assert {name.partition("/")[0] for name in names} == {"paceline", info}


def test_no_file_names_a_package_registry() -> None:
    hosts = [("pypi", "org"), ("python[h]osted", "org"), ("download", "pytorch", "org"), ("anaconda", "org")]
    pattern = re.compile("|".join(r"\.".join(parts) for parts in hosts))
    assert pattern.search(".".join(("files", "python" + "hosted", "org")))
    assert [file for file in repository_files() if pattern.search(file.read_text("utf-8", "replace"))] == []


def test_processes_that_hand_on_a_workers_task_need_no_schema() -> None:
    """Such as Ray Train's controller, which each worker group waits for."""
    code = "import sys, paceline.cluster.worker_spec; print({'torch', 'paceline.config.experiment'} & {*sys.modules})"
    assert python(code) == "set()\n"


UNCOMPILED = """
import sys
from paceline import load_config, train

data = {"name": "synthetic", "shape": [8], "num_classes": 4, "num_samples": 64, "global_batch_size": 16}
tree = {
    "name": "plain",
    "model": {"name": "mlp", "in_features": 8, "hidden": [8], "num_classes": 4},
    "data": {**data, "num_validation_samples": 8},
    "trainer": {"epochs": 1},
    "scaling": {"num_workers": 0},
    "tracking": {"offline": "allow", "uri": "http://127.0.0.1:9"},
}
assert train(load_config(tree)).status == "finished"
print("torch._dynamo" in sys.modules)
"""


def test_a_training_that_compiles_nothing_imports_no_compiler(tmp_path: Path) -> None:
    assert python(UNCOMPILED, cwd=tmp_path).splitlines()[-1] == "False"


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


SWEEP = "sweep={space: {data.global_batch_size: [64, 256], optimizer.lr: [0.05, 0.1]}, seeds: 2, scheduler: asha}"


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["train"], ["# batch: 128 micro x 1 accumulation x 2 workers = 256 global"]),
        (["sweep", SWEEP], ["0007 +256 +0.1 .*", "trials +8"]),
    ],
    ids=["train", "sweep"],
)
def test_a_dry_run_needs_no_torch(arguments: list[str], printed: list[str], tmp_path: Path) -> None:
    code = "from paceline.cli import main\nmain([*sys.argv[1:], '--dry-run'])"
    command, *changes = arguments
    lines = python(blocking(*HEAVY) + code, command, CONFIG, *changes, cwd=tmp_path).splitlines()
    assert all(any(re.fullmatch(pattern, line) for line in lines) for pattern in printed)
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
    assert "--dry-run" in python(blocking(*HEAVY) + code, CONFIG, SWEEP, cwd=tmp_path)


# What a command costs


def test_help_imports_the_standard_library_alone() -> None:
    code = """
import sys
before = set(sys.modules)
from paceline.cli import run
for command in ([], ["train"], ["sweep"], ["tuneup"]):
    try:
        run([*command, "--help"])
    except SystemExit:
        pass
files = {name: getattr(sys.modules[name], "__file__", "") or "" for name in set(sys.modules) - before}
print("loaded:", [name for name, file in files.items() if "site-packages" in file])
"""
    assert python(code).splitlines()[-1] == "loaded: []"


def cpu_seconds(*command: str, expected: int = 0) -> float:
    """CPU time of a process."""
    before = os.times()
    assert subprocess.run([sys.executable, *command], capture_output=True).returncode == expected
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_a_config_error_costs_less_than_half_an_import_of_torch() -> None:
    wrong = ("sweep.space={optimizer.lrr: [0.1, 0.2]}", "optimizer.lr=fast")
    asked = [cpu_seconds("-m", "paceline", "sweep", CONFIG, *wrong, expected=2) for _ in range(2)]
    assert min(asked) < 0.5 * cpu_seconds("-c", "import torch")
