"""Jobs submitted to two hosts whose Python lacks the package. Slow: run with `-m slow`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.multinode.conftest import BIN, TwoHosts

ROOT = Path(__file__).parents[3]
SWEEP = 'sweep={"space": {"optimizer.lr": [0.01, 0.05, 0.1, 0.2]}, "metric": "val/accuracy"}'

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


def submitted(cluster: TwoHosts, job: str, *arguments: str) -> dict[str, Any]:
    """What a job told at its end, submitted from the clone as the README says."""
    config = (
        "configs/mnist_cnn.yaml",
        f"storage.path={cluster.home}/jobs",
        f"tracking.uri=sqlite:///{cluster.home}/jobs.db",
    )
    command = [BIN / "ray", "job", "submit", "--address", "http://127.0.0.1:8265", "--runtime-env"]
    command += ["configs/runtime_env.yaml", "--", "python", f"jobs/{job}.py", *config, "--json", *arguments]
    done: subprocess.CompletedProcess[str] = cluster.hosts[0].run(
        *command, env=cluster.environment, cwd=ROOT, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return told


def test_train_is_submitted(two_hosts: TwoHosts) -> None:
    spread = "scaling.num_workers=2", "scaling.placement=strict_spread", "data.global_batch_size=64"
    told = submitted(two_hosts, "train", "trainer.epochs=1", *spread)
    assert told["status"] == "finished"
    assert told["metrics"]["val/accuracy"] > 0.8


def test_a_sweep_is_submitted(two_hosts: TwoHosts) -> None:
    told = submitted(two_hosts, "sweep", SWEEP, "trainer.epochs=1", "trainer.max_steps=20", "name=swept-by-job")
    assert {trial["state"] for trial in told["trials"]} == {"finished"}


def test_a_tune_up_is_submitted_and_measures_over_both_hosts(two_hosts: TwoHosts) -> None:
    spread = "scaling.num_workers=2", "scaling.placement=strict_spread", "data.global_batch_size=64"
    brief = 'tuneup={"budget_seconds": 240, "seeds": 2, "skip": ["compile", "bf16", "exchange-bf16", "channels-last"]}'
    told = submitted(two_hosts, "tuneup", brief, "trainer.epochs=1", "name=tuned-by-job", *spread)
    arms = {arm["name"]: arm for arm in told["arms"]}
    assert arms["static-graph"]["speedup"] > 0
    assert arms["batch-x2"]["speedup"] > 1
    assert Path(told["recommended_path"]).read_text().startswith("#")
