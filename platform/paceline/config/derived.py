"""Values derived from a config: batch sizes, learning rate and number of steps, as shown before a run starts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.config.batch_size_schedule import SCHEDULE, ScheduledSteps
from paceline.config.batch_sizes import (
    GLOBAL,
    BatchSizes,
    OpenBatchSizes,
    batch_sizes,
    largest_sizes,
    schedule_of,
    stage_sizes,
)
from paceline.config.ignored import ignored_settings
from paceline.config.lightning import uses_own_optimizer
from paceline.config.steps import epoch_steps, training_steps
from paceline.errors import ConfigError, Problem, coded

if TYPE_CHECKING:
    from paceline.config.data import Sizes
    from paceline.config.experiment import ExperimentConfig


@dataclass(frozen=True)
class StageValues:
    """The values of a stage of a batch-size schedule."""

    samples: int
    """Number of training samples after which the stage begins."""
    first_step: int | None
    """First optimizer step of the stage, counted from 0; None if not known, or if no step begins in the stage."""
    batch: BatchSizes
    lr: float | None
    lr_rule: str

    def lines(self) -> list[tuple[str, str]]:
        """Return the label and text of each line of the stage in the table of derived values."""
        at = f" (step {self.first_step:,})" if self.first_step else ""
        lr = "from the module's configure_optimizers" if self.lr is None else self.lr_rule or f"{self.lr:.6g}"
        return [("batch", f"from {self.samples:,} samples{at}: {self.batch.text()}"), ("learning rate", lr)]


@dataclass(frozen=True)
class Derived:
    """Values that a run will use. Those that depend on the size of the data are None until it is known."""

    batch: BatchSizes | OpenBatchSizes
    """Batch sizes; with a batch-size schedule, those of its first stage."""
    lr: float | None
    """Peak learning rate, scaled to the global batch size; None if a Lightning module configures its optimizer."""
    train_samples: int | None
    validation_samples: int | None
    steps_per_epoch: int | None
    """Optimizer steps per epoch; None with a batch-size schedule, where it differs between epochs."""
    total_steps: int | None
    warmup_steps: int | None
    lr_rule: str = ""
    """Formula of the learning rate, such as `0.1 x 128/256 (linear) = 0.05`, or `0.1 x gain (adascale, 1 to 4)`, where
    `lr` is the value before the gain; empty if the learning rate is not scaled."""
    warnings: tuple[str, ...] = ()
    """Warnings about valid settings that are probably mistakes, one sentence each."""
    total_samples: int | None = None
    """Number of samples of the whole training, each counted as often as it is used."""
    total_epochs: float | None = None
    """Number of passes over the training set in the whole training."""
    stages: tuple[StageValues, ...] = ()
    """Stages of the batch-size schedule; empty without one."""

    def lines(self) -> list[tuple[str, str]]:
        """Return the label and text of each line of the table that is printed before a run starts."""
        return [
            *([] if self.stages else [("batch", self.batch.text()), ("learning rate", self.lr_rule or self._lr())]),
            *(line for stage in self.stages for line in stage.lines()),
            ("samples", self._samples()),
            ("steps", self._steps()),
            *(("warning", text) for text in self.warnings),
        ]

    def _lr(self) -> str:
        return "from the module's configure_optimizers" if self.lr is None else f"{self.lr:.6g}"

    def _samples(self) -> str:
        if self.train_samples is None:
            return "known when the data are loaded"
        return f"{self.train_samples:,} training, {self.validation_samples or 0:,} validation"

    def _steps(self) -> str:
        if self.total_steps is None:
            return "known when the data are loaded"
        each = f", {self.steps_per_epoch:,} an epoch" if self.steps_per_epoch is not None else ""
        warmup = f", warmup over the first {self.warmup_steps:,}" if self.warmup_steps else ""
        return f"{self.total_steps:,}{each}{warmup}"


def derive(config: "ExperimentConfig", sizes: "Sizes | None") -> Derived:
    """Return all values derived from a config.

    Args:
        sizes: number of samples of the data; None if it is not known yet.

    Raises:
        ConfigError: the batch sizes are inconsistent, or an epoch has no step.
    """
    batch, has_lr = batch_sizes(config), not uses_own_optimizer(config)
    largest = largest_sizes(config)
    each = None if sizes is None else _steps_per_epoch(config, largest.global_batch_size, sizes.train)
    scheduled = None
    if (schedule := schedule_of(config)) is not None:
        scheduled = ScheduledSteps(schedule, sizes.train, config.data.drop_last) if sizes is not None else None
        each = None
        total, warmup = _scheduled_length(config, scheduled)
    else:
        total, warmup = _total_steps(config, each), _warmup_steps(config, each, batch.global_batch_size)
    samples, epochs = _samples(config, batch.global_batch_size, sizes, each, total, scheduled)
    return Derived(
        batch=batch,
        lr=config.optimizer.scaled_lr(batch.global_batch_size) if has_lr else None,
        train_samples=sizes.train if sizes else None,
        validation_samples=sizes.validation if sizes else None,
        steps_per_epoch=each,
        total_steps=total,
        warmup_steps=warmup,
        lr_rule=_lr_rule(config, batch.global_batch_size) if has_lr else "",
        warnings=(
            *(coded(text, "warmup-too-long") for text in _long_warmup(warmup, total)),
            *(coded(text, "stage-never-begins") for text in _late_stages(config, samples)),
            *(coded(text, "powersgd-never-starts") for text in _late_powersgd(config, total)),
            *(coded(text, "pipeline-stages-idle") for text in _idle_stages(config, batch.gradient_accumulation_steps)),
            *(coded(text, "no-effect") for text in ignored_settings(config)),
        ),
        total_samples=samples,
        total_epochs=epochs,
        stages=_stages(config, scheduled, has_lr),
    )


def _stages(config: "ExperimentConfig", scheduled: ScheduledSteps | None, has_lr: bool) -> tuple[StageValues, ...]:
    schedule = schedule_of(config)
    if schedule is None:
        return ()
    firsts = {schedule.stage_at(at.samples): at.step for at in scheduled.first_steps()} if scheduled else {}
    return tuple(
        StageValues(
            samples,
            firsts.get(index),
            batch,
            config.optimizer.scaled_lr(batch.global_batch_size) if has_lr else None,
            _lr_rule(config, batch.global_batch_size) if has_lr else "",
        )
        for index, (samples, batch) in enumerate(zip(schedule.starts, stage_sizes(config), strict=True))
    )


def _scheduled_length(config: "ExperimentConfig", scheduled: ScheduledSteps | None) -> tuple[int | None, int | None]:
    """Return the steps of a training with a batch-size schedule, and of its warmup with the first stage's size."""
    if scheduled is None:
        return _total_steps(config, None), config.lr_scheduler.warmup_steps
    size = scheduled.schedule.sizes[0]
    return scheduled.end(config.trainer).step, config.lr_scheduler.warmup_length(scheduled.first_size_epoch, size)


def _samples(
    config: "ExperimentConfig",
    global_batch_size: int,
    sizes: "Sizes | None",
    steps_per_epoch: int | None,
    total_steps: int | None,
    scheduled: ScheduledSteps | None,
) -> tuple[int | None, float | None]:
    """Return the samples and epochs of the whole training; None if they are not known."""
    if scheduled is not None:
        end = scheduled.end(config.trainer)
        return end.samples, scheduled.epochs(end)
    if sizes is None or steps_per_epoch is None or total_steps is None:
        return None, None
    epochs, rest = divmod(total_steps, steps_per_epoch)
    per_epoch = steps_per_epoch * global_batch_size if config.data.drop_last else sizes.train
    # a last epoch that is cut short has full batches only
    return epochs * per_epoch + rest * global_batch_size, total_steps / steps_per_epoch


def _steps_per_epoch(config: "ExperimentConfig", global_batch_size: int, samples: int) -> int:
    steps = epoch_steps(samples, global_batch_size, config.data.drop_last)
    if steps == 0:
        reason = f"an epoch has no step: the training set has {samples} samples"
        hint = ""
        if samples:
            reason += f", fewer than the global batch of {global_batch_size}, and data.drop_last leaves them out"
            hint = f"write a global batch size of {samples} at most, or drop_last: false"
        key = SCHEDULE if schedule_of(config) is not None else GLOBAL
        raise ConfigError([Problem("batch", reason, key if samples else "data", hint=hint)])
    return steps


def _total_steps(config: "ExperimentConfig", steps_per_epoch: int | None) -> int | None:
    if steps_per_epoch is not None:
        return training_steps(config.trainer, steps_per_epoch)
    return config.trainer.max_steps if config.trainer.epochs is None else None


def _warmup_steps(config: "ExperimentConfig", steps_per_epoch: int | None, global_batch_size: int) -> int | None:
    if steps_per_epoch is None and config.lr_scheduler.warmup_epochs:
        return None
    return config.lr_scheduler.warmup_length(steps_per_epoch or 0, global_batch_size)


def _long_warmup(warmup_steps: int | None, total_steps: int | None) -> list[str]:
    if warmup_steps is None or total_steps is None or warmup_steps <= total_steps:
        return []
    steps = f"{total_steps:,} step" if total_steps == 1 else f"{total_steps:,} steps"
    return [
        f"the warmup of {warmup_steps:,} steps is longer than the training of {steps}: "
        "the peak learning rate is never reached"
    ]


def _late_stages(config: "ExperimentConfig", total_samples: int | None) -> list[str]:
    schedule = schedule_of(config)
    if schedule is None or total_samples is None:
        return []
    late = [start for start in schedule.starts if start >= total_samples]
    if not late:
        return []
    return [f"{SCHEDULE} has a stage from {late[0]:,} samples on, but the training ends after {total_samples:,}"]


def _idle_stages(config: "ExperimentConfig", accumulation: int | None) -> list[str]:
    parallel = config.parallel
    stages = parallel.pipeline_stages or config.scaling.num_workers
    if parallel.strategy != "pipeline" or accumulation is None or accumulation >= stages:
        return []
    micro = "1 micro batch" if accumulation == 1 else f"{accumulation} micro batches"
    return [
        f"with {micro} a step, {stages} pipeline stages wait for each other most of the time: set "
        f"trainer.gradient_accumulation_steps to {stages} or more"
    ]


def _late_powersgd(config: "ExperimentConfig", total_steps: int | None) -> list[str]:
    parallel = config.parallel
    start = parallel.powersgd_start_step
    if parallel.comm_hook != "powersgd" or config.scaling.num_workers <= 1 or total_steps is None:
        return []
    if start < total_steps:
        return []
    return [
        f"parallel.powersgd_start_step of {start:,} is not reached in {total_steps:,} "
        f"step{'s' if total_steps > 1 else ''} of training: nothing is compressed"
    ]


def _lr_rule(config: "ExperimentConfig", global_batch_size: int) -> str:
    optimizer = config.optimizer
    lr, base = f"{optimizer.lr:g}", optimizer.base_batch_size
    ratio, result = f"{global_batch_size}/{base}", f"= {optimizer.scaled_lr(global_batch_size):.6g}"
    least, largest = sorted((1.0, global_batch_size / base))
    gains = f"{least:g} to {largest:g}" if least < largest else "always 1"
    return {
        "none": "",
        "linear": f"{lr} x {ratio} (linear) {result}",
        "sqrt": f"{lr} x sqrt({ratio}) (sqrt) {result}",
        "adascale": f"{lr} x gain (adascale, {gains})",
    }[optimizer.lr_scaling]
