"""Which run or file `model.weights` means, and that it means the same later."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.initial_weights import adopt_weights, find_weights, pin_weights
from paceline.cluster.run_folder import RunFolder
from paceline.cluster.train import prepare_launch, train
from paceline.cluster.unfinished_runs import ClaimedRun
from paceline.errors import ConfigError, Problem
from support.cluster.coordinators import Events
from support.cluster.local_runs import left_run, local_config, save_checkpoint
from support.golden import Golden
from support.refusals import refused

pytestmark = pytest.mark.usefixtures("work")


def left(run_id: str, status: str = "finished", steps: tuple[int, ...] = (4, 8), name: str = "base") -> Path:
    """A run with checkpoints and a status."""
    folder = RunFolder(Path("runs", name, run_id))
    for step in steps:
        save_checkpoint(folder.checkpoints, step)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write(status=status, config=local_config(name=name).model_dump(mode="json"))
    return folder.path


def found(text: str) -> tuple[str, str]:
    """Place below the working folder, and the pinned name."""
    each = find_weights(text, Path.cwd() / "runs")
    return str(each.place.relative_to(Path.cwd())), each.pinned


def refusal(text: str) -> Problem:
    (problem,) = refused(ConfigError, found, text).problems
    assert problem.key == "model.weights"
    return problem


def test_a_name_is_its_newest_finished_run_and_its_newest_checkpoint() -> None:
    left("1")
    left("2")
    left("3", "interrupted")
    place = "runs/base/2/checkpoints/step-8"
    for text, pinned in [("base", "base/2"), ("base/2", "base/2"), ("runs/base", "runs/base/2")]:
        assert found(text) == (place, pinned)
        assert found(pinned) == (place, pinned)
    assert found(str(Path.cwd() / "runs" / "base"))[0] == place


def test_a_run_that_is_not_finished_is_pinned_to_its_checkpoint() -> None:
    left("3", "interrupted")
    pinned = "base/3/checkpoints/step-8"
    assert found("base/3") == (f"runs/{pinned}", pinned)
    left("3", "interrupted", (12,))
    assert found(pinned) == (f"runs/{pinned}", pinned)


def test_a_broken_checkpoint_is_passed_over_and_a_named_one_is_refused() -> None:
    newest = left("1") / "checkpoints" / "step-8"
    (newest / "model.safetensors").write_bytes(b"x")
    assert found("base")[0] == "runs/base/1/checkpoints/step-4"
    assert refusal(str(newest)).code == "no-weights"


def test_folders_and_files_are_taken_as_they_are() -> None:
    (checkpoint,) = left("1", steps=(4,)).glob("checkpoints/*")
    export = shutil.copytree(checkpoint, "exported")
    (Path(export) / "MANIFEST.json").unlink()
    Path("own.pt").touch()
    for text in ("exported", "own.pt"):
        assert found(text) == (text, text)
    trial = Path("runs", "base", "5", "trials", "0007", "checkpoints")
    shutil.copytree(checkpoint, trial / "step-4")
    assert found("base/5/0007") == (f"{trial}/step-4", "base/5/0007/checkpoints/step-4")


@pytest.mark.parametrize("text", ["bace", "nets/own.pt", "base", "base/4"])
def test_what_is_not_there_is_named_with_what_is(text: str, golden: Golden, work: Path) -> None:
    left("3", "interrupted")
    left("1", name="other")
    (work / "runs" / "base" / "4").mkdir()
    problem = refusal(text)
    assert problem.code == "no-weights"
    golden(str(problem).replace(str(work), "<work>"))


@pytest.mark.parametrize("text", ["tried", "tried/5"])
def test_a_sweep_is_refused_with_a_trial_to_name(text: str) -> None:
    shutil.copytree(left("1") / "checkpoints", Path("runs", "tried", "5", "trials", "0007", "checkpoints"))
    problem = refusal(text)
    assert problem.code == "no-weights"
    assert "tried/5/0007" in problem.hint


def claimed(weights: str, status: str = "", **options: Any) -> ClaimedRun[RunFolder]:
    config = local_config(model__weights=weights)
    return left_run(Path.cwd() / "runs", status, 4 if status else 0, config=config, **options)


def weights_of(run: ClaimedRun[RunFolder]) -> str:
    return str(run.folder.read()["config"]["model"]["weights"])


def test_a_claimed_run_keeps_the_run_that_the_name_meant() -> None:
    left("1")
    first = claimed("base", "running")
    assert weights_of(first) == "base/1"
    left("2")
    shutil.rmtree("runs/base/1")  # no longer needed: the run has a checkpoint of its own
    again = claimed("base")
    assert (again.resumed, again.folder) == (True, first.folder)
    launch = prepare_launch(local_config(model__weights="base"), "continue", None, Events())
    launch.run.release()
    assert launch.config.model.weights == launch.record.params["model.weights"] == "base/1"
    assert [problem.key for problem in refused(ConfigError, claimed, "base/2").problems] == ["model.weights"]
    first.folder.write(status="finished")
    longer = local_config(model__weights="base", trainer__epochs=3)
    extension = left_run(Path.cwd() / "runs", config=longer, intent="extend")
    assert weights_of(extension) == "base/1"
    new = claimed("base", intent="new")
    assert weights_of(new) == "base/2"


def test_weights_that_are_gone_are_missed_by_a_run_that_has_saved_nothing() -> None:
    left("1")
    claimed("base")
    shutil.rmtree("runs/base/1")
    refusal = refused(ConfigError, prepare_launch, local_config(model__weights="base"), "continue", None, Events())
    assert [problem.code for problem in refusal.problems] == ["no-weights"]


def test_missing_weights_end_the_command_before_anything_starts(work: Path) -> None:
    refusal = refused(ConfigError, train, local_config(), init_from="nowhere")
    assert [(each.code, each.key) for each in refusal.problems] == [("no-weights", "model.weights")]
    assert not list((work / "runs").glob("*/2*"))


def test_the_axis_of_a_sweep_is_pinned_and_adopted() -> None:
    left("1")
    left("1", name="other")
    space = {"model.weights": ["base", "other", None]}
    config = local_config(sweep={"space": space})
    assert pin_weights(config) is config  # `train` passes the sweep over
    pinned = pin_weights(config, of_sweep=True)
    assert pinned.sweep is not None
    assert pinned.sweep.space["model.weights"] == ["base/1", "other/1", None]
    left("2")
    again = adopt_weights(config, pinned.model_dump(mode="json"), of_sweep=True)
    assert again == pinned


def test_torchvisions_own_weights_are_neither_run_nor_file() -> None:
    model = {"name": "resnet18", "weights": "IMAGENET1K_V1"}
    config = local_config(model=model)
    assert config.model.initial_weights is None
    assert pin_weights(config) is config
    assert local_config(model={**model, "weights": "base/1"}).model.initial_weights == "base/1"
