"""The request of an evaluation: a checkpoint, and the run's config, changed by overrides and Python objects.

Light to import, for processes without torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.cluster.kept_checkpoints import checkpoint_beside, is_whole
from paceline.cluster.listener import Listener
from paceline.cluster.user_code import with_objects, with_parts
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.batch_sizes import BatchSizes, batch_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import AbsentObject, objects_in
from paceline.config.loading import Overrides, overridden
from paceline.config.overrides import parse_override
from paceline.config.overrides import place_of as override_place
from paceline.engine.manifest import BrokenCheckpoint, numbered, verify
from paceline.errors import ConfigError, EnvironmentFault, Problem, UnusableCode
from paceline.places import place_of
from paceline.storage.address import is_address

STATE = "state.json"
CHOICES = "last, best, step-N, or the folder or address of a checkpoint"
WITHOUT_EFFECT = (
    "name",
    "model.weights",
    "model.weights_skip",
    "optimizer",
    "lr_scheduler",
    "checkpoint",
    "storage",
    "tracking",
    "sweep",
    "scale",
    "tuneup",
    "scaling.min_workers",
    "data.global_batch_size",
    "data.batch_size_schedule",
    "trainer.gradient_accumulation_steps",
)
"""Sections and fields that have no effect on an evaluation."""


@dataclass(frozen=True)
class GivenObjects:
    """Python objects in place of those that the run was started with; see `train`. None: as the run has them."""

    model: Any = None
    data: Any = None
    task: Any = None
    optimizer: Any = None
    metrics: Mapping[str, Any] | None = None
    callbacks: Sequence[Any] | None = None


@dataclass(frozen=True)
class ChosenCheckpoint:
    """A complete checkpoint."""

    place: str
    """Its folder, or its address in an object store."""
    folder: Path
    """Its folder on this machine."""
    step: int
    """Optimizer steps done."""


def choose_checkpoint(newest: str, asked: str | Path) -> ChosenCheckpoint:
    """Return the checkpoint to evaluate, once every byte of it has been compared with its manifest.

    Args:
        newest: place of the run's newest checkpoint; empty if it has none.
        asked: `last`, `best` by the run's `checkpoint.monitor`, the name of one of the run's, such as `step-100`, or
            the folder or address of any.

    Raises:
        EnvironmentFault: there is no such checkpoint, or it is damaged.
        ConfigError: the best one is asked for, and the run has no `checkpoint.monitor`.
    """
    if not str(asked).strip():
        raise EnvironmentFault(f"no checkpoint is named; write {CHOICES}", "no-checkpoint", path="")
    own = str(asked) in ("last", "best") or str(asked).removeprefix("step-").isdigit()
    if own and not newest:
        raise EnvironmentFault("the run has saved no checkpoint", "no-checkpoint")
    if not own:
        return _whole(str(asked) if is_address(asked) else str(place_of(asked)))
    if str(asked).removeprefix("step-").isdigit():
        return _whole(checkpoint_beside(newest, int(str(asked).removeprefix("step-"))))
    last = _whole(newest)
    return last if asked == "last" else _whole(checkpoint_beside(newest, _best_step(last.folder, newest)))


def _whole(place: str) -> ChosenCheckpoint:
    if is_address(place):
        from paceline.storage.read_copies import brought

        folder = brought(place)
        return ChosenCheckpoint(place, folder, verify(folder))
    folder = Path(place)
    if not folder.is_dir():
        raise EnvironmentFault(f"there is no checkpoint {folder}{_instead(folder)}", "no-checkpoint", path=place)
    try:
        return ChosenCheckpoint(place, folder, verify(folder))
    except BrokenCheckpoint as error:
        message = f"{folder} is not a whole checkpoint: {error}; name another one with checkpoint step-N"
        raise EnvironmentFault(message, "broken-checkpoint", path=place) from None


def _instead(folder: Path) -> str:
    names = [path.name for _, path in numbered(folder.parent)]
    return f"; there are {', '.join(names[:8])}" if names else f"; write {CHOICES}"


def _best_step(folder: Path, newest: str) -> int:
    """Return the step of the best evaluation whose checkpoint the run has kept.

    Args:
        folder: of the newest checkpoint on this machine.
        newest: its place.
    """
    from paceline.engine.checkpoint import COMPONENTS
    from paceline.engine.stateful import unpack

    best = unpack(_values(folder)[COMPONENTS].get("best_checkpoints", {"best": []}), {})["best"]
    if not best:
        reason = "the run does not know its best checkpoint: it was trained without checkpoint.monitor"
        hint = "name the checkpoint itself, such as step-100, or take the last"
        raise ConfigError([Problem("no-monitor", reason, "checkpoint", hint=hint)])
    steps = [int(step) for _, step in best]
    # a run that began with another one's checkpoint may not have all that this one knew
    return next((step for step in steps if is_whole(checkpoint_beside(newest, step))), steps[0])


def _values(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / STATE).read_bytes()))


def evaluation_config(
    config: ExperimentConfig, checkpoint: ChosenCheckpoint, overrides: Overrides, objects: GivenObjects
) -> ExperimentConfig:
    """Return the config for an evaluation: the run's own, at its own micro-batch size, changed by overrides and
    objects.

    Args:
        config: the run's.
        overrides: as for `load_config`; other numbers of workers leave the micro batch as it is.

    Raises:
        ConfigError: an override is wrong, or has no effect on an evaluation.
        UnusableCode: the run was started with a Python object that is not given again.
    """
    _require_effect(overrides)
    before = {
        "data.micro_batch_size": _micro_batch_size(config, checkpoint.folder),
        "data.global_batch_size": None,
        "data.batch_size_schedule": None,
        "trainer.gradient_accumulation_steps": _accumulation(config),
        "scaling.min_workers": None,
        "checkpoint.monitor": None,  # other metrics may be asked for than those that chose the best checkpoint
        "checkpoint.mode": None,
        "sweep": None,
        "scale": None,
        "tuneup": None,
    }
    changed = overridden(_with(config, objects), overrides, before)
    if changed.data.micro_batch_size is None:  # the section was replaced as a whole
        changed = changed.with_overrides({"data.micro_batch_size": before["data.micro_batch_size"]})
    _require_objects(changed)
    return changed


def _micro_batch_size(config: ExperimentConfig, checkpoint: Path) -> int:
    sizes = batch_sizes(config)
    if isinstance(sizes, BatchSizes):
        return sizes.micro_batch_size
    from paceline.engine.largest_batch import KEY

    return int(_values(checkpoint)[KEY]["micro_batch_size"])


def _accumulation(config: ExperimentConfig) -> int:
    """Return the accumulation steps of training: a pipeline needs as many micro-batches as in training."""
    sizes = batch_sizes(config)
    return sizes.gradient_accumulation_steps if isinstance(sizes, BatchSizes) else 1


def _require_effect(overrides: Overrides) -> None:
    given = dict.fromkeys(overrides, "") if isinstance(overrides, Mapping) else _keys(overrides)
    problems = [
        Problem("no-effect", "has no effect on an evaluation", key, place, "leave it out")
        for key, place in given.items()
        if any(key == each or key.startswith(f"{each}.") for each in WITHOUT_EFFECT)
    ]
    if problems:
        raise ConfigError(problems)


def _keys(texts: Sequence[str]) -> dict[str, str]:
    return {parse_override(text)[0]: override_place(text) for text in texts}


def _with(config: ExperimentConfig, given: GivenObjects) -> ExperimentConfig:
    """Return the config with the objects. Given metrics and callbacks replace those that were Python objects of the
    program."""
    lists: dict[str, Any] = {}
    if given.metrics is not None:
        lists["metrics"] = [each for each in config.metrics if not _is_absent(each) and each.name not in given.metrics]
    if given.callbacks is not None:
        lists["callbacks"] = [each for each in config.callbacks if not _is_absent(each)]
    config = config.with_overrides(lists) if lists else config
    config = with_objects(config, model=given.model, data=given.data, task=given.task)
    return with_parts(config, given.optimizer, None, given.metrics, given.callbacks or ())


def _is_absent(component: Any) -> bool:
    return isinstance(getattr(component, "path", None), AbsentObject)


def _require_objects(config: ExperimentConfig) -> None:
    for key, value in objects_in(config.model_dump()).items():
        section = key.partition(".")[0]
        if isinstance(value, AbsentObject) and section != "lr_scheduler":
            raise UnusableCode(
                f"{key}.path {value.__module__}:{value.__qualname__} cannot be called: the run was started with a "
                f"Python object, of which only the name was kept. Give it again in Python: {section}=...",
                "needs-object",
                section=section,
            )


@dataclass(frozen=True)
class EvaluationRequest:
    """Request of one evaluation. It is sent to the workers."""

    worker_spec: WorkerSpec
    checkpoint: str
    """Folder, or address in an object store."""
    sets: tuple[str, ...]
    """See `engine.evaluation.chosen_sets`."""
    parts: str = ""
    """Folder or address that the predictions of each rank are written to; empty if metrics are computed instead."""

    def travelling(self) -> "EvaluationRequest":
        """Return a copy with its Python objects pickled."""
        return replace(self, worker_spec=self.worker_spec.travelling())


@dataclass(frozen=True)
class EvaluationLaunch:
    """Everything that is settled before the first process of an evaluation is started."""

    config: ExperimentConfig
    request: EvaluationRequest
    folder: Path
    """A folder of its own, on a cluster one that all nodes share. It is removed at the end."""
    address: str | None
    wait_seconds: float
    listener: Listener
