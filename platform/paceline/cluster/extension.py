"""Choice of the finished run that `--extend` trains further, and the reasons to refuse it.

The extension is a run of its own. Its checkpoints begin with those of the finished run, which stays as it is; its file
says which run it extends, and how far that one had come.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.cluster.config_difference import MAY_DIFFER_ON_RESUME, config_difference, shown_value
from paceline.config.experiment import ExperimentConfig
from paceline.config.sections import TrainerConfig
from paceline.engine.manifest import STATE, BrokenCheckpoint, numbered, verify
from paceline.errors import ConfigError, Problem

MAY_DIFFER_WHEN_EXTENDED = (*MAY_DIFFER_ON_RESUME, "trainer.max_steps")
EXTENDED_FROM = "extended_from"
"""Entry of a run's file: the id of the run that it extends."""
EXTENDED_FROM_STEP = "extended_from_step"
"""Entry of a run's file: the last optimizer step of that run."""


@dataclass(frozen=True)
class Origin:
    """The run whose checkpoints a new run begins with."""

    run_id: str
    relation: Literal["forked_from", "extended_from"]
    step: int | None = None
    """The last optimizer step of a run that is extended."""

    def entries(self) -> dict[str, Any]:
        """Entries of the new run's file."""
        step = {} if self.step is None else {EXTENDED_FROM_STEP: self.step}
        return {self.relation: self.run_id, **step}


@dataclass(frozen=True)
class TrainedTo:
    """How far a run has come, as its last checkpoint says."""

    step: int
    """Optimizer steps."""
    epoch: int
    """Epochs finished."""
    is_stream: bool = False
    """True for an iterable training set, whose length is `trainer.max_steps` alone."""

    @classmethod
    def read(cls, checkpoint: Path) -> "TrainedTo":
        """Read it from a whole checkpoint."""
        values = json.loads((checkpoint / STATE).read_bytes())
        position = values["position"]
        return cls(int(position["step"]), int(position["epoch"]), "data" in values.get("components", {}))

    def is_shorter_than(self, trainer: TrainerConfig) -> bool:
        """Return True if the config asks for more training."""
        if trainer.max_steps is not None and trainer.max_steps <= self.step:
            return False
        epochs = trainer.epochs or (1 if trainer.max_steps is None else None)
        return epochs is None or self.is_stream or epochs > self.epoch


def last_whole_checkpoint(checkpoints: Path) -> Path | None:
    """The newest checkpoint whose every byte is as its manifest says. Changes nothing."""
    for _, path in numbered(checkpoints):
        try:
            verify(path)
        except BrokenCheckpoint:
            continue
        return path
    return None


def is_unfinished_extension(content: Mapping[str, Any]) -> bool:
    """Return True for the file of an extension that has not come to its end."""
    return content.get("status") != "finished" and EXTENDED_FROM in content


def require_extendable(config: ExperimentConfig, run_id: str | None, content: Mapping[str, Any]) -> None:
    """Check that the newest run of a name can be extended, or is an unfinished extension that can be continued.

    Args:
        run_id: of the newest run; None when there is none.
        content: of its file.

    Raises:
        ConfigError: there is no run, it is unfinished, or its config differs in more than its length.
    """
    if run_id is None:
        raise _nothing(f"there is no run of {config.name!r} to extend", "leave --extend out to start one")
    is_extension = is_unfinished_extension(content)
    if content.get("status") != "finished" and not is_extension:
        reason = f"the newest run of {config.name!r}, {run_id}, is unfinished; --extend trains a finished one further"
        hint = "leave --extend out to continue it with the length that the config asks for"
        raise _nothing(reason, hint)
    difference = config_difference(content.get("config", {}), config.model_dump(mode="json"), MAY_DIFFER_WHEN_EXTENDED)
    if difference:
        state = "unfinished extension" if is_extension else "finished run"
        hint = (
            "undo the change, since an extension differs in its length alone; "
            f"for new training that starts from its weights: --init-from {config.name}/{run_id}"
        )
        raise ConfigError(
            [
                Problem(
                    "extend",
                    f"the {state} {run_id} of {config.name!r} has {shown_value(key, before)}, "
                    f"this config has {shown_value(key, after)}",
                    key,
                    hint=hint,
                )
                for key, (before, after) in difference.items()
            ]
        )


def extension_of(config: ExperimentConfig, run_id: str, checkpoint: Path | None) -> Origin:
    """The finished run as the origin of its extension.

    Args:
        checkpoint: its last whole one.

    Raises:
        ConfigError: it has none, or the config asks for no more training than was done.
    """
    if checkpoint is None:
        reason = f"the finished run {run_id} of {config.name!r} has no whole checkpoint"
        raise _nothing(reason, "leave --extend out to start from scratch")
    done = TrainedTo.read(checkpoint)
    if not done.is_shorter_than(config.trainer):
        raise _not_longer(config, run_id, done)
    return Origin(run_id, "extended_from", done.step)


def require_not_cut_short(config: ExperimentConfig, run_id: str, content: Mapping[str, Any], checkpoints: Path) -> None:
    """Check that a config does not end an unfinished extension at once, as one with the old length would.

    Args:
        run_id: of the unfinished run.
        content: of its file.
        checkpoints: folder of its checkpoints.

    Raises:
        ConfigError: it does.
    """
    checkpoint = last_whole_checkpoint(checkpoints) if is_unfinished_extension(content) else None
    if checkpoint is None:
        return
    stored = content.get("config", {}).get("trainer", {})
    wanted = TrainerConfig(epochs=stored.get("epochs"), max_steps=stored.get("max_steps"))
    done = TrainedTo.read(checkpoint)
    if done.is_shorter_than(config.trainer) or not done.is_shorter_than(wanted):
        return
    reason = (
        f"the unfinished run {run_id} of {config.name!r} extends another one and has come to "
        f"{_count(done.step, 'step')}, and this config asks for no more than that"
    )
    lengths = [f"trainer.{key}={stored[key]}" for key in ("epochs", "max_steps") if stored.get(key) is not None]
    hint = f"--extend {' '.join(lengths)} continues it, --new starts from scratch"
    raise ConfigError([Problem("resume", reason, _limit(config, done)[0], hint=hint)])


def _limit(config: ExperimentConfig, done: TrainedTo) -> tuple[str, int]:
    """The key that limits the length of the training, and its value."""
    max_steps = config.trainer.max_steps
    if max_steps is not None and max_steps <= done.step:
        return "trainer.max_steps", max_steps
    return "trainer.epochs", config.trainer.epochs or 1


def _not_longer(config: ExperimentConfig, run_id: str, done: TrainedTo) -> ConfigError:
    key, asked = _limit(config, done)
    reason = (
        f"the finished run {run_id} of {config.name!r} was trained for {_count(done.step, 'step')} "
        f"({_count(done.epoch, 'epoch')}), and {asked} is no more than that"
    )
    more = 2 * (done.step if key == "trainer.max_steps" else done.epoch)
    return ConfigError([Problem("nothing-to-extend", reason, key, hint=f"ask for more, such as {key}={more}")])


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _nothing(reason: str, hint: str) -> ConfigError:
    return ConfigError([Problem("nothing-to-extend", reason, "name", hint=hint)])
