"""Runs in a store, looked at afterwards: by address or by name, with no more brought than is needed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from paceline import load_run
from paceline.cli import run as command
from paceline.errors import ConfigError, EnvironmentFault
from paceline.runs.export import export
from paceline.runs.finding import find_run
from paceline.runs.stored_sync import sync_address
from paceline.runs.sync import Synced, SyncReport
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import LeaseLost
from paceline.tracking import mlflow_connection as mlflow
from paceline.tracking import run_recorder
from support.runs.trained_runs import extended
from support.storage.relay import Relay
from support.storage.training import NAME, Training


@pytest.fixture
def ended(training: Training, monkeypatch: pytest.MonkeyPatch, relay: Relay) -> dict[str, Any]:
    """The result of a run; this process is in another folder, where its code is."""
    result = training.run()
    (training.folder.parent / "coordinator").mkdir()
    monkeypatch.chdir(training.folder.parent / "coordinator")
    monkeypatch.syspath_prepend(str(training.folder))
    relay.forget()
    return result


def brought(relay: Relay) -> set[str]:
    """The files of checkpoints that were brought, without their manifests."""
    names = {each.split("checkpoints/")[1] for each in relay.seen("GET .*/checkpoints/step-")}
    return {name for name in names if "MANIFEST" not in name}


def test_a_run_is_evaluated_by_its_address(
    ended: dict[str, Any], training: Training, remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(f"{training.storage}/{NAME}/{ended['run_id']}")
    files = remote.files()
    assert run.evaluate() == {key: value for key, value in run.metrics.items() if key.startswith("val/")}
    assert run.evaluate(checkpoint=run.checkpoint.replace("step-40", "step-32")).keys() == {"val/loss", "val/accuracy"}
    predictions = run.predict()["predictions"]
    assert len(predictions) == 8
    # on a cluster, whose nodes share no folder, the parts go through the store
    written: list[str] = []
    upload = RemoteFolder.upload
    monkeypatch.setattr(
        RemoteFolder, "upload", lambda self, *given: (written.append(self.address.bare), upload(self, *given))[1]
    )
    monkeypatch.setattr("paceline.cluster.evaluation.on_cluster", lambda address: True)
    assert run.predict()["predictions"].tolist() == predictions.tolist()
    assert len(written) == 1
    assert written[0].startswith(f"{training.storage}/{NAME}/.evaluation-")
    assert remote.files() == files


def test_a_run_is_looked_at_by_its_address(
    ended: dict[str, Any], training: Training, remote: RemoteFolder, relay: Relay, tmp_path: Path
) -> None:
    address = f"{training.storage}/{NAME}/{ended['run_id']}"
    result = load_run(address)
    assert (result.run_id, result.name, result.status) == (ended["run_id"], NAME, "finished")
    assert result.weights_sha256 == ended["weights_sha256"]
    assert result.checkpoint == ended["checkpoint"]
    assert len(result.history) == 40
    found = find_run(NAME, training.storage)
    assert found == find_run(f"{NAME}/{ended['run_id']}", training.storage) == find_run(f"{training.storage}/{NAME}")
    with pytest.raises(EnvironmentFault) as caught:
        find_run(training.storage)
    assert (caught.value.code, caught.value.fields["names"]) == ("no-run", [NAME])
    assert command(["report", address, "--output", str(tmp_path / "r.html")]) == 0
    assert ended["run_id"] in (tmp_path / "r.html").read_text()
    assert brought(relay) == set()

    model = result.load_model()
    files = ("model.safetensors", "optimizer.safetensors", "state.json")
    assert brought(relay) == {f"step-40/{name}" for name in files}
    relay.forget()
    exported = export(address, output=tmp_path / "exported")
    weights = load_file(exported.file)
    assert exported.step == 40
    assert brought(relay) == set()
    assert all((weights[key] == value).all() for key, value in model.state_dict().items())

    place = remote / NAME / ended["run_id"] / "checkpoints" / "step-40"
    place.write("model.safetensors", b"x" * len(place.read("model.safetensors") or b""))
    shutil.rmtree(exported.folder)
    for copy in tmp_path.glob("cache-of-tests/copies/**/step-40/model.safetensors"):
        copy.unlink()
    again = export(address, output=tmp_path / "exported")
    assert again.step == 32
    assert len(again.warnings) == 1


def test_what_mlflow_lacks_is_sent_from_the_store(
    ended: dict[str, Any], training: Training, remote: RemoteFolder, tmp_path: Path, prepared_database: Path
) -> None:
    """MLflow was not there when the run ended, nor is its working copy by now."""
    training.forget()
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert command(["sync", training.storage, "--uri", uri]) == 0
    client = mlflow.connect(uri)
    experiment = client.get_experiment_by_name(NAME)
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    steps = [point.step for point in client.get_metric_history(found.info.run_id, "train/loss")]
    assert sorted(steps) == list(range(1, 41))
    assert json.loads((remote / NAME / ended["run_id"] / "tracking").read("uploaded.json") or b"{}")["run_id"]
    assert (remote / NAME).read(".lease.json") is None
    (copy,) = (tmp_path / "cache-of-tests").glob(f"*/{NAME}/*/tracking/.stored")
    assert int(copy.read_text()) == copy.with_name("journal.jsonl").stat().st_size
    shutil.rmtree(tmp_path / "cache-of-tests")
    report = sync_address(f"{training.storage}/{NAME}/{ended['run_id']}", uri)
    assert [(record.state, record.sent) for record in report.records] == [("complete", 0)]


def test_a_run_without_a_record_does_not_keep_others_from_being_sent(
    remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch that was refused at once has left its file alone."""
    sent = []

    def sync_folder(path: Path, *given: Any) -> SyncReport:
        sent.append(path.name)
        if path.name == "20260102-000000-aaaaaa":
            raise EnvironmentFault("no run is recorded in it", "no-record")
        if path.name == "20260103-000000-aaaaaa":
            raise EnvironmentFault("it is damaged", "file-damaged")
        if path.name == "20260104-000000-aaaaaa":
            raise LeaseLost("another machine has taken the name", "lease-lost")
        return SyncReport((Synced(str(path), "complete", sent=1),))

    monkeypatch.setattr("paceline.runs.stored_sync.sync_folder", sync_folder)
    names = [f"2026010{day}-000000-aaaaaa" for day in range(1, 6)]
    for name in names:
        (remote / NAME / name).write("run.json", b'{"status": "interrupted"}')
    report = sync_address(str(remote.address))
    assert sorted(sent) == names
    assert [record.state for record in report.records] == ["complete", "left", "in progress", "complete"]


def test_the_best_checkpoint_of_an_extended_run_may_be_one_of_the_run_before(
    remote: RemoteFolder, tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_recorder, "can_upload_in_own_process", lambda folder: False)  # which imports MLflow again
    shutil.copy(prepared_database, tmp_path / "mlflow.db")
    result = extended(tmp_path, str(remote.address))
    assert result.best is not None
    assert (result.steps, result.best.step) == (8, 2)
    address = f"{remote.address}/further/{result.run_id}"
    assert load_run(address).best == result.best
    exported = export(address, output=tmp_path / "exported")
    assert (exported.step, exported.metrics["val/loss"]) == (2, result.best.value)
    assert result.evaluate(checkpoint="best")["val/loss"] == result.best.value


def test_missing_runs_are_reported(remote: RemoteFolder) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        find_run("other", str(remote.address))
    assert (caught.value.code, caught.value.fields["names"]) == ("no-run", [])
    with pytest.raises(ConfigError):
        find_run("s3://a:secretsecret@bucket/runs/x")
    with pytest.raises(EnvironmentFault):
        sync_address(str(remote.address))


def test_tuneups_refuse_an_address(
    training: Training, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, relay: Relay
) -> None:
    monkeypatch.chdir(training.folder)
    assert command(["tuneup", "kept.yaml", f"storage.path={training.storage}"]) == 2
    err = capsys.readouterr().err
    assert "storage.path: " in err
    assert "[storage]" in err
    assert relay.seen() == []


def test_a_dry_run_of_a_sweep_contacts_nothing(
    training: Training, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, relay: Relay
) -> None:
    monkeypatch.chdir(training.folder)
    space = "sweep={space: {optimizer.lr: [0.1, 0.2]}}"
    arguments = ["sweep", "kept.yaml", f"storage.path={training.storage}", space, "scaling.num_workers=1"]
    assert command([*arguments, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"]
    assert relay.seen() == []
