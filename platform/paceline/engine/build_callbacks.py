"""Build the callbacks that a config asks for."""

import re
from collections import Counter
from collections.abc import Iterator

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback
from paceline.config.experiment import ExperimentConfig
from paceline.direction import default_mode
from paceline.engine.best_checkpoints import BestCheckpoints
from paceline.engine.checkpointer import Checkpointer
from paceline.engine.loop_context import LoopContext


def build_callbacks(config: ExperimentConfig, context: LoopContext, checkpointer: Checkpointer) -> list[Callback]:
    """Build and set up the callbacks of a config, in its order, and register their states by the names they have in it.

    Those of `checkpoint.monitor` come last.
    """
    callbacks: list[Callback] = []
    for name, callback in named_callbacks(config):
        callback.setup(context)
        checkpointer.register(name, callback)
        callbacks.append(callback)
    checkpoint = config.checkpoint
    if checkpoint.monitor is not None:
        mode = checkpoint.mode or default_mode(checkpoint.monitor)
        best = BestCheckpoints(checkpoint.monitor, mode, checkpoint.keep_best, checkpointer.writer)
        checkpointer.register("best_checkpoints", best)
        callbacks.append(best)
    return callbacks


def named_callbacks(config: ExperimentConfig) -> Iterator[tuple[str, Callback]]:
    """Yield each callback of a config, newly built, with the name that its state has in a checkpoint."""
    counts = Counter[str]()
    for component in config.callbacks:
        name = re.sub(r"[^\w.-]", ".", component.describe())
        counts[name] += 1
        suffix = f".{counts[name]}" if counts[name] > 1 else ""
        yield f"callback.{name}{suffix}", CallbackConfig.of(component).build()
