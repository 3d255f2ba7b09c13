"""Probes of a store: the one of every node of a cluster, and that of `doctor`."""

import pytest

from paceline.cluster.node_probe import Questions, answer
from paceline.doctor import diagnose
from paceline.storage.remote_folder import RemoteFolder

pytestmark = pytest.mark.usefixtures("environment")


def test_a_node_tries_the_store_as_training_does(remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = str(remote.address.pinned())
    remote.files()  # which opens it, with the environment's endpoint
    monkeypatch.delenv("AWS_ENDPOINT_URL")  # which the nodes may not have
    assert answer(Questions((), pinned)).storage_fault == ""
    assert remote.files() == {}
    nowhere = pinned.replace(remote.address.bucket, "nowhere")
    assert answer(Questions((), nowhere)).storage_fault


def test_doctor_looks_at_a_store(remote: RemoteFolder) -> None:
    checks = {check.name: check for check in diagnose(storage=remote.address.bare)}
    assert (checks["storage"].ok, checks["storage"].detail) == (True, remote.address.bare)
    assert "disk" not in checks
    refused = {check.name: check for check in diagnose(storage=f"{remote.address.parent.bare}-nowhere/runs")}
    assert refused["storage"].ok is False
