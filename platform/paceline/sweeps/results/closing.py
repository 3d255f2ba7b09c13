"""The end of a sweep: the best config as a file, and what the sweep's own MLflow run records."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import shareable
from paceline.durable import write_durably
from paceline.errors import ConfigError
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.results.ranking import Objective, best_trial, value_of
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.trial import ENDED, Trial
from paceline.tracking.costs import Ledger


@dataclass(frozen=True)
class Closing:
    """How a sweep ended."""

    status: str
    """`finished`, `stopped` or `interrupted`."""
    trials: list[Trial]
    report: dict[str, Any] = field(default_factory=dict)
    """A `UploadReport` of the sweep's own run."""
    fault: str = ""
    """Why it could not continue; empty when it could."""
    disk_full: str = ""
    """Why trials are left that the same command continues with: a disk was full; empty when none was."""
    cost: Ledger | None = None
    """What it took, all launches together."""
    goes_on: bool = False
    """Whether the same command continues with the sweep; otherwise it starts a new one, with any config."""


def status_of(trials: Sequence[Trial], total: int, over: str) -> str:
    """How the sweep ended, from the reason why it was over early, if any."""
    if over == "interrupted":
        return "interrupted"
    if over:
        return "stopped"
    ended = sum(trial.state in ENDED for trial in trials)
    return "finished" if ended >= total else "interrupted"


def best_config(config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[Objective]) -> str | None:
    """The config of the best trial, as text that `train` accepts; None without one, or when no file can hold it."""
    best = best_trial(list(trials), list(objectives))
    if best is None:
        return None
    chosen = trial_config(config, best.params).with_overrides({"name": f"{config.name[:95]}-best"})
    try:
        text = dump_yaml(shareable(chosen))
    except ConfigError:  # a Python object in place of a component
        return None
    metric, _ = objectives[0]
    head = f"# The best trial, {best.id}, of the sweep of {config.name}: {metric} {value_of(best, metric):.6g}\n"
    if config.sweep is not None and config.sweep.scheduler == "pbt":
        head += _AFTER_PBT
    return head + text


_AFTER_PBT = """\
# These are the values that it had at its end. The trial took over weights of others, and had other values before:
# a training with this file begins from scratch, has these values throughout, and may end with other metrics.
"""


def write_best(folder: SweepFolder, text: str | None) -> None:
    """Write the best config beside the sweep's journal; an older one goes when there is none."""
    if text is None:
        folder.best_config.unlink(missing_ok=True)
    else:
        write_durably(folder.best_config, text.encode())


def trials_json(trials: Sequence[Trial]) -> bytes:
    """All trials, as `paceline sweep --json` prints them."""
    return json.dumps([trial.to_json() for trial in trials], indent=1, default=str).encode()
