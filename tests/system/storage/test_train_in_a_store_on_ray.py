"""Two workers on Ray whose run is in an object store: the driver is killed, and an empty machine resumes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.storage.remote_folder import RemoteFolder
from support.storage.relay import Relay
from support.storage.runs import complaints, whole_steps
from support.storage.server import CREDENTIALS
from support.storage.training import Training
from support.tracking.recording import DEAD

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(600)]

WORKERS = "scaling.num_workers=2"


@pytest.fixture
def on_ray(tmp_path: Path, remote: RemoteFolder, environment: dict[str, str]) -> Iterator[Training]:
    made = Training(tmp_path / "work", str(remote.address), environment, forks=False)
    yield made
    made.go_on()
    made.leave()


def test_a_killed_driver_is_followed_by_one_with_an_empty_cache(
    on_ray: Training, remote: RemoteFolder, relay: Relay, tmp_path: Path
) -> None:
    folder = tmp_path / "undisturbed"
    variables = {**CREDENTIALS, "MLFLOW_TRACKING_URI": DEAD}
    expected = Training(folder, str(folder / "runs"), variables, forks=False).run(WORKERS)
    on_ray.start_and_wait_before(20, overrides=(WORKERS,))
    on_ray.until(lambda: whole_steps(remote) == [8, 16])
    on_ray.kill()
    on_ray.go_on()
    on_ray.forget()
    relay.forget()
    result = on_ray.run(WORKERS)
    assert complaints(remote, result, expected) == []
    assert len(relay.seen("GET .*/step-16/model.safetensors")) == 1
    assert relay.seen("GET .*/step-8/") == []
