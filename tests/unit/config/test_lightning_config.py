"""A task that uses the module's own optimizer leaves the config's section `optimizer` without effect."""

from typing import Any

import pytest

from paceline.cluster.train import record_params
from paceline.config.derived import derive
from paceline.config.experiment import validate
from paceline.config.ignored import ignored_settings
from paceline.config.loading import missing_modules
from support.configs import TREE, problems_of

PATHS = ["paceline.adapters:LightningTask", "paceline.adapters.lightning:LightningTask"]
RATES = {"optimizer.lr": [0.1, 0.2]}


def tree_of(own: bool | None = True, path: str = PATHS[0], **sections: Any) -> dict[str, Any]:
    return {**TREE, "task": {"path": path, "args": {"configure_optimizers": own}}, **sections}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("axis", ["optimizer.lr", "optimizer.name", "optimizer"])
def test_a_sweep_of_the_unused_optimizer_is_refused(axis: str, path: str) -> None:
    values = {**RATES, "optimizer.name": ["sgd", "adamw"], "optimizer": [{"name": "sgd"}]}[axis]
    (problem,) = problems_of(validate, tree_of(path=path, sweep={"space": {axis: values}}))
    assert (problem.code, problem.key) == ("contradiction", f"sweep.space.{axis}")
    assert "model.args.lr" in problem.hint


@pytest.mark.parametrize(
    ("own", "more"), [(False, {}), (None, {}), (True, {"task.args.configure_optimizers": [True, False]})]
)
def test_an_optimizer_that_is_or_may_be_used_is_swept(own: bool | None, more: dict[str, Any]) -> None:
    assert validate(tree_of(own, sweep={"space": {**RATES, **more}})).sweep is not None


@pytest.mark.parametrize(
    ("own", "optimizer", "warned"),
    [
        (True, {"name": "sgd", "lr": 5.0}, True),
        (True, {"name": "adamw"}, True),
        (True, {"name": "sgd", "lr": 0.1}, False),
        (False, {"name": "adamw"}, False),
        (None, {"name": "adamw"}, False),
    ],
)
def test_an_unused_optimizer_is_warned_of(own: bool | None, optimizer: dict[str, Any], warned: bool) -> None:
    config = validate(tree_of(own, optimizer=optimizer))
    assert [text.partition(":")[0] for text in ignored_settings(config)] == ["optimizer"] * warned
    assert any("[no-effect]" in text for text in derive(config, None).warnings) == warned


@pytest.mark.parametrize("own", [True, False, None])
def test_the_record_has_no_learning_rate_that_is_not_used(own: bool | None) -> None:
    config = validate(tree_of(own))
    derived = derive(config, None)
    params = record_params(config, derived)
    assert (derived.lr is None) == (own is True)
    assert derived.lr_rule == ""
    assert any(key.startswith("optimizer.") for key in params) == (own is not True)
    assert ("learning rate", "0.1") not in derived.lines() or own is not True


@pytest.mark.parametrize("module", ["paceline", "paceline.tasks"])
def test_a_wrong_path_of_the_task_is_found_without_running_it(module: str) -> None:
    (problem,) = missing_modules({"task": {"path": f"{module}:LightningTask"}})
    assert (problem.code, problem.key) == ("import", "task.path")
    assert PATHS[0] in problem.hint


def test_names_that_paceline_imports_late_are_found() -> None:
    assert missing_modules({"task": {"path": "paceline:Task"}, "model": {"path": "paceline.models:base"}}) == []
    assert [each.key for each in missing_modules({"task": {"path": "paceline:Tusk"}})] == ["task.path"]
