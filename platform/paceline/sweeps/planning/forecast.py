"""Forecast of a sweep: derived values of its trials, slots, rungs, time and cost, as far as they are known before it
starts."""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice, takewhile
from pathlib import Path
from typing import Any

from paceline.cluster.final_report import read_outcome
from paceline.cluster.preflight import local_resources
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import storage_of
from paceline.cluster.unfinished_runs import Intent
from paceline.config.derived import Derived, derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.config.overrides import ConfigWarning
from paceline.config.sweep import StopConfig, SweepConfig
from paceline.errors import ConfigError, EnvironmentFault
from paceline.storage.address import StoreAddress, home_of
from paceline.sweeps.extension import earlier_sections, require_folder
from paceline.sweeps.messages import GroupShape
from paceline.sweeps.planning.planned_trials import PlannedTrials, plan_trials, section_of, trial_config, trial_count
from paceline.sweeps.planning.sizing import (
    RecordedSizes,
    TrialConfigs,
    first_rung,
    fitting_shapes,
    group_shape,
    slots_for,
)
from paceline.sweeps.sweep_folder import SWEEPS, UnfinishedSweep, find_unfinished
from paceline.sweeps.sweep_log import read_log
from paceline.sweeps.trial import PlannedTrial, Trial

MOST_RUNGS = 100
"""Rungs that are shown, at most."""


@dataclass(frozen=True)
class PlannedTrialRow:
    """Derived values of one trial. None: only known when the data are loaded, or from trial steps."""

    id: str
    params: Mapping[str, Any]
    lr: float | None
    """Peak learning rate, scaled to the global batch size; None where the module's own optimizer has it."""
    lr_rule: str
    """The rule that gives it; empty when it is the config's own."""
    global_batch_size: int
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    total_steps: int | None
    """Optimizer steps of the whole training."""
    samples: int | None
    """Training samples of the whole training, each counted as often as it is used."""
    warnings: tuple[str, ...]
    """Valid settings that were hardly meant."""


@dataclass(frozen=True)
class Preview:
    """Derived values of the trials of a sweep."""

    rows: list[PlannedTrialRow]
    total_samples: int | None
    """Training samples of all trials, if none of them ends early; None without trials, or if the number of one is
    unknown."""


@dataclass(frozen=True)
class SlotForecast:
    """Number of trials that will run at the same time, each on a separate worker group."""

    number: int | None
    """Number of slots; None if it depends on a cluster, or if a single group does not fit."""
    fault: str
    """The reason why this machine cannot run the sweep; empty when it can."""
    shapes: list[GroupShape]
    """Shape of each trial's worker group; a single shape if the trials are unknown."""


@dataclass(frozen=True)
class RungPlan:
    """Amounts at which trials are compared, in `budget_unit`."""

    unit: str
    first: float
    factor: float | None
    """Ratio of each rung to the one before; None: there is one at every multiple of the first."""
    amounts: list[float]
    """The rungs before the end of the longest trial, the first `MOST_RUNGS` of them."""
    length: float | None
    """Amount of the longest trial, in `budget_unit`; None if unknown."""


@dataclass(frozen=True)
class Speed:
    """Measured speed of trials of the same name."""

    samples_per_second: float
    source: str
    """The trials or the run that it was measured of, in words."""


@dataclass(frozen=True)
class Cost:
    """Cost of training at a measured speed, without other work such as evaluation."""

    speed: Speed
    seconds: float | None
    """From the first trial's start to the last one's end; None where the number of slots is not known."""
    core_seconds: float
    gpu_seconds: float


@dataclass(frozen=True)
class ExtendedSweep:
    """A sweep that gets more trials."""

    sweep_id: str
    kept: int
    """Trials that have ended, and are not run again."""


@dataclass(frozen=True)
class Forecast:
    """Everything that is reported about a sweep before it starts."""

    sweep: SweepConfig
    made: PlannedTrials
    """Planned trials; in an extension, without those that have ended."""
    preview: Preview
    notes: list[str]
    """Warnings while the trials were made."""
    trials: int
    """Trials that will be trained, at most."""
    slots: SlotForecast
    rungs: RungPlan | None
    samples: int | None
    """Training samples of all trials, if none of them ends early; None where that is not known."""
    samples_from: str
    """The earlier run or sweep that recorded the size of the data; empty where the data have it themselves."""
    cost: Cost | None
    """None where no speed was measured, or the samples are not known."""
    unfinished: UnfinishedSweep | None
    """The sweep of this name that the same command would find; None where it would start a new one."""
    extended: ExtendedSweep | None = None
    """The sweep that `--extend` adds trials to."""

    @property
    def is_bound(self) -> bool:
        """True if trials may end early, so that samples and cost are upper bounds."""
        return self.sweep.scheduler in ("asha", "median") or self.sweep.stop != StopConfig()


def forecast(config: ExperimentConfig, address: str | None = None, intent: Intent = "continue") -> Forecast:
    """Forecast a sweep. Starts nothing, and writes nothing.

    Args:
        config: config with a `sweep` section.
        address: a Ray cluster's address; None for this machine, or inside a submitted job for its cluster.
        intent: which sweep the command works on.

    Raises:
        ConfigError: the config or one of its trials is not valid, or the sweep cannot be extended.
    """
    section = section_of(config)
    if problems := missing_modules(config.model_dump()):
        raise ConfigError(problems)
    storage = storage_of(config)
    if intent == "extend":
        require_folder(storage)
    if isinstance(storage, StoreAddress):  # it is not asked for anything here
        intent, home = "new", home_of(storage.pinned(), config.name)
    else:
        home = storage / config.name
    config = SWEEPS.with_weights(config, home, intent)
    made, notes = _made(config, earlier_sections(config, home, intent))
    extended, ended = _extended(home) if intent == "extend" else (None, {})
    made = made.without(ended)
    trials = len(made.planned_trials) or trial_count(section) - len(ended)
    recorded = RecordedSizes(home)
    preview = describe_trials(config, made.planned_trials, recorded)
    configs = TrialConfigs(config)
    slots = _slots(section, configs.of(made.planned_trials), trials, address)
    samples = preview.total_samples if made.planned_trials else _samples_unseen(config, trials, recorded)
    speed = recorded_speed(home)
    cost = None if speed is None or samples is None else _cost(preview, samples, slots, speed)
    rungs = None
    if section.scheduler != "none":
        rungs = _rungs(section, configs.longest(made.planned_trials, section.budget_unit))
    source = " and ".join(recorded.sources)
    unfinished = find_unfinished(config, home) if intent in ("continue", "resume") else None
    return Forecast(section, made, preview, notes, trials, slots, rungs, samples, source, cost, unfinished, extended)


def _extended(home: Path) -> tuple[ExtendedSweep, dict[str, Trial]]:
    """Return the extended sweep, and its trials that have ended."""
    newest = SWEEPS.last(home)
    assert newest is not None
    ended = read_log(newest.path).ended
    return ExtendedSweep(newest.run_id, sum(trial.state != "skipped" for trial in ended.values())), ended


def _made(config: ExperimentConfig, earlier: Sequence[SweepConfig]) -> tuple[PlannedTrials, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        made = plan_trials(config, earlier)
    return made, [str(warning.message) for warning in caught]


def _samples_unseen(config: ExperimentConfig, trials: int, recorded: RecordedSizes) -> int | None:
    """Samples of trials that are not known yet, as if they were trained as the config stands."""
    each = describe_trials(config, [PlannedTrial("", {})], recorded).total_samples
    return None if each is None else each * trials


def describe_trials(
    config: ExperimentConfig, planned_trials: Sequence[PlannedTrial], recorded: RecordedSizes | None = None
) -> Preview:
    """Batch sizes, learning rate, steps and samples of each trial.

    Args:
        recorded: recorded facts about data whose size is otherwise only known after loading.

    Raises:
        ConfigError: a trial's config is not valid; those that `plan_trials` returns are valid.
    """
    rows = [_row(trial_config(config, planned.params), planned, recorded) for planned in planned_trials]
    samples = [row.samples for row in rows if row.samples is not None]
    return Preview(rows, sum(samples) if rows and len(samples) == len(rows) else None)


def _row(config: ExperimentConfig, planned: PlannedTrial, recorded: RecordedSizes | None) -> PlannedTrialRow:
    derived = _derived(config, recorded)
    return PlannedTrialRow(
        id=planned.id,
        params=planned.params,
        lr=max((stage.lr for stage in derived.stages if stage.lr is not None), default=derived.lr),
        lr_rule=derived.lr_rule,
        global_batch_size=derived.batch.global_batch_size,
        micro_batch_size=derived.batch.micro_batch_size,
        gradient_accumulation_steps=derived.batch.gradient_accumulation_steps,
        total_steps=derived.total_steps,
        samples=derived.total_samples,
        warnings=derived.warnings,
    )


def _derived(config: ExperimentConfig, recorded: RecordedSizes | None) -> Derived:
    sizes = config.data.sizes()
    earlier = recorded.of(config) if recorded is not None and sizes is None else None
    if earlier is not None:
        with suppress(ConfigError):  # the data may have changed since
            return derive(config, earlier)
    return derive(config, sizes)


def _slots(section: SweepConfig, configs: Sequence[ExperimentConfig], trials: int, address: str | None) -> SlotForecast:
    available = local_resources()
    shapes = [group_shape(each, available) for each in configs]
    asked = None if section.slots == "auto" else min(section.slots, max(trials, 1))
    if on_cluster(address):
        return SlotForecast(asked, "", shapes)
    try:
        fitting_shapes(configs, available, "this machine")
        return SlotForecast(slots_for(section, shapes, available, trials), "", shapes)
    except EnvironmentFault as error:  # it may be meant for another machine
        return SlotForecast(asked, error.message, shapes)


def _rungs(section: SweepConfig, length: float) -> RungPlan:
    first = first_rung(section, length)
    factor = section.rung_factor if section.scheduler == "asha" else None
    if not math.isfinite(length):
        return RungPlan(section.budget_unit, first, factor, [first], None)
    rungs = (first * (number + 1 if factor is None else factor**number) for number in count())
    before = takewhile(lambda rung: rung < length * (1 - 1e-9), rungs)
    return RungPlan(section.budget_unit, first, factor, list(islice(before, MOST_RUNGS)), length)


def recorded_speed(home: Path) -> Speed | None:
    """The speed of the newest sweep or run in a folder that has one; None when nothing there has.

    Args:
        home: `<storage>/<name>`.
    """
    for folder in sorted(home.glob("*/"), reverse=True):
        speed = _sweep_speed(folder) or _run_speed(folder)
        if speed is not None:
            return speed
    return None


def _sweep_speed(folder: Path) -> Speed | None:
    try:
        trials = read_log(folder).trials.values()
    except (OSError, KeyError, TypeError):  # of another version
        return None
    known = [trial for trial in trials if trial.samples > 0 and 0 < trial.samples_per_second < math.inf]
    if not known:
        return None
    seconds = sum(trial.samples / trial.samples_per_second for trial in known)
    number = "1 trial" if len(known) == 1 else f"{len(known):,} trials"
    return Speed(sum(trial.samples for trial in known) / seconds, f"{number} of sweep {folder.name}")


def _run_speed(folder: Path) -> Speed | None:
    value = (read_outcome(folder / "tracking") or {}).get("samples_per_second")
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        return None
    return Speed(float(value), f"run {folder.name}")


def _cost(preview: Preview, samples: int, slots: SlotForecast, speed: Speed) -> Cost:
    amounts = [row.samples or 0 for row in preview.rows] or [samples]
    seconds = [amount / speed.samples_per_second for amount in amounts]
    return Cost(
        speed,
        sum(seconds) / slots.number if slots.number else None,
        sum(each * shape.cpus for each, shape in zip(seconds, slots.shapes, strict=True)),
        sum(each * shape.gpus for each, shape in zip(seconds, slots.shapes, strict=True)),
    )
