"""Trained runs: what they record, export of the best checkpoint, and runs that are opened again."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from paceline import RunResult, compare, load_config, load_run, load_sweep
from paceline.cli import run as command
from paceline.engine.manifest import hash_file
from paceline.engine.rebuilding import rebuild
from paceline.engine.state import weights_sha256
from paceline.errors import ConfigError, EnvironmentFault, PacelineError, UnusableCode
from paceline.runs.choosing import choose
from paceline.runs.export import Exported, export
from paceline.runs.finding import find_run
from paceline.runs.tracing import save_program
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.tracking import metrics, mlflow_connection
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RECORD_FILE
from support.golden import Golden
from support.runs import user_models
from support.runs.declared_names import undeclared, written
from support.runs.trained_runs import CNN, swept, trained
from support.toys import toy_config

CANARY = "canary-S3cr3t"


@pytest.fixture(scope="module")
def made(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with an MLflow store, for all runs of this file."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(prepared_database, home / "mlflow.db")
    shutil.copy(user_models.__file__, home / "models_of_export.py")
    return home


@pytest.fixture
def home(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the folder to work in, with its modules importable."""
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(made)
    return made


@pytest.fixture(scope="module")
def cnn(made: Path) -> RunResult:
    return trained(made, "cnn", **CNN)


@pytest.fixture(scope="module")
def sweep(made: Path) -> SweepFolder:
    return swept(made, "lrs", {"0000": 0.001, "0001": 0.05}, **CNN)


@pytest.fixture(scope="module")
def gpt(made: Path) -> RunResult:
    (made / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    model = {"name": "gpt", "context_length": 16, "num_layers": 1, "num_heads": 2, "embedding_dim": 16}
    data = {"name": "text_file", "file": str(made / "text.txt"), "context_length": 16, "global_batch_size": 64}
    return trained(made, "gpt", model=model, data=data, task={"name": "language_modeling"}, trainer={"epochs": 1})


@pytest.fixture(scope="module")
def own_net(made: Path) -> RunResult:
    """A custom model and data, in float64 and without redundant biases."""
    sections = {
        "model": {"path": "models_of_export:net", "args": {"width": 6}},
        "data": {"path": "models_of_export:images", "micro_batch_size": 10},
        "trainer": {"epochs": 1, "precision": "64-true", "remove_redundant_bias": True},
    }
    sys.path.insert(0, str(made))
    try:
        return trained(made, "own", **sections)
    finally:
        sys.path.remove(str(made))


def changed(result: RunResult, place: Path, **sections: Any) -> Path:
    """A copy of a run's folder, whose config has other sections; returns it."""
    folder = place / result.name / result.run_id
    shutil.copytree(result.folder, folder)
    content = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**content, "config": {**content["config"], **sections}}))
    return folder


def code_of(caught: pytest.ExceptionInfo[PacelineError]) -> str:
    return caught.value.code


# The checkpoint that is exported


@pytest.mark.parametrize(
    ("name", "values", "objective", "step"),
    [
        ("lowest", (0.3, 0.1, 0.2), ("val/loss", "min"), 4),
        ("highest", (0.3, 0.1, 0.2), ("val/loss", "max"), 2),
        ("not finite", (float("nan"), 0.1, 0.1), ("val/loss", "min"), 4),
        ("unknown", (), ("val/loss", "min"), 6),
    ],
)
def test_the_best_checkpoint_is_the_one_with_the_best_value_at_its_own_step(
    cnn: RunResult, name: str, values: tuple[float, ...], objective: Any, step: int, golden: Golden
) -> None:
    assert sorted(path.name for path in (cnn.folder / "checkpoints").glob("step-*")) == ["step-2", "step-4", "step-6"]
    # a value between the checkpoints is none of theirs, however good
    between = [MetricPoint("val/loss", 0.0 if objective[1] == "min" else 9.0, 3, 1)] if values else []
    points = [MetricPoint("val/loss", value, at, 1) for value, at in zip(values, (2, 4, 6), strict=False)] + between
    chosen = choose(find_run(cnn.folder), points, objective)
    assert chosen.step == step
    golden(chosen.why)


def test_the_metric_of_the_checkpoints_is_the_default(cnn: RunResult, home: Path, tmp_path: Path) -> None:
    copy = changed(cnn, tmp_path, checkpoint={"monitor": "val/loss", "mode": "max"})
    losses = {step: value for key, value, step in cnn.points if key == "val/loss"}
    assert export(copy, output=tmp_path / "out").step == max(losses, key=lambda step: losses[step])
    lowest = export(copy, output=tmp_path / "other", metric="val/loss")
    assert lowest.step == min(losses, key=lambda step: losses[step])


def test_a_better_value_whose_checkpoint_is_not_kept_is_reported(cnn: RunResult, golden: Golden) -> None:
    found, objective = find_run(cnn.folder), ("val/accuracy", "max")

    def chosen(values: dict[int, float]) -> Any:
        return choose(found, [MetricPoint("val/accuracy", value, step, 1) for step, value in values.items()], objective)  # type: ignore[arg-type]

    missed = chosen({1: 0.97, 2: 0.9, 3: 0.984, 4: 0.95, 5: float("inf"), 6: 0.94})
    assert missed.step == 4
    golden(missed.missed, "missed")
    for better in ({}, {3: 0.95}, {5: float("nan")}):
        assert chosen({4: 0.95, 6: 0.9, **better}).missed == ""
    newest = chosen({3: 0.9})  # measured at no checkpoint
    assert newest.step == 6
    golden(newest.why, "newest")


def test_an_unknown_metric_is_refused_with_the_known_ones(cnn: RunResult, home: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        export("cnn", metric="val/f1")
    assert code_of(caught) == "unknown-metric"
    assert {"val/accuracy", "val/loss"} <= set(caught.value.fields["known"])  # type: ignore[call-overload]


def test_a_broken_checkpoint_is_passed_over(cnn: RunResult, home: Path, tmp_path: Path, golden: Golden) -> None:
    copy = changed(cnn, tmp_path)
    weights = copy / "checkpoints" / "step-6" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    exported = export(copy, output=tmp_path / "out")
    assert exported.step == 4
    golden("\n".join(exported.warnings))
    assert weights.exists()  # an export changes nothing of the run
    for step in (2, 4):
        (copy / "checkpoints" / f"step-{step}" / "MANIFEST.json").unlink()
    with pytest.raises(EnvironmentFault) as caught:
        export(copy, output=tmp_path / "other")
    assert code_of(caught) == "no-checkpoint"
    assert "step-6" in str(caught.value)


def test_of_a_sweep_the_best_trial_is_exported(sweep: SweepFolder, home: Path, tmp_path: Path) -> None:
    exported = export("lrs", output=tmp_path / "out")
    other = export(f"lrs/{sweep.run_id}/0000", output=tmp_path / "other")
    assert (exported.run.kind, exported.run.id, other.run.id) == ("trial", "0001", "0000")
    assert other.metrics["val/loss"] > exported.metrics["val/loss"]
    config = load_config(tmp_path / "out" / "config.yaml")
    assert (config.sweep, config.model_dump()["optimizer"]["lr"]) == (None, 0.05)
    copy = tmp_path / "lrs" / sweep.run_id
    shutil.copytree(sweep.path, copy)
    (copy / "log.jsonl").write_text("")
    with pytest.raises(EnvironmentFault) as caught:
        export(copy)
    assert (code_of(caught), caught.value.fields) == ("no-finished-trial", {"metric": "val/loss"})


def test_a_name_of_a_run_and_a_sweep_is_exported_with_a_warning(
    cnn: RunResult, sweep: SweepFolder, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep was made after the run."""
    shutil.copytree(cnn.folder, tmp_path / "runs" / "both" / "20200101-000000-aaaaaa")
    shutil.copytree(sweep.path, tmp_path / "runs" / "both" / sweep.run_id)
    exported = export("both", output=tmp_path / "out", storage=tmp_path / "runs")
    assert exported.run.kind == "trial"
    (warning,) = exported.warnings
    assert "both/20200101-000000-aaaaaa" in warning
    assert warning.endswith("[runs-and-sweeps]")
    assert not export("both/20200101-000000-aaaaaa", output=tmp_path / "run", storage=tmp_path / "runs").warnings
    monkeypatch.chdir(tmp_path)
    assert load_run("both").run_id == "20200101-000000-aaaaaa"
    assert load_sweep("both").sweep_id == sweep.run_id
    assert len(compare("both", f"both/{sweep.run_id}/0001").groups) == 2


# The weights


def test_the_exported_weights_are_those_of_the_checkpoint_and_stand_by_themselves(
    cnn: RunResult, home: Path, tmp_path: Path
) -> None:
    exported, folder = export("cnn", output=tmp_path / "out"), tmp_path / "out"
    names = ["README.md", "config.yaml", "export.json", "model.safetensors"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert exported.step == 6
    assert weights_sha256(load_file(folder / "model.safetensors")) == cnn.weights_sha256
    told = json.loads((folder / "export.json").read_text())
    assert told["files"]["model.safetensors"]["sha256"] == hash_file(folder / "model.safetensors").sha256
    assert told["metrics"]["val/loss"] == cnn.metrics["val/loss"]
    assert told["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert not any(key.startswith(("system/", "cost/")) for key in told["metrics"])
    config = load_config(folder / "config.yaml")
    assert config == cnn.config
    model, images = rebuild(config, folder), torch.randn(3, 1, 8, 8)
    assert torch.equal(model(images), cnn.load_model()(images))
    assert torch.equal(model(images), cnn.load_model(folder)(images))


def test_the_same_export_again_is_the_same_and_another_one_is_refused(
    cnn: RunResult, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = export("cnn", output=out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert export("cnn", output=out) == first
    for held, options in ((before, {"mode": "max"}), ({"export.json": b"[1]"}, {}), ({"config.yaml": b"mine"}, {})):
        shutil.rmtree(out)
        out.mkdir()
        for name, data in held.items():
            (out / name).write_bytes(data)
        with pytest.raises(EnvironmentFault) as caught:
            export("cnn", output=out, metric="val/loss", **options)  # type: ignore[arg-type]
        assert (code_of(caught), caught.value.fields) == ("output-not-usable", {"path": out})
        assert {path.name: path.read_bytes() for path in out.iterdir()} == held


@pytest.mark.parametrize("moved", range(5))
def test_an_export_that_was_killed_is_made_again(
    cnn: RunResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: int
) -> None:
    """It dies after it has moved so many of its four files into place."""
    out, whole = tmp_path / "out", export("cnn", output=tmp_path / "whole")

    class Killed(BaseException):
        pass

    def replace(path: Path, target: Path) -> Path:
        if len(list(out.glob("[!.]*"))) == moved:
            raise Killed
        return rename(path, target)

    rename = Path.replace
    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(Path, "replace", replace)
        patch.setattr("paceline.runs.export.shutil.rmtree", lambda *given, **named: None)
        export("cnn", output=out)
    out.mkdir(exist_ok=True)
    (out / ".export-left").mkdir(exist_ok=True)
    assert len(list(out.glob("[!.]*"))) == moved
    again = export("cnn", output=out)
    assert (again.sha256, again.step) == (whole.sha256, whole.step)
    assert {path.name for path in out.iterdir()} == {path.name for path in whole.folder.iterdir()}


def test_a_secret_in_the_config_is_not_exported(own_net: RunResult, home: Path, tmp_path: Path) -> None:
    data = {"path": "models_of_export:images_of", "args": {"api_key": CANARY}, "micro_batch_size": 10}
    exported = export(changed(own_net, tmp_path / "secret", data=data), output=tmp_path / "out")
    assert len(exported.warnings) == 1
    for file in (tmp_path / "out").iterdir():
        assert CANARY.encode() not in file.read_bytes()
    assert load_config(tmp_path / "out" / "config.yaml").data.args == {"api_key": "***"}  # type: ignore[union-attr]


def test_mlflow_has_the_checkpoints_and_the_data_of_a_run(cnn: RunResult, home: Path) -> None:
    client = mlflow_connection.connect(f"sqlite:///{home / 'mlflow.db'}")
    run = client.get_run(str(cnn.mlflow_run_id))
    models = [m for m in client.search_logged_models([run.info.experiment_id]) if m.source_run_id == run.info.run_id]
    uris = {int(m.tags[metrics.CHECKPOINT_STEP]): m.tags[metrics.CHECKPOINT_URI] for m in models}
    assert (sorted(uris), uris[6]) == ([2, 4, 6], Path(cnn.checkpoint).as_uri())
    assert {tag.value for each in run.inputs.dataset_inputs for tag in each.tags} == {"training", "validation"}
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} >= {"environment.txt", "config.yaml"}


def test_whatever_a_run_records_has_a_declared_name(cnn: RunResult) -> None:
    """Of the names that `tracking.metrics` declares; tests/system/sweeps looks at those of a sweep."""
    keys = {key for _, key in written(cnn.folder)}
    assert {metrics.TRAIN_LOSS, metrics.VAL_LOSS, metrics.COMMAND, metrics.NOTE, metrics.SPEED_STAMP} <= keys
    assert {"cost/core_seconds", "system/cpu_utilization_percentage"} <= keys
    assert undeclared(cnn.folder) == set()


@pytest.mark.parametrize(("kind", "key"), [("tag", "paceline.new"), ("metric", "speed")])
def test_an_undeclared_name_is_seen(tmp_path: Path, kind: str, key: str) -> None:
    (tmp_path / RECORD_FILE).write_text(json.dumps({"tags": {}}))
    point = {"key": key, "value": 1.0, "step": 1, "timestamp_ms": 1}
    entry = ("point", point) if kind == "metric" else ("tags", {"tags": {key: "x"}})
    Journal(tmp_path / JOURNAL_FILE).append([entry])
    assert undeclared(tmp_path) == {(kind, key)}


# The traced model


def check_program(result: RunResult, exported: Exported, inputs: Any) -> dict[str, Any]:
    """The traced model gives what the rebuilt one gives, for batch sizes that it was not traced with."""
    assert exported.file.name == "model.pt2"
    program, model = torch.export.load(exported.file).module(), result.load_model()
    for size in (1, 2, 11):
        batch = inputs(size)
        torch.testing.assert_close(program(batch), model(batch), rtol=1e-4, atol=1e-5)
    return dict(json.loads((exported.folder / "export.json").read_text()))


def test_a_traced_language_model_takes_any_batch(gpt: RunResult, home: Path, tmp_path: Path) -> None:
    check_program(gpt, export("gpt", "pt2", tmp_path / "out"), lambda size: torch.randint(0, 60, (size, 16)))


def test_a_custom_model_in_float64_without_redundant_biases_is_traced(
    own_net: RunResult, home: Path, tmp_path: Path
) -> None:
    assert "convolution.bias" not in load_file(Path(own_net.checkpoint) / "model.safetensors")
    exported = export("own", "pt2", tmp_path / "out")
    told = check_program(own_net, exported, lambda size: torch.randn(size, 1, 8, 8, dtype=torch.float64))
    assert told["checked"] == {"batch_sizes": [1, 5], "tolerances": {"float64": [1e-7, 1e-9]}}
    assert told["imports"] == {"model": "models_of_export:net", "data": "models_of_export:images"}


class ByWidth(nn.Module):
    """Looks a factor up by a size, which works for fixed sizes only."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(1, 2)) * {8: self.scale}[images.shape[3]]


@pytest.mark.parametrize(("build", "is_free"), [(user_models.net, True), (ByWidth, False)])
def test_image_sizes_stay_free_where_the_model_can_be_traced_so(build: Any, is_free: bool, tmp_path: Path) -> None:
    sections = {"model": {"path": build}, "data": {"path": user_models.images}, "task": {"name": "classification"}}
    model = build().eval()
    save_program(toy_config(**sections, trainer__precision="32-true"), model, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    for images in (torch.randn(3, 1, 8, 8), torch.randn(2, 1, 11, 9)):
        if is_free or images.shape[3] == 8:
            torch.testing.assert_close(program(images), model(images))
        else:
            with pytest.raises(AssertionError):
                program(images)


def test_what_cannot_be_traced_or_saved_is_refused(
    own_net: RunResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = changed(own_net, tmp_path / "branching", model={"path": "models_of_export:branching"})
    with pytest.raises(UnusableCode) as caught:
        export(folder, "pt2", tmp_path / "out" / "deep", trust=True)
    assert code_of(caught) == "not-traceable"
    assert not (tmp_path / "out").exists(), "a folder that was made for nothing is removed"
    assert export(folder, output=tmp_path / "out").step == 4

    def refuses(*_: Any) -> None:
        raise ValueError("no bytes for this")

    monkeypatch.setattr(torch.export, "save", refuses)
    with pytest.raises(UnusableCode, match="no bytes for this") as caught:
        export("own", "pt2", tmp_path / "other")
    assert code_of(caught) == "trace-not-saved"


# Disks and files


@pytest.mark.parametrize("format", ["safetensors", pytest.param("pt2", marks=pytest.mark.slow)])
def test_on_a_full_disk_nothing_is_left(
    cnn: RunResult, home: Path, disk_of: Callable[[str], Path], format: Any
) -> None:
    tiny_disk = disk_of("8k")
    with pytest.raises(EnvironmentFault, match="No space left on device") as caught:
        export("cnn", format, tiny_disk / "out")
    assert code_of(caught) == "output-not-written"
    assert list(tiny_disk.iterdir()) == []


# Code of somebody else


@pytest.fixture
def foreign(own_net: RunResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of somebody else's run, whose config names code of theirs, apart from the working folder."""
    data = {"path": "os:makedirs", "args": {"name": str(tmp_path / "called")}}
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return changed(own_net, tmp_path / "theirs", data=data)


def test_code_that_a_foreign_config_names_is_not_called(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as caught:
        export(foreign, "pt2", tmp_path / "out")
    (problem,) = caught.value.problems
    assert problem.code == "trust"
    assert all(path in problem.reason for path in ("models_of_export:net", "os:makedirs"))
    export(foreign, "safetensors", tmp_path / "weights")  # which calls nothing
    assert not (tmp_path / "called").exists()
    with pytest.raises(EnvironmentFault) as refused:
        export(foreign, "pt2", tmp_path / "out", trust=True)
    assert code_of(refused) == "no-data"
    (tmp_path / "called").rmdir()
    monkeypatch.chdir(tmp_path)  # a run in the working folder is one's own
    with pytest.raises(EnvironmentFault):
        export(foreign, "pt2", tmp_path / "out")
    assert (tmp_path / "called").exists()


# The model registry


def versions_of(home: Path, name: str) -> list[Any]:
    """The versions of a registered model."""
    client = mlflow_connection.connect(f"sqlite:///{home / 'mlflow.db'}")
    return sorted(client.search_model_versions(f"name = '{name}'"), key=lambda each: int(each.version))


def test_an_export_is_registered_once_with_what_identifies_it(cnn: RunResult, home: Path, tmp_path: Path) -> None:
    first = export("cnn", output=tmp_path / "a", register="digits")
    again = export("cnn", output=tmp_path / "b", register="digits")
    assert first.registered == {"name": "digits", "version": 1, "is_new": True, "url": None}
    assert again.registered == {**first.registered, "is_new": False}
    (version,) = versions_of(home, "digits")
    assert version.run_id == cnn.mlflow_run_id
    assert (version.tags[metrics.CHECKPOINT_SHA256], version.tags[metrics.CHECKPOINT_STEP]) == (first.sha256, "6")
    client = mlflow_connection.connect(f"sqlite:///{home / 'mlflow.db'}")
    uri = client.get_model_version_download_uri("digits", "1")
    assert uri == f"runs:/{cnn.mlflow_run_id}/exported/safetensors-step-6"
    (tmp_path / "back").mkdir()
    place = client.download_artifacts(str(cnn.mlflow_run_id), "exported/safetensors-step-6", str(tmp_path / "back"))
    assert hash_file(Path(place) / "model.safetensors").sha256 == first.sha256


@pytest.mark.parametrize("format", ["safetensors", "pt2"])
def test_the_lines_that_are_shown_load_what_is_registered(
    cnn: RunResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    import mlflow
    import safetensors.torch

    told: list[str] = []
    exported = export("cnn", format, tmp_path / "out", register=f"shown {format}", tell=told.append)
    assert len(told) == 1 + (format == "pt2")  # tracing, registering
    rows = [text for _, text in exported.rows()][-2:]
    assert list(exported.loading) == rows
    description = versions_of(home, f"shown {format}")[0].description
    assert all(f"    {line}\n" in description for line in rows)
    blocks = (tmp_path / "out" / "README.md").read_text().split("```python\n")[1:]
    code = "".join(block.partition("```")[0] for block in blocks)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    mlflow.set_tracking_uri(None)
    found: dict[str, Any] = {"mlflow": mlflow, "safetensors": safetensors, "torch": torch}
    exec("\n".join(rows), found)
    beside: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path / "out")
    exec(code, beside)
    images = torch.randn(2, 1, 8, 8)
    expected = cnn.load_model()(images)
    assert torch.allclose(beside["model"](images), expected, atol=1e-6)
    if format == "pt2":
        assert torch.allclose(found["model"](images), expected, atol=1e-6)
        told_of = check_program(cnn, exported, lambda size: torch.randn(size, 1, 8, 8))
        assert told_of["checked"]["tolerances"] == {"float32": [1e-4, 1e-5]}
    else:
        assert found["weights"].keys() == cnn.load_model().state_dict().keys() == beside["weights"].keys()


def test_a_name_that_mlflow_does_not_take_is_refused_before_anything_is_written(
    cnn: RunResult, home: Path, tmp_path: Path
) -> None:
    """Which names these are: tests/unit/tracking/test_store_address.py."""
    with pytest.raises(ConfigError) as caught:
        export("cnn", output=tmp_path / "out", register="a/b")
    assert [problem.code for problem in caught.value.problems] == ["register"]
    assert not (tmp_path / "out").exists()


def test_a_store_that_does_not_have_the_run_is_left_as_it_is(
    cnn: RunResult, home: Path, prepared_database: Path, tmp_path: Path
) -> None:
    shutil.copy(prepared_database, tmp_path / "other.db")
    with pytest.raises(EnvironmentFault, match="paceline sync"):
        export("cnn", output=tmp_path / "out", register="x", uri=f"sqlite:///{tmp_path / 'other.db'}")
    client = mlflow_connection.connect(f"sqlite:///{tmp_path / 'other.db'}")
    assert [each.name for each in client.search_experiments()] == ["Default"]
    with pytest.raises(EnvironmentFault, match=r"none\.db"):
        export("cnn", output=tmp_path / "out", register="x", uri=f"sqlite:///{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()


# The command


def test_the_command_prints_what_was_written(
    cnn: RunResult, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", "cnn", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["run"], told["format"]) == (6, f"run cnn/{cnn.run_id}", "safetensors")
    assert told["folder"] == str(home / "exports" / f"cnn-{cnn.run_id}-step-6")
    assert Path(told["file"]).is_file()
    assert command(["export", "cnn", "--output", str(tmp_path / "two"), "--metric", "val/loss", "--mode", "max"]) == 0
    assert "step 2: val/loss" in capsys.readouterr().out
    assert command(["export", "nothing"]) == 3
    assert "nothing" in capsys.readouterr().err


# Opened again from Python


def test_a_run_is_what_it_was_after_its_process_is_gone(cnn: RunResult, home: Path) -> None:
    found = load_run("cnn")
    same = ("run_id", "name", "status", "metrics", "steps", "checkpoint", "weights_sha256", "config", "folder")
    same += ("mlflow_url", "mlflow_run_id", "samples_per_second", "review_url", "cost")
    assert {key: getattr(found, key) for key in same} == {key: getattr(cnn, key) for key in same}
    assert found.needs_ui
    assert found.review_url
    assert found.cost
    shown = dict(found.rows())
    assert {"cost", "review"} <= set(shown)
    assert shown == {**dict(cnn.rows()), "wall time": shown["wall time"], "peak memory": shown["peak memory"]}
    assert set(found.points) == set(cnn.points)
    assert found.wall_seconds > 0
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(found.load_model()(images), cnn.load_model()(images))


def test_a_run_that_was_killed_is_opened_with_what_it_has(cnn: RunResult, tmp_path: Path) -> None:
    copy = changed(cnn, tmp_path)
    (copy / "tracking" / "outcome.json").unlink()
    content = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**content, "status": "running"}))
    found = load_run(copy)
    assert (found.status, found.steps) == ("interrupted", 6)
    assert found.metrics["val/loss"] == cnn.metrics["val/loss"]
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(EnvironmentFault):
        load_run(copy).load_model()


def test_a_trial_is_a_run_and_a_sweep_has_its_best_model(sweep: SweepFolder, home: Path, golden: Golden) -> None:
    trial = load_run(f"lrs/{sweep.run_id}/0001")
    assert trial.config.model_dump()["optimizer"]["lr"] == 0.05
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(load_sweep(sweep.path).load_model()(images), trial.load_model()(images))
    for name in ("lrs", f"lrs/{sweep.run_id}", sweep.path):
        assert load_sweep(name).sweep_id == sweep.run_id
    with pytest.raises(EnvironmentFault) as caught:
        load_run("lrs")
    assert (code_of(caught), caught.value.fields) == ("other-kind", {"kind": "sweep"})
    with pytest.raises(EnvironmentFault) as caught:
        load_sweep(f"lrs/{sweep.run_id}/0001")
    assert (code_of(caught), caught.value.fields) == ("other-kind", {"kind": "trial"})
