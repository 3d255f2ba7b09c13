"""Data sets and checkpoints in a real MLflow store: there once, with what identifies them, however often sent."""

import json
import shutil
from pathlib import Path
from typing import Any

from paceline.tracking import metrics
from paceline.tracking.datasets_and_models import CheckpointModel
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import RunRecord
from paceline.tracking.run_recorder import RunRecorder
from paceline.tracking.sync import sync
from paceline.tracking.upload_cursor import CURSOR_FILE
from support.tracking.faulty_proxy import FaultyProxy
from support.tracking.recording import MakeRecord, client_of

CANARY = "canary-S3cr3t"
SETS = {
    "training": {"name": "mnist5k", "size": 4000, "fingerprint": "a" * 64},
    "validation": {"name": "mnist5k", "size": 1000, "fingerprint": "b" * 64},
}


def model(step: int = 40, run_id: str = "", **values: float) -> CheckpointModel:
    """A checkpoint, with metrics measured at the time of its step."""
    found = {key.replace("__", "/"): (value, 1000 + step) for key, value in values.items()}
    return CheckpointModel(step, f"file:///runs/x/checkpoints/step-{step}", f"{step:064d}", found, run_id)


def inputs_of(record: RunRecord, run_id: str) -> list[dict[str, Any]]:
    """What MLflow has of a run's data sets."""
    found = client_of(record.uri).get_run(run_id).inputs.dataset_inputs
    return [
        {
            "name": each.dataset.name,
            "digest": each.dataset.digest,
            "source": json.loads(each.dataset.source),
            "profile": json.loads(each.dataset.profile),
            "context": {tag.key: tag.value for tag in each.tags}["mlflow.data.context"],
        }
        for each in found
    ]


def models_of(record: RunRecord) -> list[Any]:
    """All models in a record's experiment, by step."""
    client = client_of(record.uri)
    experiment = client.get_experiment_by_name(record.experiment)
    assert experiment is not None
    found = client.search_logged_models([experiment.experiment_id])
    return sorted(found, key=lambda each: int(each.tags[metrics.CHECKPOINT_STEP]))


def test_data_sets_are_inputs_of_the_run(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    params = {"data.path": "my.data:load", "data.args.root": f"s3://me:{CANARY}@bucket", "data.micro_batch_size": 8}
    run = record(sqlite_uri, params=params)
    recorder = RunRecorder(tmp_path / "run", run)
    recorder.add_datasets(SETS)
    report = recorder.close("FINISHED")
    assert report.unsent == 0
    assert report.run_id
    found = {each["context"]: each for each in inputs_of(run, report.run_id)}
    assert found.keys() == SETS.keys()
    assert found["training"]["digest"] == "a" * 36
    assert found["training"]["profile"] == {"num_rows": 4000, "fingerprint": "a" * 64}
    assert found["validation"]["source"] == {"path": "my.data:load", "args.root": "s3://***@bucket"}
    same = RunRecorder(tmp_path / "same", record(sqlite_uri, run_id="same"))
    same.add_datasets({"training": SETS["training"], "validation": SETS["training"]})
    [one] = inputs_of(run, str(same.close("FINISHED").run_id))
    assert {"training", "validation"} <= set(one["context"].split())


def test_kept_checkpoints_are_external_models_of_the_run(tmp_path: Path, sqlite_uri: str, record: MakeRecord) -> None:
    run = record(sqlite_uri)
    recorder = RunRecorder(tmp_path / "run", run)
    recorder.append([MetricPoint("val/loss", 0.5, 40, 1040), MetricPoint("val/loss", 0.4, 80, 1080)])
    recorder.add_model(model(40, val__loss=0.5))
    recorder.add_model(model(80, val__loss=0.4, val__bad=float("nan")))
    report = recorder.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    first, second = models_of(run)
    assert (first.name, str(first.status), first.source_run_id) == ("mnist-cnn-step-40", "READY", report.run_id)
    assert first.tags[metrics.CHECKPOINT_URI] == "file:///runs/x/checkpoints/step-40"
    assert second.tags[metrics.CHECKPOINT_SHA256] == f"{80:064d}"
    assert second.tags["mlflow.model.isExternal"] == "true"
    assert [(each.key, each.value, each.step) for each in second.metrics] == [("val/loss", 0.4, 80)]
    client = client_of(run.uri)
    outputs = client.get_run(str(report.run_id)).outputs.model_outputs
    assert {(output.model_id, output.step) for output in outputs} == {(first.model_id, 40), (second.model_id, 80)}
    assert [each.step for each in client.get_metric_history(str(report.run_id), "val/loss")] == [40, 80]
    assert not list(tmp_path.rglob("*.safetensors"))


def test_however_often_they_are_sent_they_are_there_once(
    tmp_path: Path, proxy: FaultyProxy, record: MakeRecord
) -> None:
    run, folder = record(proxy.uri), tmp_path / "run"
    for place in ("log-inputs", "logged-models", "outputs", "log-batch"):
        for fault in (503, "drop"):
            proxy.order(fault, place, 1)
    for _ in range(2):  # a resumed run adds them again
        recorder = RunRecorder(folder, run)
        recorder.append([MetricPoint("val/loss", 0.5, 40, 1040)])
        for _ in range(2):
            recorder.add_datasets(SETS)
            recorder.add_model(model(40, val__loss=0.5))
        report = recorder.close("FINISHED", timeout_seconds=240)
        assert report.unsent == 0, report.error
    assert len(proxy.hits) == 8
    assert (folder / "journal.jsonl").read_text().count('"datasets"') == 1
    client = client_of(run.uri)
    (made,) = models_of(run)
    client.finalize_logged_model(made.model_id, "PENDING")  # as if its registration had been cut short
    (folder / CURSOR_FILE).unlink()
    assert sync(folder).unsent == 0
    (found,) = models_of(run)
    assert (found.model_id, str(found.status), len(found.metrics)) == (made.model_id, "READY", 1)
    assert len(inputs_of(run, str(report.run_id))) == 2
    assert len(client.get_metric_history(str(report.run_id), "val/loss")) == 1


def test_the_best_trials_checkpoint_belongs_to_the_trial_and_shows_at_its_sweep(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    parent = record(sqlite_uri, run_id="sweep", name="the sweep")
    trial = record(sqlite_uri, run_id="sweep/0003", name="0003 lr=0.1", parent="sweep")
    one, other = RunRecorder(tmp_path / "parent", parent), RunRecorder(tmp_path / "trial", trial)
    one.start_uploading()
    other.append([MetricPoint("val/loss", 0.5, 40, 1040)])
    of_trial = other.close("FINISHED")
    one.add_model(model(40, "sweep/0003", val__loss=0.5))
    of_parent = one.close("FINISHED")
    (found,) = models_of(parent)
    assert found.source_run_id == of_trial.run_id
    assert found.tags[metrics.RUN_ID] == "sweep/0003"
    client = client_of(parent.uri)
    for report in (of_trial, of_parent):
        run = client.get_run(str(report.run_id))
        assert [output.model_id for output in run.outputs.model_outputs] == [found.model_id]
    assert "val/loss" not in client.get_run(str(of_parent.run_id)).data.metrics


def test_a_trial_that_mlflow_does_not_know_holds_up_nothing(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    run = record(sqlite_uri)
    recorder = RunRecorder(tmp_path / "run", run)
    recorder.add_model(model(40, "sweep/0003", val__loss=0.5))
    report = recorder.close("FINISHED", timeout_seconds=240)
    assert report.unsent == 0
    assert models_of(run)[0].source_run_id == report.run_id
    assert "val/loss" not in client_of(run.uri).get_run(str(report.run_id)).data.metrics


def test_checkpoints_are_registered_where_artifacts_cannot_be_stored(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord
) -> None:
    run = record(sqlite_uri)
    recorder = RunRecorder(tmp_path / "run", run)
    place = tmp_path / "mlruns"
    shutil.rmtree(place, ignore_errors=True)
    place.write_text("a file where the folder should be")
    recorder.add_model(model(40))
    recorder.close("FINISHED", timeout_seconds=5)
    assert [str(each.status) for each in models_of(run)] == ["READY"]
