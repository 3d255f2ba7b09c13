"""`paceline sweep --dry-run`: every planned trial with its derived values, and the forecast of the cost."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paceline.cluster.unfinished_runs import Intent
from paceline.config.experiment import ExperimentConfig
from paceline.config.space import Range
from paceline.errors import BAD_ENVIRONMENT, OK
from paceline.redaction import redact, redact_values
from paceline.reports.text import number_text
from paceline.sweeps.messages import GroupShape
from paceline.sweeps.planning.forecast import Cost, Forecast, PlannedTrialRow, RungPlan, forecast
from paceline.sweeps.results.labels import setting_text, short_names, value_text
from paceline.sweeps.sweep_folder import UnfinishedSweep

FIRST_ROWS = 50
LAST_ROWS = 5
"""Number of last rows of a table that are shown. A longer table shows only its first and its last rows."""
SHOWN_RUNGS = 8
_BATCH = {
    "data.global_batch_size": ("global batch", "global_batch_size"),
    "data.micro_batch_size": ("micro batch", "micro_batch_size"),
    "trainer.gradient_accumulation_steps": ("accumulation", "gradient_accumulation_steps"),
}
"""Config key to heading and attribute of the derived value."""
_TRIAL_FIELDS = (
    "lr",
    "global_batch_size",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "total_steps",
    "samples",
    "warnings",
)


def dry_run(config: ExperimentConfig, as_json: bool, address: str | None = None, intent: Intent = "continue") -> int:
    """Check all trials of a sweep and print them. Starts nothing.

    Returns the exit code: that of an environment fault if this machine cannot run the sweep.

    Args:
        config: config with a `sweep` section.
        as_json: print one object.
        address: a Ray cluster's address, whose size is not queried; None for this machine.
        intent: which sweep the command works on.

    Raises:
        ConfigError: the config or one of its trials is not valid.
    """
    found = forecast(config, address, intent)
    code = BAD_ENVIRONMENT if found.slots.fault else OK
    if as_json:
        print(json.dumps(_as_json(found)))
        return code
    from paceline.display import print_rows, print_table  # rich takes a moment to import

    if found.preview.rows:
        print_table(*_table(found.preview.rows))
        print()
    print_rows([(label, redact(text)) for label, text in [*_skipped(found), *_warnings(found), *_lines(found)]])
    return code


def _as_json(found: Forecast) -> dict[str, Any]:
    cost, rungs = found.cost, found.rungs
    return {
        "trials": [_trial_json(row) for row in found.preview.rows],
        "skipped": [
            {"id": trial.id, "params": redact_values(trial.params), "reason": redact(trial.reason)}
            for trial in found.made.skipped
        ],
        "warnings": list(_warning_counts(found)),
        "num_trials": found.trials,
        "slots": found.slots.number,
        "fault": found.slots.fault or None,
        "unfinished": asdict(found.unfinished) if found.unfinished else None,
        "extended": asdict(found.extended) if found.extended else None,
        "search": found.sweep.search,
        "scheduler": found.sweep.scheduler,
        "rungs": asdict(rungs) if rungs else None,
        "total_samples": found.samples,
        "samples_from": found.samples_from or None,
        "estimated_seconds": cost.seconds if cost else None,
        "estimated_core_seconds": cost.core_seconds if cost else None,
        "estimated_gpu_seconds": cost.gpu_seconds if cost else None,
        "estimated_from": cost.speed.source if cost else None,
    }


def _trial_json(row: PlannedTrialRow) -> dict[str, Any]:
    return {"id": row.id, "params": redact_values(row.params)} | {name: getattr(row, name) for name in _TRIAL_FIELDS}


def _table(rows: Sequence[PlannedTrialRow]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells; of many rows those at both ends."""
    keys = list(dict.fromkeys(key for row in rows for key in row.params))
    batch = [entry for key, entry in _BATCH.items() if key not in keys and _varies(rows, entry[1])]
    names = short_names(keys)
    heading = ["id", *names.values(), "peak lr", *(title for title, _ in batch), "steps", "samples"]
    hidden = len(rows) - FIRST_ROWS - LAST_ROWS
    shown = rows if hidden <= 0 else [*rows[:FIRST_ROWS], *rows[-LAST_ROWS:]]
    cells = [_cells(row, keys, [attribute for _, attribute in batch]) for row in shown]
    if hidden > 0:
        cells.insert(FIRST_ROWS, [f"... and {hidden:,} more", *[""] * (len(heading) - 1)])
    return heading, cells


def _varies(rows: Sequence[PlannedTrialRow], attribute: str) -> bool:
    return len({getattr(row, attribute) for row in rows}) > 1


def _cells(row: PlannedTrialRow, keys: Sequence[str], batch: Sequence[str]) -> list[str]:
    own = redact_values(row.params)
    settings = [value_text(own[key]) if key in own else "" for key in keys]
    derived = [_count_text(getattr(row, name)) for name in (*batch, "total_steps", "samples")]
    return [row.id, *settings, "own" if row.lr is None else f"{row.lr:.4g}", *derived]


def _count_text(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _skipped(found: Forecast) -> list[tuple[str, str]]:
    skipped = found.made.skipped
    names = short_names(found.sweep.space)
    lines = [
        ("skipped", f"{trial.id} ({setting_text(redact_values(trial.params), names)}): {trial.reason}")
        for trial in skipped
    ]
    hidden = len(lines) - FIRST_ROWS - LAST_ROWS
    if hidden <= 0:
        return lines
    return [*lines[:FIRST_ROWS], ("skipped", f"... and {hidden:,} more"), *lines[-LAST_ROWS:]]


def _warnings(found: Forecast) -> list[tuple[str, str]]:
    total = len(found.preview.rows)
    return [
        ("warning", text if number in (0, total) else f"{number:,} of {total:,} trials: {text}")
        for text, number in _warning_counts(found).items()
    ]


def _warning_counts(found: Forecast) -> dict[str, int]:
    """Each warning once, with the number of trials that it is about; 0 for one about the sweep as a whole."""
    counts = Counter(text for row in found.preview.rows for text in row.warnings)
    return {**dict.fromkeys(found.notes, 0), **counts}


def _lines(found: Forecast) -> list[tuple[str, str]]:
    skipped = len(found.made.skipped)
    most = "at most " if found.is_bound else ""
    return [
        ("trials", f"{found.trials:,}{f'; {skipped:,} more are not a valid config' if skipped else ''}"),
        ("slots", _slots_text(found)),
        ("search", _search_text(found)),
        ("scheduler", _rungs_text(found.sweep.scheduler, found.rungs)),
        ("samples", _samples_text(found, most)),
        ("cost", _cost_text(found, most)),
        *_unfinished(found.unfinished),
        *_extended(found),
    ]


def _samples_text(found: Forecast, most: str) -> str:
    if found.samples is None:
        return "known when the data are loaded"
    text = f"{most}{found.samples:,} to train on"
    if not found.preview.rows:
        text += ", if each trial takes as many as the config without its axes"
    return text + (f", if the data are as large as in {found.samples_from}" if found.samples_from else "")


def _unfinished(found: UnfinishedSweep | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    trials = "1 trial has" if found.ended == 1 else f"{found.ended:,} trials have"
    text = f"sweep {found.sweep_id}, of which {trials} ended"
    if found.differing:
        what = ", ".join(found.differing)
        return [("unfinished", f"{text}, has another config ({what}): undo the change, or start again with --new")]
    return [("unfinished", f"{text}: the same command without --dry-run resumes it")]


def _extended(found: Forecast) -> list[tuple[str, str]]:
    if found.extended is None:
        return []
    return [("extended", f"sweep {found.extended.sweep_id}, whose {found.extended.kept:,} trials are kept")]


def _slots_text(found: Forecast) -> str:
    slots = found.slots
    if slots.fault:
        return f"this machine cannot run it: {slots.fault}"
    groups = " or ".join(dict.fromkeys(_group_text(shape) for shape in slots.shapes))
    if slots.number is None:
        return f"auto: as many as the cluster has room for, each with {groups}"
    asked = "as asked for" if found.sweep.slots != "auto" else "as many as there is use and room for here"
    return f"{slots.number:,}, {asked}; each with {groups}"


def _group_text(shape: GroupShape) -> str:
    cores = "1 CPU core" if shape.cpus == 1 else f"{shape.cpus:g} CPU cores"
    return cores + (f" and {shape.gpus:g} GPU{'' if shape.gpus == 1 else 's'}" if shape.gpus else "")


def _search_text(found: Forecast) -> str:
    sweep = found.sweep
    goals = ", ".join(f"{'lowest' if mode == 'min' else 'highest'} {metric}" for metric, mode in sweep.objectives)
    goals += "".join(f", with {limit.text}" for limit in sweep.limits)
    if sweep.search != "optuna":
        return f"{sweep.search}, for the {goals}"
    names = short_names(sweep.space)
    axes = ", ".join(f"{names[key]} {_axis_text(axis)}" for key, axis in sweep.space.items())
    return f"optuna, for the {goals}; it chooses each trial by those before it: {axes}"


def _axis_text(axis: Any) -> str:
    if isinstance(axis, Range):
        low, high = axis.bounds
        return f"from {value_text(low)} to {value_text(high)}"
    return "one of " + ", ".join(value_text(value) for value in axis)


def _rungs_text(scheduler: str, rungs: RungPlan | None) -> str:
    if rungs is None:
        return "none: all trials are trained to the end"
    if rungs.factor is None:
        text = f"{scheduler}, compares every {number_text(rungs.first)}"
    else:
        amounts = [number_text(amount) for amount in rungs.amounts[:SHOWN_RUNGS]]
        text = f"{scheduler}, compares at {', '.join(amounts)}"
        if rungs.length is None:
            text += f", then each {rungs.factor:g} times as far,"
        elif len(rungs.amounts) > SHOWN_RUNGS:
            text += ", ..."
    return text + (f" {rungs.unit}" if rungs.length is None else f" of {number_text(rungs.length)} {rungs.unit}")


def _cost_text(found: Forecast, most: str) -> str:
    cost = found.cost
    if cost is None:
        known = "" if found.samples is None else f": about {found.samples:,} samples"
        return f"unknown until a first run{known}"
    wall = "" if cost.seconds is None else f"{_duration(cost.seconds)}, "
    speed = f"{number_text(cost.speed.samples_per_second)} samples/s of {cost.speed.source}"
    return f"{most}about {wall}{_device_text(cost)}, at {speed}; evaluation and the start come on top"


def _device_text(cost: Cost) -> str:
    if cost.gpu_seconds:
        return f"{number_text(cost.gpu_seconds)} GPU-seconds"
    return f"{number_text(cost.core_seconds)} core-seconds"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
