"""Derived values of planned trials, shown before the sweep starts."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paceline.config.derived import Derived, derive
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.planning.recorded_sizes import RecordedSizes
from paceline.sweeps.trial import PlannedTrial


@dataclass(frozen=True)
class PlannedTrialRow:
    """What follows from one trial. What is only known when the data are loaded, or from trial steps, is None."""

    id: str
    params: Mapping[str, Any]
    lr: float | None
    """Peak learning rate, scaled to the global batch size; None where the module's own optimizer has it."""
    lr_rule: str
    """How it comes about; empty when it is the config's own."""
    global_batch_size: int
    micro_batch_size: int | None
    gradient_accumulation_steps: int | None
    total_steps: int | None
    """Optimizer steps of the whole training."""
    samples: int | None
    """Training samples of the whole training, each counted as often as it is used."""
    warnings: tuple[str, ...]
    """What is valid, but hardly what was meant."""


@dataclass(frozen=True)
class Preview:
    """What follows from the trials of a sweep."""

    rows: list[PlannedTrialRow]
    total_samples: int | None
    """Training samples of all trials, if none of them ends early; None where that of one is not known, or where there
    are no trials yet."""


def describe_trials(
    config: ExperimentConfig, planned_trials: Sequence[PlannedTrial], recorded: RecordedSizes | None = None
) -> Preview:
    """Batch sizes, learning rate, steps and samples of each trial.

    Args:
        recorded: what is known of data whose size is only known when they are loaded.

    Raises:
        ConfigError: one is no valid config; those that `plan_trials` returns are.
    """
    rows = [_row(trial_config(config, planned.params), planned, recorded) for planned in planned_trials]
    samples = [row.samples for row in rows if row.samples is not None]
    return Preview(rows, sum(samples) if rows and len(samples) == len(rows) else None)


def _row(config: ExperimentConfig, planned: PlannedTrial, recorded: RecordedSizes | None) -> PlannedTrialRow:
    derived = _derived(config, recorded)
    return PlannedTrialRow(
        id=planned.id,
        params=planned.params,
        lr=derived.lr,
        lr_rule=derived.lr_rule,
        global_batch_size=derived.batch.global_batch_size,
        micro_batch_size=derived.batch.micro_batch_size,
        gradient_accumulation_steps=derived.batch.gradient_accumulation_steps,
        total_steps=derived.total_steps,
        samples=training_samples(derived, config.data.drop_last),
        warnings=derived.warnings,
    )


def _derived(config: ExperimentConfig, recorded: RecordedSizes | None) -> Derived:
    sizes = config.data.sizes()
    earlier = recorded.of(config) if recorded is not None and sizes is None else None
    if earlier is not None:
        with suppress(ConfigError):  # the data may have changed since
            return derive(config, earlier)
    return derive(config, sizes)


def training_samples(derived: Derived, drop_last: bool) -> int | None:
    """Training samples of a whole training, each counted as often as it is used; None while their number is unknown.

    Args:
        derived: what follows from the config.
        drop_last: whether a last batch that is not full is left out of each epoch.
    """
    steps, each, train = derived.total_steps, derived.steps_per_epoch, derived.train_samples
    if steps is None or each is None or train is None:
        return None
    batch = derived.batch.global_batch_size
    epochs, rest = divmod(steps, each)
    # a last epoch that is cut short has full batches only
    return epochs * (each * batch if drop_last else train) + rest * batch
