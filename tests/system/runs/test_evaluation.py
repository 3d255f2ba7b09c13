"""`RunResult.evaluate` and `predict` in this process: exact, on any set, into complete files."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from paceline import RunResult, load_run, train
from paceline.cluster.listener import SilentListener
from paceline.errors import ConfigError, EnvironmentFault, PacelineError
from paceline.private_files import make_folder
from paceline.tasks._task import Task
from paceline.tasks.base import TaskOutput
from support.golden import Golden
from support.refusals import refused
from support.runs.trained_runs import CNN, IMAGES, config, swept, trained
from support.toys import CLASSES, FEATURES, Points

SECTIONS: dict[str, Any] = {
    **CNN,
    "metrics": [{"name": "f1"}],
    "callbacks": [{"name": "ema", "decay": 0.7}],
    "checkpoint": {"monitor": "val/loss", "mode": "max", "keep": 1},
}


@pytest.fixture
def home(database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(database.parent)
    return database.parent


def measured(run: RunResult, step: int | None = None) -> dict[str, float]:
    """What was measured on the validation sets, at the end or at a step."""
    if step is None:
        return {key: value for key, value in run.metrics.items() if key.startswith("val/")}
    return {key: value for key, value, at in run.points if key.startswith("val/") and at == step}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def code_of(error: PacelineError) -> str:
    return error.problems[0].code if isinstance(error, ConfigError) else error.code


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))


class Pairs(Points):
    def __getitem__(self, index: int) -> Any:
        features, target, _ = super().__getitem__(index)
        return features.float(), target


class Counted:
    """A metric: the number of samples."""

    samples = 0

    def update(self, predictions: torch.Tensor, targets: torch.Tensor) -> None:
        self.samples += len(predictions)

    def compute(self) -> float:
        return float(self.samples)

    def reset(self) -> None:
        self.samples = 0


def many() -> dict[str, Any]:
    return {"train": Pairs(32), "validation": {"clean": Pairs(13), "small": Pairs(5)}, "test": Pairs(7)}


class Odd(Task):
    """Predicts in the form that `kind` names."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__(model)
        self.kind = kind

    def forward(self, batch: Any) -> TaskOutput:
        features, targets = batch
        logits = self.model(features)
        output = TaskOutput(F.cross_entropy(logits, targets, reduction="sum"), len(targets))
        if not self.training:
            output.predictions = self._predictions(logits.detach())
        return output

    def _predictions(self, logits: torch.Tensor) -> Any:
        if self.kind == "nested":
            return {"scores": logits, "pair": (logits.argmax(1), logits[:, :, None].expand(-1, -1, 2))}
        if self.kind == "padded":
            return torch.arange(len(logits)).repeat(len(logits), 1)
        if self.kind == "flat":
            return logits.flatten()
        if self.kind == "half":
            return logits.bfloat16()
        if self.kind == "broken":
            raise ZeroDivisionError
        return None if self.kind == "none" else "text"


def odd(home: Path, kind: str) -> RunResult:
    """A run of 13 samples in micro-batches of 8, which predicts as `Odd` does."""
    run = config(home, kind, model={"path": net}, data={"path": lambda: (Pairs(16), Pairs(13)), "micro_batch_size": 8})
    started = run.with_overrides({"task": {"path": Odd, "args": {"kind": "none" if kind == "broken" else kind}}})
    return train(started.with_overrides({"trainer.epochs": 1}), listener=SilentListener())


def test_metrics_equal_the_runs_own_and_nothing_changes(home: Path) -> None:
    run = trained(home, "images", **SECTIONS)
    before = contents(run.folder)
    generator = torch.get_rng_state()
    found = load_run("images")
    assert run.evaluate() == found.evaluate() == measured(run)
    # the metric falls, and the largest value was wanted, so that the best checkpoint is the first
    assert found.evaluate(checkpoint="best") == measured(run, 2)
    assert found.evaluate(checkpoint="step-2") == measured(run, 2) != measured(run)
    assert found.evaluate(checkpoint=run.folder / "checkpoints" / "step-6") == measured(run)
    without = run.evaluate(overrides={"callbacks": []})
    assert without["val/loss"] != measured(run)["val/loss"]
    assert contents(run.folder) == before
    assert sorted(os.listdir(run.folder.parent)) == [".lock", run.run_id]
    assert torch.equal(torch.get_rng_state(), generator)


def test_one_worker_evaluates_in_this_process(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(home, "alone", **SECTIONS)

    def refuse(launch: Any) -> Any:
        raise AssertionError("Ray is not needed")

    monkeypatch.setattr("paceline.cluster.evaluation_on_ray.evaluate_on_ray", refuse)
    assert run.evaluate(overrides={"scaling.num_workers": 1}) == measured(run)
    with pytest.raises(AssertionError):
        run.evaluate(overrides={"scaling.num_workers": 2})


def test_nothing_is_written_beside_a_run_of_which_one_may_only_read(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(home, "archived", **SECTIONS)
    made: list[Path] = []

    def noted(path: Path) -> None:
        made.append(path)
        make_folder(path)

    monkeypatch.setattr("paceline.cluster.evaluation.make_folder", noted)
    run.predict()
    run.predict(output=tmp_path / "own" / "predictions.safetensors")
    assert len(made) == 2
    assert not any(folder.is_relative_to(run.folder.parent) for folder in made)
    assert made[1].is_relative_to(tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["predictions.safetensors"]


def test_weights_of_the_optimizer_are_those_of_evaluation(home: Path) -> None:
    optimizer = {"name": "schedule_free_adamw", "lr": 0.05}
    run = trained(home, "free", **{**CNN, "optimizer": optimizer})
    assert run.evaluate() == measured(run)


def test_a_size_that_was_found_is_used_again(home: Path) -> None:
    run = trained(home, "largest", **{**CNN, "data": {**CNN["data"], "micro_batch_size": "max"}})
    assert run.evaluate() == measured(run)


def test_every_set_of_the_data_has_its_prefix(home: Path) -> None:
    run = train(
        config(home, "sets", model={"path": net}, data={"path": many, "global_batch_size": 16}),
        listener=SilentListener(),
    )
    everything = run.evaluate(["validation", "test", "training"])
    assert {key.rpartition("/")[0] for key in everything} == {"val/clean", "val/small", "test", "train"}
    assert {key: value for key, value in everything.items() if key.startswith("val/")} == measured(run)
    assert run.evaluate("small") == run.evaluate("validation/small") != {}
    assert run.evaluate("test")["test/accuracy"] * 7 == pytest.approx(round(everything["test/accuracy"] * 7))
    assert len(run.predict("test")["predictions"]) == 7
    for name in ("validation", "tset"):
        assert code_of(refused(PacelineError, lambda name=name: run.predict(name))) == {"tset": "unknown-set"}.get(
            name, "several-sets"
        )


def test_other_data_is_used_where_an_override_says_so(home: Path) -> None:
    run = trained(home, "images", **SECTIONS)
    fewer = run.evaluate(overrides={"data.num_validation_samples": 8})
    predictions = run.predict()
    hits = (predictions["predictions"] == predictions["targets"])[:8]
    assert fewer["val/accuracy"] == hits.double().mean().item()
    assert fewer == run.evaluate(overrides=["data.num_validation_samples=8"])
    assert run.evaluate(overrides={"data": {**IMAGES, "num_validation_samples": 8}}) == pytest.approx(fewer)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"overrides": ["model.width=5"]}, "weights-mismatch"),
        ({"overrides": ["model.widht=5"]}, "unknown-key"),
        ({"overrides": ["optimizer.lr=0.1"]}, "no-effect"),
        ({"overrides": ["data.global_batch_size=8"]}, "no-effect"),
        ({"overrides": ["model.weights=other"]}, "no-effect"),
        ({"overrides": ["callbacks=[{name: ema}, {name: ema}]"]}, "no-callback-state"),
        ({"data": (Pairs(4), [])}, "empty-set"),
        ({"sets": "test"}, "unknown-set"),
        ({"sets": []}, "no-set"),
        ({"checkpoint": "best"}, "no-monitor"),
        ({"checkpoint": "step-1"}, "no-checkpoint"),
        ({"checkpoint": "elsewhere"}, "no-checkpoint"),
        ({"checkpoint": ""}, "no-checkpoint"),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_what_cannot_be_evaluated_is_refused(
    images: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], code: str, golden: Golden
) -> None:
    monkeypatch.chdir(images)
    run = load_run("images")
    error = refused(PacelineError, lambda: run.evaluate(**given))
    assert code_of(error) == code
    golden(str(error).replace(str(images), "<home>").replace(run.run_id, "<id>"))


def test_a_damaged_checkpoint_is_refused_and_left_alone(home: Path) -> None:
    run = trained(home, "images", **CNN)
    file = Path(run.checkpoint) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert code_of(refused(PacelineError, run.evaluate)) == "broken-checkpoint"
    assert Path(run.checkpoint).is_dir()


def test_python_objects_are_given_again_in_another_program(home: Path) -> None:
    sections = {"data": {"name": "synthetic", "global_batch_size": 16}, "model": CNN["model"], "trainer": {"epochs": 1}}
    objects = {"model": lambda: net(), "data": (Pairs(32), Pairs(13))}
    counts = {"samples": lambda: Counted()}
    run = train(config(home, "objects", **sections), **objects, metrics=counts, listener=SilentListener())
    assert run.evaluate() == measured(run)
    assert run.metrics["val/samples"] == 13
    found = load_run("objects")
    for given in ({}, {"model": objects["model"]}, objects):
        assert refused(PacelineError, lambda given=given: found.evaluate(**given)).code == "needs-object"
    assert found.evaluate(**objects, metrics=counts) == measured(run)
    assert "val/samples" not in found.evaluate(**objects, metrics={})
    assert len(found.predict(**objects)["predictions"]) == 13


def test_a_trial_is_evaluated_as_a_run(home: Path) -> None:
    sweep = swept(home, "sweep", {"0000": 0.01, "0001": 0.05}, **{**CNN, "trainer": {"epochs": 1}})
    trial = load_run(f"sweep/{sweep.run_id}/0001")
    assert trial.evaluate() == measured(trial)


@pytest.mark.parametrize("ending", ["safetensors", "parquet"])
def test_files_hold_the_predictions_in_order(home: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.engine.predictions.PART_BYTES", 1)  # a part for each micro-batch
    run = odd(home, "nested")
    tensors = run.predict()
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        "predictions.scores": [13, 3],
        "predictions.pair.0": [13],
        "predictions.pair.1": [13, 3, 2],
    }
    scores = run.load_model()(torch.stack([Pairs(13)[index][0] for index in range(13)]))
    assert torch.allclose(tensors["predictions.scores"], scores, atol=1e-6)
    file = home / "new" / f"out.{ending}"
    assert run.predict(output=file) == {}
    if ending == "safetensors":
        found = load_file(file)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    else:
        table = pd.read_parquet(file)
        assert list(table) == ["index", "predictions.pair.0", "predictions.pair.1", "predictions.scores"]
        assert table["index"].tolist() == list(range(13))
        for name, tensor in tensors.items():
            column = [torch.tensor(_plain(value), dtype=tensor.dtype) for value in table[name]]
            assert torch.equal(torch.stack(column), tensor)
    assert os.listdir(home / "new") == [file.name]


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if hasattr(value, "__len__") else value


def test_samples_of_different_shapes_fit_into_parquet_alone(home: Path, golden: Golden) -> None:
    run = odd(home, "padded")  # each sample is as long as its micro-batch: 8, then 5
    run.predict(output="padded.parquet")
    lengths = [len(value) for value in pd.read_parquet("padded.parquet")["predictions"]]
    assert lengths == [8] * 8 + [5] * 5
    error = refused(PacelineError, lambda: run.predict(output="padded.safetensors"))
    assert error.code == "predictions-shape"
    golden(str(error))


def test_16_bit_floats_keep_their_type_but_in_parquet(home: Path) -> None:
    run = odd(home, "half")
    run.predict(output="half.safetensors")
    assert load_file("half.safetensors")["predictions"].dtype == torch.bfloat16
    run.predict(output="half.parquet")
    assert pd.read_parquet("half.parquet")["predictions"][0].dtype == "float32"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("none", "no-predictions"),
        ("flat", "predictions-not-per-sample"),
        ("text", "predictions-not-tensors"),
        ("broken", "run-failed"),
    ],
)
def test_a_failure_leaves_the_file_that_was_there(home: Path, kind: str, code: str, golden: Golden) -> None:
    run = odd(home, kind)
    (home / "out.safetensors").write_text("as before")
    overrides = {"task.args.kind": "broken"} if kind == "broken" else {}
    error = refused(PacelineError, lambda: run.predict(output="out.safetensors", overrides=overrides))
    assert (error.code, error.exit_code) == (code, 1)
    assert (home / "out.safetensors").read_text() == "as before"
    assert [path.name for path in home.glob("*out*")] == ["out.safetensors"]
    assert sorted(os.listdir(run.folder.parent)) == [".lock", run.run_id]
    golden(str(error))


@pytest.mark.parametrize("ending", ["safetensors", pytest.param("parquet", marks=pytest.mark.slow)])
def test_on_a_full_disk_nothing_is_left(images: Path, disk_of: Callable[[str], Path], ending: str) -> None:
    disk = disk_of("8k")
    run = load_run(images / "runs" / "images")
    overrides = {"data.num_validation_samples": 4096}
    error = refused(PacelineError, lambda: run.predict(output=disk / f"out.{ending}", overrides=overrides))
    assert isinstance(error, EnvironmentFault)
    assert "No space left on device" in str(error)
    assert os.listdir(disk) == []


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("out.csv", "unknown-ending"),
        ("s3://bucket/out.parquet", "output-is-an-address"),
        ("folder.parquet", "output-not-usable"),
        ("file/out.parquet", "output-not-usable"),
    ],
)
def test_a_place_that_cannot_be_written_is_found_first(home: Path, images: Path, output: str, code: str) -> None:
    run = load_run(images / "runs" / "images")
    (home / "folder.parquet").mkdir()
    (home / "file").touch()
    error = refused(PacelineError, lambda: run.predict("no-such-set", output=output))
    assert code_of(error) == code
    assert sorted(os.listdir(run.folder.parent)) == [".lock", run.run_id]
