"""The jobs of a study in its worker processes: a look at the model and the data, and a stretch of training."""

import shutil
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline._compat.torch import BatchNormBase
from paceline.bench.jobs import START_ANEW
from paceline.bench.surroundings import surroundings
from paceline.callbacks._ema import EMA
from paceline.callbacks.callback import Callback, Control, TrainContext
from paceline.cluster.initial_weights import weights_finder
from paceline.cluster.run_folder import place_checkpoint
from paceline.config.experiment import ExperimentConfig
from paceline.config.hints import listed
from paceline.data.base import DataConfig
from paceline.direction import Direction
from paceline.engine.build import build_trainer
from paceline.engine.build_task import seed_model
from paceline.engine.dist_context import DistContext
from paceline.engine.manifest import BrokenCheckpoint, verify
from paceline.engine.outcome import Diverged
from paceline.engine.reporter import MemoryReporter
from paceline.engine.trainer import Trainer
from paceline.engine.trial_steps import release
from paceline.errors import EnvironmentFault
from paceline.models.base import ModelConfig
from paceline.tasks.base import TaskConfig

LOOK = "paceline.batch_scaling.segment:look"
TRAIN_SEGMENT = "paceline.batch_scaling.segment:train_segment"


class Segment(Callback):
    """Ends a stretch of training at a number of samples, once a metric has reached its target, or once it has missed a
    deadline; all of them are looked at after evaluations alone.

    Args:
        until_samples: None sets no end.
        metric: of the evaluation, compared with `target`; None compares none.
        deadlines: pairs of samples and a value of that metric: the stretch ends if its first evaluation from so many
            samples on has not reached the value.
        save_at_steps: optimizer steps after which a checkpoint is saved; an evaluation must fall on each.
    """

    def __init__(
        self,
        until_samples: int | None = None,
        metric: str | None = None,
        target: float = 0.0,
        mode: Direction = "max",
        save_at_steps: Sequence[int] = (),
        deadlines: Sequence[tuple[int, float]] = (),
    ) -> None:
        self._until = inf if until_samples is None else until_samples
        self._metric, self._target, self._mode = metric, target, mode
        self._deadlines = list(deadlines)
        self._save_at_steps = frozenset(save_at_steps)
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        """Samples and metrics of each evaluation."""
        self.saved: list[tuple[int, int]] = []
        """Samples and step of each checkpoint that was asked for."""

    def on_evaluation_end(self, ctx: TrainContext, metrics: Mapping[str, float]) -> Control:
        """Stop, or save, if that is due."""
        self.evaluations.append((ctx.samples, dict(metrics)))
        value = None if self._metric is None else metrics.get(self._metric)
        due = [deadline for deadline in self._deadlines if deadline[0] <= ctx.samples]
        self._deadlines = [deadline for deadline in self._deadlines if deadline[0] > ctx.samples]
        is_late = not all(is_reached(value, least, self._mode) for _, least in due)
        if is_reached(value, self._target, self._mode) or ctx.samples >= self._until or is_late:
            return Control.STOP
        if ctx.step in self._save_at_steps:
            self.saved.append((ctx.samples, ctx.step))
            return Control.SAVE
        return Control.CONTINUE


class TrailingAverage(EMA):
    """Evaluates a branch with an average of its weights, which begins at those that it resumed with: single weights
    scatter by more than a branch gains.

    Args:
        decay: weight of the average so far at each step.
    """

    def __init__(self, decay: float) -> None:
        super().__init__(decay, warmup=False)

    def on_train_start(self, ctx: TrainContext) -> None:
        """Start from the weights that were resumed."""
        self.setup(ctx)


def is_reached(value: float | None, target: float, mode: Direction) -> bool:
    """Return True if a metric is at its target or beyond it."""
    return value is not None and (value >= target if mode == "max" else value <= target)


def look(configs: Sequence[ExperimentConfig], options: Mapping[str, Any], ranks: DistContext) -> Mapping[str, Any]:
    """Build the model and the data once.

    Returns:
        `train_samples` of an epoch, or None for a stream; `builds_optimizers`, `normalises_batches`, and what
        measurements depend on.
    """
    (config,) = configs
    seed_model(config.seed)
    task = TaskConfig.of(config.task).build(ModelConfig.of(config.model).build())
    sets = DataConfig.of(config.data).sets()
    counted = sets.sampler if sets.sampler is not None else sets.train
    return {
        **surroundings(config, ranks),
        "train_samples": len(counted) if hasattr(counted, "__len__") else None,
        "builds_optimizers": task.builds_optimizers or not task.automatic_optimization,
        "normalises_batches": any(isinstance(each, BatchNormBase) for each in task.modules()),
    }


def train_segment(
    configs: Sequence[ExperimentConfig], options: Mapping[str, Any], ranks: DistContext
) -> Mapping[str, Any]:
    """Train until the config's `Segment` says to stop, or to the end.

    Args:
        configs: one, whose last callback is a `Segment`.
        options: `checkpoints`, the name of a folder in that of the job, which is emptied first; without it none are
            saved. `resume_from`, the checkpoint to begin at, in that folder as well.

    Returns:
        `evaluations`, pairs of samples and metrics; `noise`, quadruples of samples, noise scale and its interval;
        `samples` and `seconds` of the training steps of this stretch; `saved`, pairs of samples and checkpoint;
        `diverged`.

    Raises:
        EnvironmentFault: the checkpoint to resume from was removed or damaged, or one could not be saved.
    """
    (config,) = configs
    release(ranks.device)  # of the jobs before
    folder = _folder_of(options, ranks)
    reporter, begun = MemoryReporter(), perf_counter()
    trainer = build_trainer(config, ranks, reporter, folder, find_weights=weights_finder(config))
    segment = next(each for each in trainer.callbacks if isinstance(each, Segment))
    before, diverged = trainer.state.position.samples, False
    try:
        trainer.fit()
    except Diverged:  # on all ranks together
        diverged = True
    if ranks.is_first and folder is not None:
        _require_saved(trainer, [folder / f"step-{step}" for _, step in segment.saved])
    ranks.sum_numbers([0.0])  # all fail with the first, or none
    return {
        "evaluations": segment.evaluations,
        "noise": _noise(reporter, trainer.state.position),
        "samples": trainer.state.position.samples - before,
        "seconds": trainer.meter.split().get("training", perf_counter() - begun),
        "saved": [(samples, f"step-{step}") for samples, step in segment.saved],
        "diverged": diverged,
    }


def _folder_of(options: Mapping[str, Any], ranks: DistContext) -> Path | None:
    """Return the folder of the checkpoints, empty or with the one to resume from: a stretch that was lost before it was
    answered is trained again as a whole."""
    if "checkpoints" not in options:
        return None
    root = Path(options["root"])
    folder = root / str(options["checkpoints"])
    if ranks.is_first:
        shutil.rmtree(folder, ignore_errors=True)
        if "resume_from" in options:
            source = root / options["resume_from"]
            try:
                verify(source)
            except BrokenCheckpoint as error:
                raise _checkpoint_damaged(source) from error
            place_checkpoint(source, folder)
    ranks.sum_numbers([0.0])  # the others look only once it is there
    return folder


def _require_saved(trainer: Trainer, checkpoints: Sequence[Path]) -> None:
    """Raise an error if a checkpoint could not be saved: training continues without it, but branches begin there."""
    missing = [checkpoint.name for checkpoint in checkpoints if not checkpoint.is_dir()]
    if missing:
        error = trainer.checkpointer.writer.error if trainer.checkpointer.writer is not None else None
        reason = f": {error}" if error is not None else ""
        message = f"{listed(missing)} of the config as it is could not be saved in {checkpoints[0].parent}{reason}"
        raise EnvironmentFault(f"{message}. The same command trains it again", "checkpoint-lost") from error


def _checkpoint_damaged(checkpoint: Path) -> EnvironmentFault:
    message = (
        f"the checkpoint {checkpoint} of the config as it is was removed or damaged, and branches begin there: put it "
        f"back from a copy, or {START_ANEW}"
    )
    return EnvironmentFault(message, "checkpoint-damaged", path=str(checkpoint))


def _noise(reporter: MemoryReporter, position: Any) -> list[tuple[int, float, float, float | None]]:
    per_step = position.samples / max(1, position.step)
    return [
        (round(step * per_step), values["noise_scale"], values["noise_scale_low"], values.get("noise_scale_high"))
        for step, values in reporter.points
        if "noise_scale" in values
    ]
