"""Evaluation of a trained model on data sets: metrics or predictions, without gradients or a schedule."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.callbacks.callback import Callback, overrides
from paceline.config.batch_sizes import BatchSizes, batch_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.data.base import DataConfig, DataSets, is_stream
from paceline.engine.build_callbacks import named_callbacks
from paceline.engine.build_data import build_loader
from paceline.engine.build_optimizer import new_optimizer
from paceline.engine.build_strategy import build_strategy
from paceline.engine.build_task import seed_model
from paceline.engine.checkpoint import Checkpointer
from paceline.engine.dist_context import DistContext
from paceline.engine.evaluation_metrics import EvaluationMetrics
from paceline.engine.evaluator import evaluate, outputs, weights_for_evaluation
from paceline.engine.loading import BatchLoader, SeededFetcher
from paceline.engine.loop_context import LoopContext
from paceline.engine.precision import Precision
from paceline.engine.predictions import write_predictions
from paceline.engine.prepare import apply_process_settings, prepare
from paceline.engine.reporter import MemoryReporter
from paceline.engine.running import RunningLoss
from paceline.engine.seeding import StepSeeds
from paceline.engine.state import TrainState
from paceline.engine.strategy import Strategy
from paceline.errors import ConfigError, Problem
from paceline.models.base import ModelConfig
from paceline.optimizers._modes import begin_training, has_modes
from paceline.optimizers._state import complete_state
from paceline.tasks.base import TaskConfig

TRAINING, VALIDATION, TEST = "training", "validation", "test"
PREFIXES = {TRAINING: "train", VALIDATION: "val", TEST: "test"}
"""Prefix of the metrics' names, by set."""


@dataclass
class Evaluation:
    """A model with the weights of a checkpoint, and loaders of the sets to evaluate it on. Each rank has one."""

    state: TrainState
    strategy: Strategy
    micro_batch_size: int
    loaders: dict[str, BatchLoader]
    """Loaders by the prefix of the metrics' names, such as `val/` and `val/clean/`."""
    context: LoopContext
    callbacks: Sequence[Callback]
    """Callbacks whose `evaluation_context` is entered."""
    metrics: EvaluationMetrics | None

    def evaluate(self, shown_name: Callable[[str], str] = str) -> dict[str, float]:
        """Return the metrics of all sets, as the training loop computes them. They are the same on all ranks.

        Every rank must call it.

        Args:
            shown_name: maps the name of a task's metric to the name that is shown: the name may hold a secret.
        """
        with weights_for_evaluation(self.state.optimizer, self.callbacks, self.context):
            return {
                f"{prefix}{shown_name(key)}": value
                for prefix, loader in self.loaders.items()
                for key, value in self._evaluate_set(loader).items()
            }

    def _evaluate_set(self, loader: BatchLoader) -> dict[str, float]:
        state = self.state
        return evaluate(state.task, loader, self.micro_batch_size, state.precision, self.strategy, self.metrics)

    def predict(self, folder: Path, on_part: Callable[[Path], object] = lambda file: None) -> int:
        """Write the predictions of the only set, see `write_predictions`, and return the number of samples.

        The number is that of all ranks together. Every rank must call it. It returns once all ranks have written their
        part.

        Raises:
            ConfigError: there are several sets.
            UnusableCode: see `write_predictions`.
        """
        if len(self.loaders) > 1:
            names = ", ".join(prefix.partition("/")[2].rstrip("/") for prefix in self.loaders)
            reason = f"predictions are those of one set, and there are {len(self.loaders)}"
            raise ConfigError([Problem("several-sets", reason, "set", hint=f"choose {names}")])
        (loader,) = self.loaders.values()
        state = self.state
        with weights_for_evaluation(state.optimizer, self.callbacks, self.context):
            given = outputs(state.task, loader, self.micro_batch_size, state.precision, self.strategy)
            written = write_predictions(given, folder, self.strategy.data_ranks.rank, on_part)
        return int(self.strategy.ranks.sum_numbers([float(written)])[0])

    def close(self) -> None:
        """End the loader processes."""
        for loader in self.loaders.values():
            loader.close()


@contextmanager
def built_evaluation(
    config: ExperimentConfig, ranks: DistContext, checkpoint: Path, sets: Sequence[str]
) -> Iterator[Evaluation]:
    """Build the evaluation of one rank from the config and a checkpoint. Every rank must call it.

    Args:
        checkpoint: folder of a whole checkpoint; it is only read.
        sets: see `chosen_sets`.

    Raises:
        ConfigError: the weights are not those of the config's model, or the data has no such set.
    """
    apply_process_settings(config.trainer, ranks.device)
    sizes = batch_sizes(config)
    assert isinstance(sizes, BatchSizes), "the caller has put the number that was found in place of `max`"
    seed_model(config.seed)
    task = TaskConfig.of(config.task).build(ModelConfig.of(config.model).build())
    precision = Precision(config.trainer.precision, ranks.device)
    strategy = build_strategy(config.parallel, ranks)
    model = prepare(task, config.trainer, precision, strategy)
    optimizer = new_optimizer(config, task, config.optimizer.lr, ranks.device, strategy.layout)
    if has_modes(optimizer):
        complete_state(optimizer)
        begin_training(optimizer)
    state = TrainState(task, optimizer, precision, layout=strategy.layout)
    seeds_of = partial(StepSeeds, config.seed)
    strategy.forward_backward(model, precision, RunningLoss(ranks), seeds_of, None)  # a pipeline connects its stages
    checkpointer = Checkpointer(state, ranks, None, False, {}, {}, config.parallel.timeout_seconds)
    context = LoopContext(state, ranks, config, MemoryReporter())
    callbacks = []
    with ExitStack() as opened:
        for name, callback in named_callbacks(config):
            if overrides(callback, "evaluation_context"):
                opened.callback(callback.close)
                callback.setup(context)
                checkpointer.register(name, callback)
                callbacks.append(callback)
        checkpointer.load_for_evaluation(checkpoint, has_modes(optimizer))
        loaders = evaluation_loaders(config, precision, ranks, sets)
        metrics = EvaluationMetrics(config.metrics, strategy.ranks) if config.metrics else None
        evaluation = Evaluation(state, strategy, sizes.micro_batch_size, loaders, context, callbacks, metrics)
        opened.callback(evaluation.close)
        yield evaluation


def evaluation_loaders(
    config: ExperimentConfig, precision: Precision, ranks: DistContext, names: Sequence[str]
) -> dict[str, BatchLoader]:
    """Return a loader of each requested set, by the prefix of its metrics' names."""
    sets = DataConfig.of(config.data).sets()
    return {
        prefix: build_loader(
            config, SeededFetcher(dataset, config.seed, sets.collate_fn), precision, ranks.device, prefix.rstrip("/")
        )
        for prefix, dataset in chosen_sets(sets, names).items()
    }


def chosen_sets(sets: DataSets, names: Sequence[str]) -> dict[str, Any]:
    """Return the requested data sets, by the prefix of their metrics' names.

    Args:
        names: `validation` for all validation sets, `test`, `training`, or the name of a validation set, alone or as
            `validation/<name>`.

    Raises:
        ConfigError: the set does not exist, has no samples, or has no samples by index.
    """
    roles = sets.roles
    chosen: dict[str, Any] = {}
    for name in names:
        if name == VALIDATION:
            found = [role for role in roles if role.partition("/")[0] == VALIDATION]
            found = [role for role in found if len(roles[role])] or found[:1]
        else:
            found = [role for role in (name, f"{VALIDATION}/{name}") if role in roles][:1]
        if not found:
            hint = f"choose {', '.join(roles)}"
            raise ConfigError([Problem("unknown-set", f"the data has no set {name!r}", "set", hint=hint)])
        for role in found:
            _require_samples(role, roles[role])
            kind, slash, own = role.partition("/")
            chosen[f"{PREFIXES[kind]}/{own}{slash}"] = roles[role]
    return chosen


def _require_samples(role: str, dataset: Any) -> None:
    if is_stream(dataset):
        reason = f"the {role} set is an iterable data set, which cannot be evaluated: each sample has to count once"
        raise ConfigError([Problem("iterable", reason, "set", hint="give a data set with __len__ and __getitem__")])
    if not len(dataset):
        raise ConfigError([Problem("empty-set", f"the {role} set is empty", "set", hint="choose another set")])
