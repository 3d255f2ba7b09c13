"""Build the callbacks that a config asks for."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from paceline.callbacks.base import CallbackConfig
from paceline.callbacks.callback import Callback
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import Imported
from paceline.engine.best_checkpoints import BestCheckpoints
from paceline.engine.checkpoint import Checkpointer
from paceline.engine.loop_context import LoopContext


def set_up_callbacks(
    named: Mapping[str, Callback], config: ExperimentConfig, context: LoopContext, checkpointer: Checkpointer
) -> list[Callback]:
    """Set up the callbacks of a config, and register their states by their names.

    Args:
        named: what `named_callbacks` gave.

    Returns:
        The callbacks in their order; what `checkpoint.monitor` asks for comes last.
    """
    callbacks: list[Callback] = []
    try:
        for name, callback in named.items():
            callbacks.append(callback)
            callback.setup(context)
            checkpointer.register(name, callback)
    except BaseException:
        close_callbacks(callbacks)
        raise
    if config.checkpoint.objective is not None:
        best = BestCheckpoints(*config.checkpoint.objective, config.checkpoint.keep_best, checkpointer.writer)
        checkpointer.register("best_checkpoints", best)
        callbacks.append(best)
    return callbacks


def close_callbacks(callbacks: Iterable[Callback]) -> None:
    """Close callbacks after an error, which is the one to report: errors in `close` are ignored."""
    for callback in callbacks:
        with suppress(Exception):
            callback.close()


def named_callbacks(config: ExperimentConfig) -> Iterator[tuple[str, Callback]]:
    """Yield each callback of a config, newly built, with the name that its state has in a checkpoint."""
    counts = Counter[str]()
    for component in config.callbacks:
        # of a Python object, its text would name its place in memory, which is another one when the run resumes
        chosen = component.import_path if isinstance(component, Imported) else component.describe()
        name = re.sub(r"[^\w.-]", ".", chosen)
        counts[name] += 1
        suffix = f".{counts[name]}" if counts[name] > 1 else ""
        yield f"callback.{name}{suffix}", CallbackConfig.of(component).build()
