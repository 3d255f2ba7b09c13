"""`sweep` on a real Ray, into a real MLflow store: the weights of its trials, their ends, and its resumption."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline import ConfigError, ExperimentConfig, SweepResult, list_runs, load_config, load_sweep, sweep
from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.sweeps.listener import SilentSweepListener
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.trial import Trial
from paceline.tracking import metrics
from support.cluster.user_folder import end_pauses, enter_user_folder
from support.modes import PRIVATE, modes_in
from support.ranks import run_ranks
from support.runs.declared_names import undeclared, written

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.usefixtures("ray_session")]

TASK = '''
"""A task with accidents: one of several kinds in each trial that begins, at the sixth call on rank 1."""

import os
import signal
from pathlib import Path

import torch

from own_code import OwnTask
from paceline import TaskOutput


class Accident(OwnTask):
    def __init__(self, model, kinds, begun, **options):
        super().__init__(model, **options)
        self.accident = ""
        if os.environ.get("RANK") == "1":
            with Path(begun).open("a") as file:
                file.write(".")
            number = Path(begun).stat().st_size - 1
            self.accident = kinds[number] if number < len(kinds) else ""

    def forward(self, batch):
        output = super().forward(batch)
        return self.have(output) if self.training and self.step == 6 and self.accident else output

    def have(self, output):
        if self.accident == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.accident == "oom":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if self.accident == "nan":
            return TaskOutput(output.loss_sum * float("nan"), output.weight, output.metrics)
        raise ZeroDivisionError("the user's own mistake")
'''


@pytest.fixture
def home(tmp_path: Path, prepared_database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return enter_user_folder(tmp_path, prepared_database, monkeypatch)


def config(home: Path, name: str, space: dict[str, Any], **changes: Any) -> Any:
    """Two workers, two epochs of six steps, a point each step, a checkpoint every four."""
    (home / "accidents.py").write_text(TASK)
    tree = {
        "name": name,
        "model": {"path": "own_code:net"},
        "data": {"path": "own_code:data", "global_batch_size": 16},
        "trainer": {"epochs": 2, "log_every_n_steps": 1},
        "scaling": {"num_workers": 2, "cpus_per_worker": 0.5},
        "checkpoint": {"every_n_steps": 4},
        "sweep": {"space": space, "slots": 1},
    }
    (home / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    return load_config(home / f"{name}.yaml", {key.replace("__", "."): value for key, value in changes.items()})


def alone(ranks: DistContext, folder: Path, configs: Sequence[str]) -> list[str]:
    """The final weights of each config, trained by gloo processes without Ray, one after the other."""
    import sys

    sys.path.insert(0, str(folder))
    return [build_trainer(load_config(path), ranks, MemoryReporter()).fit().weights_sha256 for path in configs]


def weights_alone(home: Path, run: Any, trials: Iterable[Trial]) -> dict[str, str]:
    """By id, what each trial's config gives in other processes."""
    from paceline.config.loading import dump_yaml

    paths = {}
    for trial in trials:
        paths[trial.id] = str(home / f"alone-{trial.id}.yaml")
        Path(paths[trial.id]).write_text(dump_yaml(trial_config(run, trial.params)))
    digests = run_ranks(alone, run.scaling.num_workers, home, list(paths.values()))[0]
    return dict(zip(paths, digests, strict=True))


def mlflow_runs(home: Path) -> tuple[Any, dict[str, Any]]:
    """The sweep's own run, and those of its trials by their ids; there are no others."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{home}/mlflow.db")
    runs = list(client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]))
    (parent,) = [run for run in runs if run.data.tags["paceline.kind"] == "sweep"]
    children = [run for run in runs if run is not parent]
    assert all(run.data.tags["mlflow.parentRunId"] == parent.info.run_id for run in children)
    return parent, {run.data.tags["paceline.trial_id"]: run for run in children}


def states(result: SweepResult) -> dict[str, str]:
    return {trial.id: trial.state for trial in result.trials}


@pytest.fixture
def tune_log() -> Iterator[list[logging.LogRecord]]:
    """What Ray Tune logs: it is shown where the user's own program has started Ray."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    ray_logger, logger = logging.getLogger("ray"), logging.getLogger("ray.tune")
    level = ray_logger.level
    ray_logger.setLevel(logging.INFO)  # as `ray.init` does by default
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)
    ray_logger.setLevel(level)


def test_techniques_compute_what_each_does_alone_and_accidents_end_their_own_trials_alone(
    home: Path, tune_log: list[logging.LogRecord]
) -> None:
    """Eight trials in turn: one raises, one diverges, one is out of memory, and one loses a worker but is retried."""
    space = {
        "trainer.precision": ["32-true", "bf16-mixed"],
        "trainer.gradient_accumulation_steps": [1, 2],
        "trainer.activation_checkpointing": ["none", "full"],
    }
    kinds = ["", "raise", "", "nan", "oom", "", "kill"]
    args = {"kinds": kinds, "begun": str(home / "begun"), "pause": 0.02}
    run = config(home, "techniques", space, task={"path": "accidents:Accident", "args": args})
    result = sweep(run)
    assert [record.getMessage() for record in tune_log] == []
    assert result.status == "finished"
    assert modes_in(home / "runs") == PRIVATE
    ends = {"raise": "failed", "nan": "diverged", "oom": "oom", "kill": "finished", "": "finished"}
    assert list(states(result).values()) == [ends[kind] for kind in (*kinds, "")]
    assert [trial.attempts for trial in result.trials] == [1, 1, 1, 1, 1, 1, 2, 1]
    assert {trial.id for trial in result.failed} == {
        result.trials[kinds.index(kind)].id for kind in ("raise", "nan", "oom")
    }
    finished = [trial for trial in result.trials if trial.state == "finished"]
    assert {trial.id: trial.weights_sha256 for trial in finished} == weights_alone(home, run, finished)
    assert result.best is not None
    best = load_config(result.best_config_path)
    assert best.trainer.precision == result.best.params["trainer.precision"]
    assert result.cost is not None
    assert result.cost.gap < 0.01
    assert min(result.cost.parts[part] for part in ("startup", "finished", "failed", "waiting", "shutdown")) > 0

    parent, children = mlflow_runs(home)
    assert (parent.info.run_id, parent.info.status) == (result.parent_run_id, "FINISHED")
    assert parent.data.metrics["trials/finished"] == len(finished)
    assert parent.data.metrics["best/val/loss"] == result.best.metrics["val/loss"]
    statuses = {"finished": "FINISHED"} | dict.fromkeys(("failed", "diverged", "oom"), "FAILED")
    for trial in result.trials:
        child = children[trial.id]
        assert child.info.status == statuses[trial.state]
        assert child.data.params["trainer.precision"] == trial.params["trainer.precision"]
    for trial in finished:
        assert children[trial.id].data.metrics["val/loss"] == trial.metrics["val/loss"]
    raised = children[result.trials[kinds.index("raise")].id]
    assert "ZeroDivisionError" in raised.data.tags["paceline.status_reason"]
    keys = {key for _, key in written(home)}
    assert {"best/val/loss", "trials/finished", "val/loss", metrics.TRIAL_STATE, metrics.NOTE} <= keys
    assert undeclared(home) == set()


class StopAfter(SilentSweepListener):
    """Interrupts this process, once, when so many trials have ended."""

    def __init__(self, ended: int) -> None:
        self.ended: int | None = ended

    def trials(self, view: Sequence[Trial]) -> None:
        running = any(trial.state == "running" and trial.steps for trial in view)
        if self.ended is not None and running and sum(trial.state == "finished" for trial in view) >= self.ended:
            self.ended = None
            threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()


@pytest.mark.parametrize("extends", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_interrupted_sweep_is_resumed_with_fresh_processes(home: Path, extends: bool) -> None:
    """With `isolation: process`, each trial has processes of its own; they compute the same."""
    space = {"optimizer.lr": [0.05, 0.1]}
    pausing = {"path": "own_code:OwnTask", "args": {"pause": 0.2}}
    begun = config(home, "interrupted", space, task=pausing, scaling__num_workers=1)
    first = sweep(begun, listener=StopAfter(1))
    assert first.status == "interrupted"
    assert states(first) == {"0000": "finished", "0001": "pending"}
    end_pauses(home)
    run = begun.with_overrides({"sweep.isolation": "process"})
    second = sweep(run, resume=True)
    assert second.sweep_id == first.sweep_id
    assert first.cost is not None
    assert second.cost is not None
    assert second.cost.allocated > first.cost.allocated
    assert (first.cost.parts["unfinished"] > 0, second.cost.parts["unfinished"]) == (True, 0)
    assert max(first.cost.gap, second.cost.gap) < 0.01
    assert list(states(second).values()) == ["finished"] * 2
    assert [trial.attempts for trial in second.trials] == [1, 2]
    assert {t.id: t.weights_sha256 for t in second.trials} == weights_alone(home, run, second.trials)
    parent, children = mlflow_runs(home)
    assert parent.info.status == "FINISHED"
    assert [child.info.status for child in children.values()] == ["FINISHED"] * 2
    if extends:
        check_extension(home, begun, second)


def check_extension(home: Path, begun: ExperimentConfig, finished: SweepResult) -> None:
    """The finished sweep gets more values and seeds; what it has is kept."""
    larger = begun.with_overrides({"sweep.space": {"optimizer.lr": [0.03, 0.05, 0.1]}, "sweep.seeds": 2})
    with pytest.raises(ConfigError):
        sweep(larger.with_overrides({"trainer.epochs": 3}), extend=True)
    result = sweep(larger, extend=True)
    assert (result.status, result.sweep_id) == ("finished", finished.sweep_id)
    assert result.parent_run_id == finished.parent_run_id
    assert [trial.id for trial in result.trials] == [f"{number:04d}" for number in range(6)]
    settings = [(trial.params["optimizer.lr"], trial.params["seed"]) for trial in result.trials]
    assert settings == [(0.05, 0), (0.1, 0), (0.05, 1), (0.1, 1), (0.03, 0), (0.03, 1)]
    assert set(states(result).values()) == {"finished"}
    assert [trial.attempts for trial in result.trials] == [1, 2, 1, 1, 1, 1]
    weights = {trial.id: trial.weights_sha256 for trial in result.trials}
    assert {trial.id: trial.weights_sha256 for trial in finished.trials}.items() <= weights.items()
    assert len(set(weights.values())) == 6
    assert result.best is not None
    assert len(result.table) == 3
    assert set(result.table["n"]) == {2}
    assert load_config(result.best_config_path).seed == result.best.params["seed"]
    assert load_sweep(result.folder).best == result.best
    parent, children = mlflow_runs(home)
    assert (parent.info.run_id, parent.info.status) == (finished.parent_run_id, "FINISHED")
    assert parent.data.metrics["trials/finished"] == 6
    assert sorted(children) == sorted(weights)
    assert {child.info.status for child in children.values()} == {"FINISHED"}
    assert {child.data.params["seed"] for child in children.values()} == {"0", "1"}


@pytest.mark.slow
def test_asha_prunes_bad_trials(home: Path) -> None:
    rates = [1e-6, 1e-5, 0.3, 1e-4, 1e-3, 1e-7]
    asha = {"sweep__scheduler": "asha", "sweep__first_rung": 96}
    result = sweep(config(home, "asha", {"optimizer.lr": rates}, trainer__epochs=9, **asha))
    assert result.best is not None
    assert result.best.params == {"optimizer.lr": 0.3}
    (listed,) = list_runs("asha", home / "runs")
    assert (listed.status, listed.summary) == ("finished", result.summary)
    assert "(lr=0.3)" in listed.summary
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    assert len(pruned) >= 2
    assert all("asha" in trial.reason and trial.steps < 54 for trial in pruned)
    assert sum(trial.samples for trial in result.trials) < 0.7 * len(rates) * 9 * 96
    _, children = mlflow_runs(home)
    assert {children[trial.id].info.status for trial in pruned} == {"KILLED"}


@pytest.mark.slow
def test_pbt_copies_good_trials(home: Path) -> None:
    """Three of four begin with a learning rate at which nothing is learned."""
    space = {"optimizer.lr": [1e-5, 2e-5, 3e-5, 0.1]}
    pbt = {"sweep__scheduler": "pbt", "sweep__first_rung": 96, "sweep__metric": "val/loss"}
    run = config(home, "pbt", space, trainer__epochs=8, **pbt)
    result = sweep(run)
    assert modes_in(home / "runs") == PRIVATE
    assert set(states(result).values()) == {"finished"}
    assert [trial.params["optimizer.lr"] for trial in result.trials] != space["optimizer.lr"]
    assert all(trial.steps == 48 for trial in result.trials)
    without = sweep(config(home, "alone", space, trainer__epochs=8))
    mean = {each.name: sum(trial.metrics["val/loss"] for trial in each.trials) / 4 for each in (result, without)}
    assert mean["pbt"] < mean["alone"] - 0.1


@pytest.mark.slow
def test_optuna_weighs_two_objectives(home: Path) -> None:
    space = {"optimizer.lr": {"loguniform": [1e-3, 0.5]}, "trainer.gradient_accumulation_steps": [1, 2]}
    objectives = {"sweep__metric": ["val/loss", "samples_per_second"], "sweep__mode": ["min", "max"]}
    run = config(home, "optuna", space, sweep__search="optuna", sweep__num_samples=6, **objectives)
    result = sweep(run)
    assert list(states(result).values()) == ["finished"] * 6
    values = {trial.id: (trial.metrics["val/loss"], -trial.metrics["samples_per_second"]) for trial in result.trials}
    best = {
        id
        for id, own in values.items()
        if not any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in values.values())
    }
    assert {trial.id for trial in result.pareto} == best
    assert result.to_json()["pareto"][0]["id"] == result.pareto[0].id
