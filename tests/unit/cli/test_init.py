"""`init`: the first config file of a project."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.cli.init import UV_VARIABLE
from paceline.config.loading import load_config
from support.cli.command import Ended

Command = Callable[..., Ended]
CODE = """\
from torch.utils import data as torch_data
def build(width, depth=2): ...
def data(): ...
class Shapes(torch_data.Dataset[int]): ...
class Blurred(Shapes):
    def __init__(self, sigma): ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working folder, with the user's code."""
    (tmp_path / "code_of_init.py").write_text(CODE)
    return tmp_path


def test_the_file_passes_a_dry_run(command: Command, folder: Path) -> None:
    arguments = ("--model", "code_of_init:build", "--model-arg", "width=64", "--data", "code_of_init:data")
    made = command("init", *arguments, "--output", "inner/first.yaml", "--json")
    assert made.code == 0
    file = folder / "inner" / "first.yaml"
    assert made.json == {"config": str(file), "schema": str(folder / "inner" / "paceline.schema.json")}
    ended = command("train", "inner/first.yaml", "--dry-run", "--json")
    assert ended.code == 0
    model = ended.json["config"]["model"]
    assert (model["path"], model["args"]) == ("code_of_init:build", {"width": 64})
    assert ended.json["config"]["name"] == "first"
    assert json.loads(file.with_name("paceline.schema.json").read_text())["properties"]["extends"]
    assert file.read_text().startswith("# yaml-language-server: $schema=paceline.schema.json\n")


def test_without_arguments_it_trains_digits(command: Command, folder: Path) -> None:
    assert command("init").code == 0
    assert load_config(folder / "experiment.yaml").data.describe() == "mnist5k"


def test_a_task_can_be_given(command: Command, folder: Path) -> None:
    arguments = ("--model", "code_of_init:build", "--model-arg", "width=8", "--data", "code_of_init:data")
    assert command("init", *arguments, "--task", "regression", "--output", "a.yaml").code == 0
    assert load_config(folder / "a.yaml").task.describe() == "regression"
    own = ("--task", "code_of_init:Blurred", "--task-arg", "sigma=2", "--output", "b.yaml")
    assert command("init", *arguments, *own).code == 0
    tree = yaml.safe_load((folder / "b.yaml").read_text())
    assert tree["task"] == {"path": "code_of_init:Blurred", "args": {"sigma": 2}}
    assert command("init", "--task-arg", "sigma=2", "--output", "c.yaml").code == 2
    assert not (folder / "c.yaml").exists()


def test_the_next_command_is_started_as_this_one(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(UV_VARIABLE, raising=False)
    assert command("init", "--output", "a.yaml").out.splitlines()[1].endswith(": paceline train a.yaml")
    monkeypatch.setenv(UV_VARIABLE, "1")
    monkeypatch.setattr(sys, "prefix", str(folder.parent / "clone" / ".venv"))
    outside = f": uv run --project {folder.parent / 'clone'} paceline train b.yaml"
    assert command("init", "--output", "b.yaml").out.splitlines()[1].endswith(outside)
    monkeypatch.setattr(sys, "prefix", str(folder.parent / ".venv"))
    assert command("init", "--output", "c.yaml").out.splitlines()[1].endswith(": uv run paceline train c.yaml")


def test_what_is_commented_out_is_valid_too(command: Command, folder: Path) -> None:
    assert command("init").code == 0
    file = folder / "experiment.yaml"
    text = file.read_text()
    suggested = list(re.finditer(r"(?m)^ *# ([a-z_]+): .+$", text))
    assert len(suggested) >= 8
    for match in suggested:
        file.write_text(text[: match.start()] + match[0].replace("# ", "", 1) + text[match.end() :])
        assert match[1] in yaml.safe_dump(load_config(file).model_dump(mode="json", exclude_unset=True))


LIGHTNING = {"path": "paceline.adapters:LightningTask"}
MODULES = {
    "bert_of_init": """\
Base = type("PreTrainedModel", (), {"__module__": "transformers.modeling_utils"})
class Bert(Base): ...
def bert() -> Bert: ...
def net(): ...
""",
    "lightning_of_init": """\
print("importing")
unset = {"__module__": "pytorch_lightning.core.module", "configure_optimizers": lambda self: None}
Base = type("LightningModule", (), unset)
class Middle(Base): ...
class Net(Middle): ...
class Own(Base):
    def configure_optimizers(self): ...
class Deeper(Own): ...
""",
    "failing_of_init": "def net(): ...\nraise SystemExit(1)\n",
}


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("bert_of_init:Bert", {"name": "model_loss"}),
        ("bert_of_init:bert", {"name": "model_loss"}),
        ("bert_of_init:net", {"name": "classification"}),
        ("lightning_of_init:Net", LIGHTNING),
        ("lightning_of_init:Own", {**LIGHTNING, "args": {"configure_optimizers": True}}),
        ("lightning_of_init:Deeper", {**LIGHTNING, "args": {"configure_optimizers": True}}),
        ("failing_of_init:net", {"name": "classification"}),
    ],
)
def test_a_model_gets_the_task_of_its_library(command: Command, folder: Path, model: str, task: dict[str, Any]) -> None:
    module = model.partition(":")[0]
    (folder / f"{module}.py").write_text(MODULES[module])
    arguments = ("init", "--model", model, "--data", "code_of_init:data")
    made, plain = command(*arguments, "--json"), command(*arguments, "--output", "plain.yaml")
    assert (made.code, made.json["config"]) == (0, str(folder / "experiment.yaml"))
    written = yaml.safe_load((folder / "experiment.yaml").read_text())
    assert written["task"] == task
    assert ("optimizer" in written) == ("args" not in task), "a section that would have no effect"
    sweep = (folder / "experiment.yaml").read_text().rpartition("\n# sweep: ")[2]
    assert ("optimizer.lr" in sweep) == ("args" not in task), "an axis that would be refused"
    assert ("\ntask: " in plain.out) == (task == {"name": "classification"}), "a hint, where it was not recognised"


@pytest.mark.parametrize(
    ("arguments", "code", "key"),
    [
        (("--model", "code_of_init:build"), "missing-key", "model.args.width"),
        (("--model", "code_of_init:build", "--model-arg", "widht=1"), "unknown-key", "model.args.widht"),
        (("--model", "code_of_init:bild"), "import", "model.path"),
        (("--model", "resnet999"), "unknown-component", "model.name"),
        (("--data", "code_of_init:Shapes"), "not-two-sets", "data.path"),
        (("--data", "code_of_init:Blurred"), "not-two-sets", "data.path"),
        (("--data", "torch.utils.data:TensorDataset"), "not-two-sets", "data.path"),
        (("--data-arg", "x"), "bad-override", "data.args"),
    ],
)
def test_nothing_is_written_that_would_not_work(
    command: Command, folder: Path, arguments: tuple[str, ...], code: str, key: str
) -> None:
    ended = command("init", *arguments)
    assert ended.code == 2
    assert f"{key}: " in ended.err
    assert f" [{code}]" in ended.err
    assert not (folder / "experiment.yaml").exists()


def test_nothing_is_overwritten(command: Command, folder: Path) -> None:
    (folder / "experiment.yaml").write_text("mine")
    ended = command("init")
    assert ended.code == 2
    assert "[file-exists]" in ended.err
    assert (folder / "experiment.yaml").read_text() == "mine"
