"""Rules of resuming: which differences a config may have from that of the run that it continues, forks or extends.

An extension (`--extend`) is a run of its own. Its checkpoints begin with those of the finished run, which stays as it
is; its file says which run it extends, and how far that one had come.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline.cluster.run_folder import RunFolder
from paceline.config.experiment import ExperimentConfig
from paceline.config.sections import TrainerConfig
from paceline.engine.manifest import STATE, BrokenCheckpoint, numbered, verify
from paceline.errors import ConfigError, Problem
from paceline.redaction import redact, redact_values
from paceline.tracking.run_record import flatten

CHANGES_NO_RESULT = (
    "scaling",
    "parallel",
    "tracking",
    "checkpoint",
    "storage",
    "data.num_workers",
    "data.pin_memory",
    "data.prefetch_factor",
    "data.persistent_workers",
    "data.cache",
    "trainer.epochs",
    "scale",
    "tuneup",
)
"""Keys and sections that change neither the numerics nor the order of the data."""
MAY_DIFFER_ON_RESUME = (*CHANGES_NO_RESULT, "sweep")
"""The same for a run, which ignores the section `sweep`."""
DERIVED_FROM_SCALING = ("data.micro_batch_size", "trainer.gradient_accumulation_steps")
"""Keys that divide the global batch into micro-batches. They have to change with the number of workers."""
MAY_DIFFER_WHEN_EXTENDED = (*MAY_DIFFER_ON_RESUME, "trainer.max_steps")
EXTENDED_FROM = "extended_from"
"""Entry of a run's file: the id of the run that it extends."""
EXTENDED_FROM_STEP = "extended_from_step"
"""Entry of a run's file: the last optimizer step of that run."""


def config_difference(
    old: Mapping[str, Any], new: Mapping[str, Any], may_differ: Sequence[str] = MAY_DIFFER_ON_RESUME
) -> dict[str, tuple[Any, Any]]:
    """Return the differences between two dumped configs that are not allowed on resume: dotted key to (old, new).

    Args:
        may_differ: keys and sections whose differences are left out.
    """
    flat_old, flat_new = flatten(old), flatten(new)
    same_scaling = old.get("scaling") == new.get("scaling")
    free = may_differ if same_scaling else (*may_differ, *DERIVED_FROM_SCALING)
    changed: dict[str, tuple[Any, Any]] = {}
    for key in sorted(flat_old.keys() | flat_new.keys()):
        before, after = flat_old.get(key), flat_new.get(key)
        if before != after and not is_below(key, free):
            changed |= _changed_entries(key, before, after)
    return changed


def _changed_entries(key: str, before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Return the differences between two values: of two lists of components the entries, if these have names."""
    old, new = _by_name(before), _by_name(after)
    if old is None or new is None:
        return {key: (before, after)}
    changed: dict[str, tuple[Any, Any]] = {}
    for name in {**old, **new}:
        place, one, other = f"{key}.{name}", old.get(name), new.get(name)
        if one is None or other is None:
            changed[place] = one, other
            continue
        fields, others = flatten(one, f"{place}."), flatten(other, f"{place}.")
        pairs = {field: (fields.get(field), others.get(field)) for field in sorted({**fields, **others})}
        changed |= {field: pair for field, pair in pairs.items() if pair[0] != pair[1]}
    return changed or {key: (before, after)}  # only their order differs


def _by_name(value: Any) -> dict[str, Mapping[str, Any]] | None:
    """Return the entries of a list of components by name; None if they have no names, or two have the same."""
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return None
    entries = {str(each.get("name") or each.get("path")): each for each in value}
    return entries if len(entries) == len(value) else None


def is_below(key: str, places: Sequence[str]) -> bool:
    """Return True if a dotted key is one of some keys, or in one of some sections."""
    return any(key == each or key.startswith(f"{each}.") for each in places)


def shown_value(key: str, value: Any) -> str:
    """Return a value of the config as errors show it, without secrets."""
    return redact(repr(redact_values({key: value})[key]))


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
    """Progress of a run, as its last checkpoint states it."""

    step: int
    """Number of optimizer steps done."""
    epoch: int
    """Number of epochs finished."""
    is_stream: bool = False
    """True for an iterable training set, whose length is `trainer.max_steps` alone."""

    @classmethod
    def read(cls, checkpoint: Path) -> "TrainedTo":
        """Read the progress from a whole checkpoint."""
        return cls.of(json.loads((checkpoint / STATE).read_bytes()))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "TrainedTo":
        """Take the progress from the values of a checkpoint."""
        position = values["position"]
        return cls(int(position["step"]), int(position["epoch"]), "data" in values.get("components", {}))

    def is_shorter_than(self, trainer: TrainerConfig) -> bool:
        """Return True if the config asks for more training."""
        if trainer.max_steps is not None and trainer.max_steps <= self.step:
            return False
        epochs = trainer.epochs or (1 if trainer.max_steps is None else None)
        return epochs is None or self.is_stream or epochs > self.epoch


def last_whole_checkpoint(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint whose every byte agrees with its manifest. Changes nothing."""
    for _, path in numbered(checkpoints):
        try:
            verify(path)
        except BrokenCheckpoint:
            continue
        return path
    return None


def is_unfinished_extension(content: Mapping[str, Any]) -> bool:
    """Return True for the file of an extension that is not finished."""
    return content.get("status") != "finished" and EXTENDED_FROM in content


def require_extendable(config: ExperimentConfig, run_id: str | None, content: Mapping[str, Any]) -> None:
    """Check that the newest run of a name can be extended, or is an unfinished extension that can be continued.

    Args:
        run_id: of the newest run; None without one.
        content: of its file.

    Raises:
        ConfigError: there is no run, it is unfinished, or its config differs in more than its length.
    """
    if run_id is None:
        raise _nothing(f"there is no run of {config.name!r} to extend", "leave --extend out to start one")
    is_extension = is_unfinished_extension(content)
    if content.get("status") != "finished" and not is_extension:
        reason = f"the newest run of {config.name!r}, {run_id}, is unfinished; --extend trains a finished one further"
        hint = (
            "leave --extend out to continue it with the length that the config asks for; to extend the run before it, "
            "move its folder away first"
        )
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
    """Return the finished run as the origin of its extension.

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


def require_not_cut_short(
    config: ExperimentConfig, run_id: str, content: Mapping[str, Any], read_progress: Callable[[], TrainedTo | None]
) -> None:
    """Check that a config does not end an unfinished run at once, since it asks for less than was done already.

    A short trial of a command is one such config, and the old length of an extension another.

    Args:
        run_id: of the unfinished run.
        content: of its file.
        read_progress: returns what its last whole checkpoint states; None without one. Not called where the length is
            that of the run.

    Raises:
        ConfigError: it does.
    """
    stored = content.get("config", {}).get("trainer", {})
    known = {key: stored[key] for key in ("epochs", "max_steps") if stored.get(key) is not None}
    if all(getattr(config.trainer, key) == stored.get(key) for key in ("epochs", "max_steps")):
        return
    done = read_progress()
    if done is None or done.is_shorter_than(config.trainer) or not done.is_shorter_than(TrainerConfig(**known)):
        return
    extends = " extends another one and" if is_unfinished_extension(content) else ""
    reason = (
        f"the unfinished run {run_id} of {config.name!r}{extends} has reached "
        f"{_count(done.step, 'step')}, and this config asks for no more than that"
    )
    lengths = [f"trainer.{key}={value}" for key, value in known.items()]
    command = " ".join(["--extend", *lengths] if extends else lengths)
    hint = f"{command} continues it, --new starts from scratch"
    raise ConfigError([Problem("resume", reason, _limit(config, done)[0], hint=hint)])


def _limit(config: ExperimentConfig, done: TrainedTo) -> tuple[str, int]:
    """Return the key that limits the length of the training, and its value."""
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


def nothing_to_resume(word: str, place: object) -> ConfigError:
    """Return the error of a command that may only resume, if nothing of the name is unfinished.

    Args:
        word: its kind in messages: run, sweep or tune-up.
    """
    reason = f"there is no unfinished {word} in {place}"
    return ConfigError([Problem("resume", reason, "name", hint="leave --resume out to start one")])


Warn = Callable[[str], object]
"""Takes a message for the user."""


def check_start_from_scratch(
    run_id: str, content: Mapping[str, Any], config: ExperimentConfig, fork: bool, warn: Warn
) -> None:
    """Check that a new run beside a finished one is what the user expects.

    Args:
        run_id: of the finished run, the newest of its name.
        content: of its file.

    Raises:
        ConfigError: the user has asked to branch off.
    """
    if fork:
        reason = f"the newest run of {config.name!r}, {run_id}, is finished; --fork branches off an unfinished one"
        hint = "train it further with --extend, or start from scratch with --new"
        raise ConfigError([Problem("nothing-to-fork", reason, "name", hint=hint)])
    other = [key for key in MAY_DIFFER_ON_RESUME if key != "trainer.epochs"]
    difference = config_difference(content.get("config", {}), config.model_dump(mode="json"), other)
    if difference:
        changes = ", ".join(
            f"{key} {shown_value(key, after)} in place of {shown_value(key, before)}"
            for key, (before, after) in difference.items()
        )
        warn(f"the run {run_id} of {config.name!r} is finished; this one starts from scratch with {changes}")


def forks(unfinished: RunFolder, content: Mapping[str, Any], config: ExperimentConfig, fork: bool) -> bool:
    """Return True to branch off an unfinished run, False to continue it.

    Args:
        content: of its file.

    Raises:
        ConfigError: its config differs, and the user has not asked to branch off.
    """
    difference = config_difference(content.get("config", {}), config.model_dump(mode="json"))
    if difference and not fork:
        hint = "undo the change to continue it, branch off its newest checkpoint with --fork, or start again with --new"
        raise other_config("run", config.name, unfinished, difference, hint)
    return bool(difference)


def other_config(
    kind: str, name: str, unfinished: RunFolder, difference: Mapping[str, tuple[Any, Any]], hint: str
) -> ConfigError:
    """Return the error of a config that differs from that of the run, or sweep, that it would continue."""
    return ConfigError(
        [
            Problem(
                "resume",
                f"the unfinished {kind} {unfinished.run_id} of {name!r} has {shown_value(key, before)}, "
                f"this config has {shown_value(key, after)}",
                key,
                hint=hint,
            )
            for key, (before, after) in difference.items()
        ]
    )
