"""A sweep on a disk that is full: its trials are left, its command says so, and the same one continues later. Slow."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline import load_config, sweep
from paceline.errors import BAD_ENVIRONMENT, EnvironmentFault
from paceline.sweeps.listener import SilentSweepListener
from paceline.sweeps.sweep_log import read_log
from support.cluster.user_folder import enter_user_folder

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_session")]

DISK_BYTES = 24 << 20
CONFIG = """\
name: small
model: {path: "own_code:net", args: {width: 80000}}  # checkpoints of 6 MB
data: {path: "own_code:data", global_batch_size: 16}
trainer: {epochs: 1, log_every_n_steps: 1}
scaling: {num_workers: 1, cpus_per_worker: 0.5}
storage: {path: disk}
checkpoint: {keep: 1}
sweep: {space: {optimizer.lr: [0.01, 0.02, 0.03]}, metric: val/loss, mode: min, slots: 1}
"""


@pytest.fixture
def home(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder whose storage is a file system of 24 MiB, on which 3 MiB are free."""
    folder = enter_user_folder(tmp_path, prepared_database, monkeypatch)
    disk = folder / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        (disk / "filler").write_bytes(os.urandom(DISK_BYTES - (3 << 20)))
        (folder / "small.yaml").write_text(CONFIG)
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_trials_that_found_the_disk_full_are_left_and_continue_once_there_is_room(home: Path) -> None:
    config = load_config(home / "small.yaml")
    with pytest.raises(EnvironmentFault) as caught:
        sweep(config, listener=SilentSweepListener())
    assert (caught.value.code, caught.value.exit_code, caught.value.fields["left"]) == ("disk-full", BAD_ENVIRONMENT, 3)
    folder = Path(str(caught.value.fields["folder"]))
    left = read_log(folder).trials
    assert {id: (trial.state, trial.attempts) for id, trial in left.items()} == {
        "0000": ("pending", 1),
        "0001": ("pending", 1),
    }
    assert all("No space left on device" in trial.reason for trial in left.values())
    (home / "disk" / "filler").unlink()
    result = sweep(config, listener=SilentSweepListener())
    assert result.folder == folder
    assert [trial.state for trial in result.trials] == ["finished"] * 3
    assert [trial.attempts for trial in result.trials] == [2, 2, 1]
    assert read_log(folder).ended.keys() == {"0000", "0001", "0002"}
