"""Contents of the sweep's own MLflow run, and the end of a sweep: its status, and the best config as a file."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import secrets_of, shareable
from paceline.config.space import Range
from paceline.durable import write_durably
from paceline.errors import ConfigError
from paceline.redaction import redact, redact_values
from paceline.sweeps.messages import INTERRUPTED
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.results import ranking
from paceline.sweeps.results.labels import is_number
from paceline.sweeps.results.ranking import MEASURES, best_trial, value_of
from paceline.sweeps.states import ENDED
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.trial import Trial
from paceline.tracking.costs import Ledger
from paceline.tracking.markdown import pictures_part
from paceline.tracking.mlflow_views import SweepStory, ViewAxis, sweep_views
from paceline.tracking.provenance import command_line, launch_tags, provenance
from paceline.tracking.run_record import RunRecord, flatten, param_text, sweep_tags
from paceline.tracking.sweep_note import Objective, sweep_note
from paceline.tracking.trials_table import TrialRow, trials_csv
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor

if TYPE_CHECKING:
    from paceline.sweeps.launch import SweepLaunch


def sweep_record(launch: "SweepLaunch") -> RunRecord:
    """The record of the parent run."""
    config = shareable(launch.config)
    origin = provenance(command_line(sys.argv), git_diff=config.tracking.git_diff)
    return RunRecord(
        run_id=launch.folder.run_id,
        name=launch.config.name,
        uri=launch.uri,
        experiment=launch.config.tracking.experiment or launch.config.name,
        params=flatten(config.model_dump(mode="json")),
        tags={**origin.tags, **sweep_tags(launch.folder.run_id)},
        artifacts={"config.yaml": dump_yaml(config), **origin.artifacts},
        secrets=secrets_of(launch.config),
        picture=False,
        views=sweep_views(story_of(launch)),
    )


def story_of(launch: "SweepLaunch") -> SweepStory:
    """Return the contents of the saved view of the sweep."""
    section = launch.sweep
    axes = [
        ViewAxis(key, isinstance(axis, Range) or all(map(is_number, axis)), isinstance(axis, Range))
        for key, axis in section.space.items()
    ]
    return SweepStory(launch.folder.run_id, launch.config.name, section.objectives, axes, section.seeds)


def common_tags() -> dict[str, str]:
    """The tags that all trials of a launch have in common."""
    return launch_tags(command_line(sys.argv))


def rows_of(launch: "SweepLaunch", trials: Sequence[Trial]) -> list[TrialRow]:
    """The trials as the sweep's record shows them."""
    workers = max(1, launch.config.scaling.num_workers)
    return [
        TrialRow(
            id=trial.id,
            setting=trial.setting,
            state=trial.state,
            reason=trial.reason,
            metrics={**trial.metrics, **_measures(trial, launch.sweep.metrics)},
            samples=trial.samples,
            samples_per_second=trial.samples_per_second,
            seconds=trial.seconds,
            workers=int(trial.params.get("scaling.num_workers", workers) or 1),
            seed=str(trial.params.get("seed", "")),
            violations=trial.violations,
        )
        for trial in trials
    ]


def _measures(trial: Trial, metrics: Sequence[str]) -> dict[str, float]:
    """Return those of a sweep's metrics that a trial knows of itself, such as its seconds."""
    values = {metric: value_of(trial, metric) for metric in metrics if metric in MEASURES}
    return {metric: value for metric, value in values.items() if value is not None}


def note_of(
    launch: "SweepLaunch",
    trials: Sequence[Trial],
    status: str,
    reason: str,
    ledger: Ledger | None = None,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return the result of the sweep, as Markdown for the page of its own run.

    Args:
        pictures: those among its artifacts: file name to what it shows.
    """
    objectives = [Objective(metric, mode) for metric, mode in launch.sweep.objectives]
    best = best_trial(trials, launch.sweep.objectives)
    command = f"paceline train {shlex.quote(str(launch.folder.best_config))}" if best is not None else ""
    about = best.id if best else None, command, ledger, changes_of(launch.config, best) if best else None
    run_id = UploadCursor.load(launch.folder.tracking / CURSOR_FILE).run_id if pictures else ""
    rows = rows_of(launch, trials)  # as they are: hidden first, settings with different secrets would be one
    return sweep_note(
        launch.config.name, status, reason, objectives, rows, *about, pictures_part(pictures or {}, run_id)
    )


def changes_of(config: ExperimentConfig, best: Trial) -> dict[str, tuple[str, str]]:
    """Return the values of the sweep's config that a trial replaces, by dotted key: both values as text."""
    chosen = trial_config(config, best.params)
    before, after = (
        flatten(each.model_dump(mode="json", exclude={"sweep", "scale", "tuneup"})) for each in (config, chosen)
    )
    keys = [key for key in dict.fromkeys([*after, *before]) if before.get(key) != after.get(key)]
    # a mapping that was empty, and is named by what it holds now
    keys = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]
    texts = [{key: param_text(values.get(key)) for key in keys} for values in (before, after)]
    old, new = (without_secrets(values) for values in texts)
    return {key: (old[key], new[key]) for key in keys}


def artifacts_of(launch: "SweepLaunch", trials: Sequence[Trial], best: str | None) -> dict[str, bytes]:
    """The files of the sweep's own run: all trials as JSON and as a table, and the best config; without secrets."""
    hidden = [replace(trial, params=without_secrets(trial.params), reason=redact(trial.reason)) for trial in trials]
    files = {"trials.json": trials_json(hidden), "trials.csv": trials_csv(_table_rows(launch, trials)).encode()}
    return files if best is None else {**files, "best.yaml": redact(best).encode()}


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a trial's keys as they may be shown, what lies within them included."""
    # value by value, since hiding them in the text would leave no valid JSON
    inner = {key: without_secrets(value) for key, value in values.items() if isinstance(value, Mapping)}
    lists = {
        key: [without_secrets({key: each})[key] for each in value]
        for key, value in values.items()
        if isinstance(value, list)
    }
    return redact_values({**values, **inner, **lists})


def _table_rows(launch: "SweepLaunch", trials: Sequence[Trial]) -> list[TrialRow]:
    rows = rows_of(launch, trials)
    return [
        replace(
            row,
            setting=without_secrets(row.setting),
            reason=redact(row.reason),
            metrics=_without_columns(row.metrics),
        )
        for row in rows
    ]


def _without_columns(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without what has a column of its own."""
    own = ("samples", "samples_per_second", "seconds")
    return {key: value for key, value in metrics.items() if key not in own}


@dataclass(frozen=True)
class Closing:
    """The end of a sweep."""

    status: str
    """`finished`, `stopped` or `interrupted`."""
    trials: list[Trial]
    report: dict[str, Any] = field(default_factory=dict)
    """A `UploadReport` of the sweep's own run."""
    fault: str = ""
    """The reason why it could not continue; empty when it could."""
    disk_full: str = ""
    """The reason why trials are left that the same command continues with: a disk was full; empty when none was."""
    cost: Ledger | None = None
    """Cost of all launches together."""
    can_continue: bool = False
    """True if the same command continues with the sweep; otherwise it starts a new one, with any config."""


def status_of(trials: Sequence[Trial], total: int, over: str) -> str:
    """Return the status of the sweep, from the reason why it was over early, if any."""
    if over == INTERRUPTED:
        return "interrupted"
    if over:
        return "stopped"
    ended = sum(trial.state in ENDED for trial in trials)
    return "finished" if ended >= total else "interrupted"


def best_config(
    config: ExperimentConfig, trials: Sequence[Trial], objectives: Sequence[ranking.Objective]
) -> str | None:
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
