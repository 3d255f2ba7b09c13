"""A run's best checkpoint as weights or as a traced model: the right one, whole, usable, and registered once."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline import RunResult, load_config, load_run, load_sweep
from paceline.cli import run as command
from paceline.engine.manifest import hash_file
from paceline.engine.rebuilding import rebuild
from paceline.engine.state import weights_sha256
from paceline.errors import ConfigError, EnvironmentFault, UnusableCode
from paceline.review.choosing import choose
from paceline.review.export import export
from paceline.review.finding import find_run
from paceline.sweeps.folder import SweepFolder
from paceline.tracking import metrics, remote
from paceline.tracking.points import Point
from paceline.tracking.server import free_port, start_server, stop_server, wait_until_up
from review.trained_runs import CNN, swept, trained

HERE = Path(__file__).parent
CANARY = "canary-S3cr3t"


@pytest.fixture(scope="module")
def made(prepared_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with an MLflow store, for all runs of this file."""
    home = tmp_path_factory.mktemp("home")
    shutil.copy(prepared_database, home / "mlflow.db")
    shutil.copy(HERE / "own_models.py", home / "models_of_export.py")
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


@pytest.fixture
def server(prepared_database: Path, tmp_path: Path) -> Iterator[str]:
    """A real MLflow server."""
    (tmp_path / "server").mkdir()
    shutil.copy(prepared_database, tmp_path / "server" / "mlflow.db")
    own = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    port = free_port(17_000 + 40 * own)
    process = start_server(f"sqlite:///{tmp_path / 'server' / 'mlflow.db'}", port, log=tmp_path / "server.log")
    try:
        wait_until_up(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        stop_server(process)


@pytest.fixture(scope="module")
def own_net(made: Path) -> RunResult:
    """A model and data of the user's own, in float64 and without redundant biases."""
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


# Which checkpoint


def checkpoints_at(result: RunResult) -> list[int]:
    """Steps of the kept checkpoints."""
    return sorted(int(path.name.removeprefix("step-")) for path in (result.folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize(
    ("values", "objective", "step", "why"),
    [
        ((0.3, 0.1, 0.2), ("val/loss", "min"), 4, "val/loss 0.1 at its step, the lowest of 3 checkpoints kept"),
        ((0.3, 0.1, 0.2), ("val/loss", "max"), 2, "val/loss 0.3 at its step, the highest of 3 checkpoints kept"),
        ((0.1, float("nan"), 0.1), ("val/loss", "min"), 6, "the lowest of 2 that have one, 3 checkpoints kept"),
        ((), ("val/loss", "min"), 6, "the newest of 3: no val/loss"),
    ],
)
def test_the_best_checkpoint_is_the_one_with_the_best_value_at_its_own_step(
    cnn: RunResult, values: tuple[float, ...], objective: Any, step: int, why: str
) -> None:
    assert checkpoints_at(cnn) == [2, 4, 6]
    # a value between the checkpoints is none of theirs, however good
    between = [Point("val/loss", 0.0 if objective[1] == "min" else 9.0, 3, 1)] if values else []
    points = [Point("val/loss", value, at, 1) for value, at in zip(values, (2, 4, 6), strict=False)] + between
    chosen = choose(find_run(cnn.folder), points, objective)
    assert chosen.step == step
    assert why in chosen.why


def test_a_better_value_whose_checkpoint_is_not_kept_is_told(cnn: RunResult) -> None:
    found, objective = find_run(cnn.folder), ("val/accuracy", "max")
    values = {1: 0.97, 2: 0.9, 3: 0.984, 4: 0.95, 5: float("inf"), 6: 0.94}
    chosen = choose(found, [Point("val/accuracy", value, step, 1) for step, value in values.items()], objective)
    told = "val/accuracy 0.984 at step 3 was better, but no checkpoint of that step is kept; see checkpoint.keep"
    assert (chosen.step, chosen.missed) == (4, told)
    for better in ({}, {3: 0.95}, {5: float("nan")}):
        points = [Point("val/accuracy", value, step, 1) for step, value in {4: 0.95, 6: 0.9, **better}.items()]
        assert choose(found, points, objective).missed == ""


def test_without_a_value_at_any_checkpoint_the_newest_is_taken_and_it_is_said_why(cnn: RunResult) -> None:
    chosen = choose(find_run(cnn.folder), [Point("val/accuracy", 0.9, 3, 1)], ("val/accuracy", "max"))
    assert (chosen.step, chosen.why) == (
        6,
        "the newest of 3: none was saved at a step at which val/accuracy was measured",
    )


def test_a_metric_that_the_run_never_had_is_refused_with_those_that_it_has(cnn: RunResult, home: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"no metric 'val/f1'; it has .*val/accuracy, val/loss"):
        export("cnn", metric="val/f1")


def test_a_broken_checkpoint_is_passed_over_and_told(cnn: RunResult, home: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cnn" / cnn.run_id
    shutil.copytree(cnn.folder, copy)
    weights = copy / "checkpoints" / "step-6" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    exported = export(copy, output=tmp_path / "out")
    assert exported.step == 4
    assert exported.warnings == ("step-6 is broken: model.safetensors does not have the SHA-256 of the manifest",)
    assert weights.exists()  # an export changes nothing of the run
    for step in (2, 4):
        (copy / "checkpoints" / f"step-{step}" / "MANIFEST.json").unlink()
    with pytest.raises(EnvironmentFault, match=r"has no whole checkpoint in .*step-6 is broken"):
        export(copy, output=tmp_path / "other")


def test_of_a_sweep_the_best_trial_is_exported(sweep: SweepFolder, home: Path, tmp_path: Path) -> None:
    exported = export("lrs", output=tmp_path / "out")
    assert str(exported.run) == f"trial lrs/{sweep.run_id}/0001"
    other = export(f"lrs/{sweep.run_id}/0000", output=tmp_path / "other")
    assert other.run.id == "0000"
    assert other.metrics["val/loss"] > exported.metrics["val/loss"]
    config = load_config(tmp_path / "out" / "config.yaml")
    assert (config.sweep, config.model_dump()["optimizer"]["lr"]) == (None, 0.05)


def test_a_sweep_without_a_finished_trial_has_nothing_to_export(home: Path, sweep: SweepFolder, tmp_path: Path) -> None:
    copy = tmp_path / "lrs" / sweep.run_id
    shutil.copytree(sweep.path, copy)
    (copy / "log.jsonl").write_text("")
    with pytest.raises(EnvironmentFault, match="has no best trial: none finished with val/loss"):
        export(copy)


# The weights


def test_the_exported_weights_are_the_checkpoints_and_stand_by_themselves(
    cnn: RunResult, home: Path, tmp_path: Path
) -> None:
    exported = export("cnn", output=tmp_path / "out")
    folder = tmp_path / "out"
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.yaml",
        "export.json",
        "model.safetensors",
    ]
    weights = load_file(folder / "model.safetensors")
    assert exported.step == 6
    assert weights_sha256(weights) == cnn.weights_sha256
    told = json.loads((folder / "export.json").read_text())
    assert told["files"]["model.safetensors"]["sha256"] == hash_file(folder / "model.safetensors").sha256
    assert told["metrics"]["val/loss"] == cnn.metrics["val/loss"]
    assert told["versions"]["torch"] == torch.__version__.partition("+")[0]
    assert not any(key.startswith(("system/", "cost/")) for key in told["metrics"])
    config = load_config(folder / "config.yaml")
    assert config == cnn.config
    model = rebuild(config, folder)
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(model(images), cnn.load_model()(images))
    assert torch.equal(model(images), cnn.load_model(folder)(images))


def test_the_same_export_again_is_the_same_and_another_one_does_not_mix_with_it(
    cnn: RunResult, home: Path, tmp_path: Path
) -> None:
    first = export("cnn", output=tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert export("cnn", output=tmp_path / "out") == first
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    with pytest.raises(EnvironmentFault, match=r"holds the export of run cnn/.*, step 6: choose another folder"):
        export("cnn", output=tmp_path / "out", metric="val/loss", mode="max")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("mine")
    with pytest.raises(EnvironmentFault, match="is not empty"):
        export("cnn", output=tmp_path / "mine")
    assert (tmp_path / "mine" / "config.yaml").read_text() == "mine"


def test_a_secret_in_the_config_is_not_exported(own_net: RunResult, home: Path, tmp_path: Path) -> None:
    data = {"path": "models_of_export:images_of", "args": {"api_key": CANARY}, "micro_batch_size": 10}
    exported = export(changed(own_net, tmp_path / "secret", data=data), output=tmp_path / "out")
    assert exported.warnings == ("what looked like a secret is hidden in config.yaml",)
    for file in (tmp_path / "out").iterdir():
        assert CANARY.encode() not in file.read_bytes()
    assert load_config(tmp_path / "out" / "config.yaml").data.args == {"api_key": "***"}  # type: ignore[union-attr]


def test_a_run_has_told_mlflow_of_its_checkpoints_and_data(cnn: RunResult, home: Path) -> None:
    client = remote.connect(f"sqlite:///{home / 'mlflow.db'}")
    run = client.get_run(str(cnn.mlflow_run_id))
    found = client.search_logged_models([run.info.experiment_id])
    by_step = {int(each.tags[metrics.CHECKPOINT_STEP]): each for each in found}
    assert by_step.keys() == {2, 4, 6}
    assert by_step[6].tags[metrics.CHECKPOINT_URI] == Path(cnn.checkpoint).as_uri()
    assert {each.key: each.value for each in by_step[6].metrics}["val/loss"] == cnn.metrics["val/loss"]
    sets = {tag.value: each.dataset for each in run.inputs.dataset_inputs for tag in each.tags}
    assert {role: json.loads(each.profile)["num_rows"] for role, each in sets.items()} == {
        "training": 64,
        "validation": 16,
    }
    assert {artifact.path for artifact in client.list_artifacts(run.info.run_id)} >= {"environment.txt", "config.yaml"}


# The traced model


def check_program(result: RunResult, folder: Path, inputs: Any) -> None:
    """The traced model gives what the rebuilt one gives, for batch sizes that it was not traced with."""
    program = torch.export.load(folder / "model.pt2").module()
    model = result.load_model()
    for size in (1, 2, 11):
        batch = inputs(size)
        torch.testing.assert_close(program(batch), model(batch), rtol=1e-4, atol=1e-5)


def test_a_traced_cnn_takes_any_batch(cnn: RunResult, home: Path, tmp_path: Path) -> None:
    exported = export("cnn", "pt2", tmp_path / "out")
    assert exported.file == tmp_path / "out" / "model.pt2"
    check_program(cnn, tmp_path / "out", lambda size: torch.randn(size, 1, 8, 8))
    told = json.loads((tmp_path / "out" / "export.json").read_text())["checked"]
    assert told == {"batch_sizes": [1, 5], "tolerances": {"float32": [1e-4, 1e-5]}}


@pytest.fixture(scope="module")
def gpt(made: Path) -> RunResult:
    (made / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 60)
    model = {"name": "gpt", "context_length": 16, "num_layers": 1, "num_heads": 2, "embedding_dim": 16}
    data = {"name": "text_file", "file": str(made / "text.txt"), "context_length": 16, "global_batch_size": 64}
    return trained(made, "gpt", model=model, data=data, task={"name": "language_modeling"}, trainer={"epochs": 1})


def test_a_traced_language_model_takes_any_batch(gpt: RunResult, home: Path, tmp_path: Path) -> None:
    export("gpt", "pt2", tmp_path / "out")
    check_program(gpt, tmp_path / "out", lambda size: torch.randint(0, 60, (size, 16)))


def test_a_model_of_ones_own_in_float64_without_redundant_biases_is_traced(
    own_net: RunResult, home: Path, tmp_path: Path
) -> None:
    assert "convolution.bias" not in load_file(Path(own_net.checkpoint) / "model.safetensors")
    export("own", "pt2", tmp_path / "out")
    check_program(own_net, tmp_path / "out", lambda size: torch.randn(size, 1, 8, 8, dtype=torch.float64))
    told = json.loads((tmp_path / "out" / "export.json").read_text())
    assert told["checked"]["tolerances"] == {"float64": [1e-7, 1e-9]}
    assert told["imports"] == {"model": "models_of_export:net", "data": "models_of_export:images"}


def test_what_cannot_be_traced_is_refused_with_a_cure(own_net: RunResult, home: Path, tmp_path: Path) -> None:
    folder = changed(own_net, tmp_path / "branching", model={"path": "models_of_export:branching"})
    with pytest.raises(UnusableCode, match=r"cannot be traced: .*; use --format safetensors"):
        export(folder, "pt2", tmp_path / "out" / "deep", trust=True)
    assert not (tmp_path / "out").exists(), "a folder that was made for nothing is removed"
    assert export(folder, output=tmp_path / "out").step == 4


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("format", ["pt2", "safetensors"])
def test_a_full_disk_is_told_as_such_and_nothing_is_left(
    cnn: RunResult, home: Path, tiny_disk: Path, format: Any
) -> None:
    with pytest.raises(EnvironmentFault, match=r"cannot be written to .*: No space left on device"):
        export("cnn", format, tiny_disk / "out")
    assert list(tiny_disk.iterdir()) == []


def test_a_program_that_cannot_be_saved_is_not_said_to_be_untraceable(
    own_net: RunResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: Any) -> None:
        raise ValueError("no bytes for this")

    monkeypatch.setattr(torch.export, "save", refuses)
    with pytest.raises(UnusableCode, match="the traced model cannot be saved: no bytes for this; use --format"):
        export("own", "pt2", tmp_path / "out")


@pytest.mark.parametrize("text", ["[1]", "5", '"x"', "null"])
def test_a_description_that_is_none_is_no_export(cnn: RunResult, home: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "export.json").write_text(text)
    with pytest.raises(EnvironmentFault, match="out is not empty: choose another folder"):
        export("cnn", output=tmp_path / "out")


def test_a_journal_that_cannot_be_opened_is_told_with_its_place(cnn: RunResult, home: Path, tmp_path: Path) -> None:
    folder = changed(cnn, tmp_path)
    journal = folder / "tracking" / "journal.jsonl"
    journal.unlink()
    journal.mkdir()
    with pytest.raises(EnvironmentFault, match=r"journal\.jsonl cannot be read: Is a directory; make it readable"):
        export(folder, output=tmp_path / "out")


def test_a_sweeps_log_that_cannot_be_opened_is_told_with_its_place(
    sweep: SweepFolder, home: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sweep.path, tmp_path / "lrs" / sweep.path.name)
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").mkdir()
    with pytest.raises(EnvironmentFault, match=r"log\.jsonl cannot be read: Is a directory; make it readable"):
        export(folder, output=tmp_path / "out")


def test_without_the_data_there_is_nothing_to_trace_with(gpt: RunResult, home: Path, tmp_path: Path) -> None:
    data = {**gpt.config.data.model_dump(mode="json"), "file": str(tmp_path / "gone.txt")}
    folder = changed(gpt, tmp_path / "gone", data=data)
    with pytest.raises(EnvironmentFault, match=r"samples of the config's data, which cannot be had here.*safetensors"):
        export(folder, "pt2", tmp_path / "out")
    assert export(folder, output=tmp_path / "out").file.exists()


# Code of somebody else


@pytest.fixture
def strange(own_net: RunResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of somebody else's run, whose config names code of theirs, apart from the working folder."""
    data = {"path": "os:makedirs", "args": {"name": str(tmp_path / "called")}}
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return changed(own_net, tmp_path / "theirs", data=data)


def test_code_that_a_strangers_config_names_is_not_called(strange: Path, tmp_path: Path) -> None:
    named = "import and call model.path models_of_export:net, data.path os:makedirs"
    with pytest.raises(ConfigError, match=rf"{named}.*--trust"):
        export(strange, "pt2", tmp_path / "out")
    export(strange, "safetensors", tmp_path / "weights")  # which calls nothing
    assert not (tmp_path / "called").exists()
    with pytest.raises(EnvironmentFault, match="must return"):
        export(strange, "pt2", tmp_path / "out", trust=True)
    assert (tmp_path / "called").exists()


def test_ones_own_runs_need_no_word_of_trust(strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFault, match="must return"):  # it gets as far as calling it
        export(strange, "pt2", tmp_path / "out")
    assert (tmp_path / "called").exists()


# Registered


def versions_of(home: Path, name: str) -> list[Any]:
    """The versions of a registered model."""
    client = remote.connect(f"sqlite:///{home / 'mlflow.db'}")
    return sorted(client.search_model_versions(f"name = '{name}'"), key=lambda each: int(each.version))


def test_an_export_is_registered_once_with_what_identifies_it(cnn: RunResult, home: Path, tmp_path: Path) -> None:
    first = export("cnn", output=tmp_path / "a", register="digits")
    again = export("cnn", output=tmp_path / "b", register="digits")
    assert first.registered == {"name": "digits", "version": 1, "is_new": True, "url": None}
    assert again.registered == {**first.registered, "is_new": False}
    (version,) = versions_of(home, "digits")
    assert version.run_id == cnn.mlflow_run_id
    assert version.tags[metrics.CHECKPOINT_SHA256] == first.sha256
    assert version.tags[metrics.CHECKPOINT_STEP] == "6"
    told: list[str] = []
    other = export("cnn", "pt2", tmp_path / "c", register="digits", tell=told.append)
    assert other.registered["version"] == 2
    assert [text.partition(" ")[0] for text in told] == ["tracing", "registering"]


@pytest.mark.parametrize("format", ["safetensors", "pt2"])
def test_the_lines_that_are_shown_load_what_is_registered(
    cnn: RunResult, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Any
) -> None:
    import mlflow
    import safetensors.torch

    name = f"shown {format}"
    exported = export("cnn", format, tmp_path / "out", register=name)
    rows = [text for _, text in exported.rows()][-2:]
    version = versions_of(home, name)[0]
    assert list(exported.loading) == rows
    assert all(f"    {line}\n" in version.description for line in rows)
    assert "no MLmodel" in version.description
    read = (tmp_path / "out" / "README.md").read_text()
    assert f"run cnn/{cnn.run_id}, step 6" in read
    code = read.partition("```python\n")[2].partition("```")[0]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    mlflow.set_tracking_uri(None)
    found: dict[str, Any] = {"mlflow": mlflow, "safetensors": safetensors, "torch": torch}
    exec("\n".join(rows), found)
    beside: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path / "out")
    (tmp_path / "out" / "runs").symlink_to(home / "runs")
    exec(code, beside)
    images = torch.randn(2, 1, 8, 8)
    expected = cnn.load_model()(images)
    assert torch.allclose(beside["model"](images), expected, atol=1e-6)
    if format == "pt2":
        assert torch.allclose(found["model"](images), expected, atol=1e-6)
    else:
        assert found["weights"].keys() == cnn.load_model().state_dict().keys() == beside["weights"].keys()


def test_the_registered_files_can_be_had_back_from_mlflow(cnn: RunResult, home: Path, tmp_path: Path) -> None:
    exported = export("cnn", output=tmp_path / "out", register="to download")
    client = remote.connect(f"sqlite:///{home / 'mlflow.db'}")
    uri = client.get_model_version_download_uri("to download", "1")
    assert uri == f"runs:/{cnn.mlflow_run_id}/exported/safetensors-step-6"
    (tmp_path / "back").mkdir()
    place = client.download_artifacts(
        str(cnn.mlflow_run_id), uri.partition("/exported/")[1][1:-1], str(tmp_path / "back")
    )
    file = Path(place) / "safetensors-step-6" / "model.safetensors"
    assert hash_file(file).sha256 == exported.sha256


@pytest.mark.parametrize("name", ["a/b", "a:b", "it's", "", "..", "x" * 201])
def test_a_name_that_mlflow_does_not_take_is_refused_before_anything_is_written(
    cnn: RunResult, home: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="is no name for a registered model"):
        export("cnn", output=tmp_path / "out", register=name)
    assert not (tmp_path / "out").exists()


def test_a_store_that_does_not_have_the_run_is_left_as_it_is(
    cnn: RunResult, home: Path, prepared_database: Path, tmp_path: Path
) -> None:
    shutil.copy(prepared_database, tmp_path / "other.db")
    with pytest.raises(EnvironmentFault, match=r"the run 'cnn' is not in MLflow at .*paceline sync"):
        export("cnn", output=tmp_path / "out", register="x", uri=f"sqlite:///{tmp_path / 'other.db'}")
    client = remote.connect(f"sqlite:///{tmp_path / 'other.db'}")
    assert [each.name for each in client.search_experiments()] == ["Default"]
    with pytest.raises(EnvironmentFault, match="there is no MLflow database"):
        export("cnn", output=tmp_path / "out", register="x", uri=f"sqlite:///{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()


def test_the_same_over_a_server(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, "served", **CNN, tracking={"uri": server}, trainer={"epochs": 1})
    first = export("served", register="served")
    assert first.registered == {**export("served", register="served").registered, "is_new": True}
    assert first.registered["url"] == f"{server}/#/models/served/versions/1"


# The command


def test_the_command_prints_what_was_written(
    cnn: RunResult, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["export", "cnn", "--output", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["step"], told["run"], told["format"]) == (6, f"run cnn/{cnn.run_id}", "safetensors")
    assert Path(told["file"]).is_file()
    assert command(["export", "cnn", "--output", str(tmp_path / "two"), "--metric", "val/loss", "--mode", "max"]) == 0
    assert "checkpoint   step 2: val/loss" in capsys.readouterr().out
    assert command(["export", "nothing"]) == 3
    assert "there is no run 'nothing'" in capsys.readouterr().err


def test_the_default_folder_tells_what_it_holds(cnn: RunResult, home: Path) -> None:
    assert export("cnn").folder == home / "exports" / f"cnn-{cnn.run_id}-step-6"
    assert export("cnn", "pt2").folder == home / "exports" / f"cnn-{cnn.run_id}-step-6-pt2"


# From Python


def test_a_run_is_what_it_was_after_its_process_is_gone(cnn: RunResult, home: Path) -> None:
    found = load_run("cnn")
    same = ("run_id", "name", "status", "metrics", "steps", "checkpoint", "weights_sha256", "config", "folder")
    assert {key: getattr(found, key) for key in same} == {key: getattr(cnn, key) for key in same}
    assert (found.mlflow_url, found.mlflow_run_id, found.needs_ui) == (cnn.mlflow_url, cnn.mlflow_run_id, True)
    assert found.samples_per_second == cnn.samples_per_second
    assert cnn.review_url
    assert cnn.cost
    assert (found.review_url, found.cost) == (cnn.review_url, cnn.cost)
    shown = dict(found.rows())
    assert {"cost", "review"} <= set(shown)
    assert shown == {**dict(cnn.rows()), "wall time": shown["wall time"], "peak memory": shown["peak memory"]}
    assert set(found.points) == set(cnn.points)
    assert 0 < found.wall_seconds < 60
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(found.load_model()(images), cnn.load_model()(images))


def test_a_run_that_was_killed_is_opened_with_what_it_has(cnn: RunResult, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / "cnn" / cnn.run_id
    shutil.copytree(cnn.folder, copy)
    (copy / "tracking" / "outcome.json").unlink()
    content = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**content, "status": "running"}))
    found = load_run(copy)
    assert (found.status, found.steps) == ("interrupted", 6)
    assert found.metrics["val/loss"] == cnn.metrics["val/loss"]
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(EnvironmentFault, match="has saved no checkpoint"):
        load_run(copy).load_model()


def test_a_trial_is_a_run_and_a_sweep_has_its_best_model(sweep: SweepFolder, home: Path) -> None:
    trial = load_run(f"lrs/{sweep.run_id}/0001")
    assert trial.config.model_dump()["optimizer"]["lr"] == 0.05
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(load_sweep(sweep.path).load_model()(images), trial.load_model()(images))
    for name in ("lrs", f"lrs/{sweep.run_id}", sweep.path):
        assert load_sweep(name).sweep_id == sweep.run_id
    with pytest.raises(EnvironmentFault, match=r"is a sweep: open it with load_sweep\('lrs'\)"):
        load_run("lrs")
    with pytest.raises(EnvironmentFault, match=r"is a trial: open it with load_run\('lrs/.*, or name its sweep, /"):
        load_sweep(f"lrs/{sweep.run_id}/0001")
