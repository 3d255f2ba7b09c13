"""What the sweep's own MLflow run is told."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.config.loading import dump_yaml
from paceline.sweeps.closing import trials_json
from paceline.sweeps.ranking import best_trial
from paceline.sweeps.trials import Trial
from paceline.tracking.record import RunRecord, command_line, flatten, launch_tags, sweep_tags
from paceline.tracking.redact import shareable
from paceline.tracking.sweep_note import Objective, TrialRow, sweep_note, trials_csv

if TYPE_CHECKING:
    from paceline.sweeps.sweep import SweepLaunch


def sweep_record(launch: "SweepLaunch") -> RunRecord:
    """The record of the parent run."""
    config = shareable(launch.config)
    return RunRecord(
        run_id=launch.folder.run_id,
        name=launch.config.name,
        uri=launch.uri,
        experiment=launch.config.tracking.experiment or launch.config.name,
        params=flatten(config.model_dump(mode="json")),
        tags={**launch_tags(command_line(sys.argv)), **sweep_tags(launch.folder.run_id)},
        artifacts={"config.yaml": dump_yaml(config)},
        picture=False,
    )


def common_tags() -> dict[str, str]:
    """The tags that all trials of a launch have in common."""
    return launch_tags(command_line(sys.argv))


def rows_of(launch: "SweepLaunch", trials: Sequence[Trial]) -> list[TrialRow]:
    """The trials as the sweep's record tells of them."""
    workers = max(1, launch.config.scaling.num_workers)
    return [
        TrialRow(
            id=trial.id,
            setting=trial.setting,
            state=trial.state,
            reason=trial.reason,
            metrics=trial.metrics,
            samples=trial.samples,
            samples_per_second=trial.samples_per_second,
            seconds=trial.seconds,
            workers=int(trial.overrides.get("scaling.num_workers", workers) or 1),
        )
        for trial in trials
    ]


def note_of(launch: "SweepLaunch", trials: Sequence[Trial], status: str, reason: str) -> str:
    """What the sweep came to, as Markdown for the page of its own run."""
    objectives = [Objective(metric, mode) for metric, mode in launch.sweep.objectives]
    best = best_trial(trials, launch.sweep.objectives)
    command = f"paceline train {launch.folder.best_config}" if best is not None else ""
    rows = rows_of(launch, trials)
    return sweep_note(launch.config.name, status, reason, objectives, rows, best.id if best else None, command)


def artifacts_of(launch: "SweepLaunch", trials: Sequence[Trial], best: str | None) -> dict[str, bytes]:
    """The files of the sweep's own run: all trials as JSON and as a table, and the best config."""
    files = {"trials.json": trials_json(trials), "trials.csv": trials_csv(rows_of(launch, trials)).encode()}
    return files if best is None else {**files, "best.yaml": best.encode()}
