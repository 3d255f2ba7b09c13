"""`extends`: one file that changes another, and configs that are mappings."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline.config.loading import load_config
from support.configs import problems_of

BASE = """\
name: base
model: {name: cnn, num_classes: 10}
data: {name: mnist5k, global_batch_size: 64, num_workers: 1}
optimizer: {name: sgd, lr: 0.1, momentum: 0.9}
trainer: {epochs: 3, precision: bf16-mixed}
callbacks: [{name: lr_monitor}]
sweep: {space: {optimizer.lr: {uniform: [0.1, 0.2]}}, search: random, num_samples: 2}
"""


def written(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_mappings_are_merged_and_everything_else_is_replaced(tmp_path: Path) -> None:
    child = """\
extends: base.yaml
name: child
data: {global_batch_size: 32}
trainer: {precision: 32-true}
callbacks: [{name: ema, decay: 0.9}]
sweep: {space: {optimizer.lr: {loguniform: [0.01, 0.1]}, seed: [0, 1]}}
"""
    written(tmp_path, base=BASE, child=child)
    config = load_config(tmp_path / "child.yaml")
    assert (config.name, config.trainer.epochs, config.trainer.precision) == ("child", 3, "32-true")
    assert (config.data.global_batch_size, config.data.num_workers) == (32, 1)
    assert [each.describe() for each in config.callbacks] == ["ema"]
    assert config.sweep is not None
    assert set(config.sweep.space) == {"optimizer.lr", "seed"}
    assert config.optimizer.model_dump()["momentum"] == 0.9


def test_another_component_keeps_what_it_has_fields_for(tmp_path: Path) -> None:
    child = "extends: base.yaml\nmodel: {name: mlp}\ndata: {path: 'torch:rand'}\noptimizer: {name: adamw}\n"
    written(tmp_path, base=BASE, child=child)
    with pytest.warns(UserWarning, match="momentum"):
        config = load_config(tmp_path / "child.yaml", {"sweep": None})
    assert config.model.describe() == "mlp"
    assert config.data.describe() == "torch:rand"
    assert (config.data.global_batch_size, config.optimizer.lr) == (64, 0.1)


def test_the_arguments_of_another_function_go(tmp_path: Path) -> None:
    args = "{in_features: 2, out_features: 3}"
    base = BASE.replace("{name: cnn, num_classes: 10}", f"{{path: 'torch.nn:Linear', args: {args}}}")
    child = "extends: base.yaml\nmodel: {path: 'torch.nn:Dropout', args: {p: 0.1}}\n"
    written(tmp_path, base=base, child=child, same="extends: base.yaml\nmodel: {args: {out_features: 5}}\n")
    assert load_config(tmp_path / "child.yaml").model.model_dump()["args"] == {"p": 0.1}
    assert load_config(tmp_path / "same.yaml").model.model_dump()["args"] == {"in_features": 2, "out_features": 5}


def test_a_chain_of_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    written(tmp_path, base=BASE, middle="extends: base.yaml\nname: middle\nseed: 5\n")
    written(tmp_path / "inner", child="extends: ../middle.yaml\nname: child\n")
    config = load_config(tmp_path / "inner" / "child.yaml", {"trainer.epochs": 9})
    assert (config.name, config.seed, config.trainer.epochs) == ("child", 5, 9)
    assert "extends" not in config.model_dump()


def test_a_problem_is_placed_in_the_file_that_it_is_written_in(tmp_path: Path) -> None:
    written(tmp_path, base=BASE.replace("epochs: 3", "epochs: none"), child="extends: base.yaml\ntrainer: {freez: x}\n")
    found = {problem.key: problem.place for problem in problems_of(load_config, tmp_path / "child.yaml")}
    assert found["trainer.epochs"] == f"{tmp_path / 'base.yaml'}:5:11"
    assert found["trainer.freez"] == f"{tmp_path / 'child.yaml'}:2:11"


@pytest.mark.parametrize(
    ("files", "code", "place"),
    [
        ({"child": "extends: child.yaml\n"}, "extends-cycle", "child.yaml:1:1"),
        (
            {"child": "name: x\nextends: other.yaml\n", "other": "extends: child.yaml\n"},
            "extends-cycle",
            "other.yaml:1:1",
        ),
        ({"child": "extends: bas.yaml\n", "base": BASE}, "no-file", "child.yaml:1:1"),  # its hint names base.yaml
        ({"child": "extends: [base.yaml]\n", "base": BASE}, "wrong-type", "child.yaml:1:1"),
        ({"child": "extends: base.yaml\n", "base": "a: [\n"}, "yaml-syntax", "base.yaml:2:1"),
    ],
)
def test_what_cannot_be_extended_is_an_error(tmp_path: Path, files: dict[str, str], code: str, place: str) -> None:
    written(tmp_path, **files)
    [problem] = problems_of(load_config, tmp_path / "child.yaml")
    assert problem.code == code
    assert problem.place.removeprefix(f"{tmp_path}/") == place
    assert "base.yaml" in problem.hint or code != "no-file"


def test_the_folder_of_the_other_file_is_importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "nets_of_base.py").write_text("def build(): ...\n")
    written(tmp_path / "shared", base="name: x\nmodel: {path: 'nets_of_base:build'}\ndata: {name: mnist5k}\n")
    written(tmp_path, child="extends: shared/base.yaml\ndata: {global_batch_size: 8}\n")
    assert load_config(tmp_path / "child.yaml").model.describe() == "nets_of_base:build"


def test_a_mapping_is_loaded_as_a_file_would_be(tmp_path: Path) -> None:
    tree: dict[str, Any] = yaml.safe_load(BASE)
    written(tmp_path, base=BASE)
    assert load_config(tree) == load_config(tmp_path / "base.yaml")
    assert load_config(tree, {"trainer.epochs": 7}).trainer.epochs == 7
    assert tree == yaml.safe_load(BASE)
    [problem] = problems_of(load_config, {**tree, "trainer": {"epoch": 3}})
    assert (problem.code, problem.key) == ("unknown-key", "trainer.epoch")
