"""Resources of a sweep: sizes of its data, shapes of its worker groups, number of slots, first rung."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.cluster import placement
from paceline.cluster.final_report import read_outcome
from paceline.cluster.placement import workers_on
from paceline.cluster.preflight import Resources, of_fixed_size, requested, too_few_gpus, uses_gpu
from paceline.cluster.run_folder import RunFolder
from paceline.config.batch_size_schedule import ENDLESS, ScheduledSteps
from paceline.config.batch_sizes import schedule_of
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.sweep import SweepConfig
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.sweeps.messages import GroupShape
from paceline.sweeps.planning.params_checks import KnownSizes
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import read_log
from paceline.sweeps.trial import PlannedTrial
from paceline.tracking.metrics import EPOCH

_NEWEST = 10
"""Folders of earlier runs and sweeps that are looked at."""


class TrialConfigs:
    """The configs of a sweep's trials, each validated once, however often they are looked at."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._config = config
        self._sizes = KnownSizes()
        self._known: dict[tuple[str, str], ExperimentConfig] = {}
        self._lengths: dict[tuple[str, str], tuple[float, float]] = {}

    def of(self, planned_trials: Sequence[PlannedTrial]) -> list[ExperimentConfig]:
        """The config of each trial; of the sweep itself where no trial is known.

        Raises:
            ConfigError: one is not a valid config.
        """
        return [self._config_of(planned) for planned in planned_trials or [_AS_IT_STANDS]]

    def longest(self, planned_trials: Sequence[PlannedTrial], unit: str) -> float:
        """Return the length of the longest trial, in `budget_unit`; infinite for seconds, and where it is not known."""
        if unit == "seconds":
            return math.inf
        lengths = [self._length_of(planned) for planned in planned_trials or [_AS_IT_STANDS]]
        return max(epochs if unit == "epochs" else samples for epochs, samples in lengths)

    def _config_of(self, planned: PlannedTrial) -> ExperimentConfig:
        key = _key(planned)
        if key not in self._known:
            self._known[key] = trial_config(self._config, planned.params)
        return self._known[key]

    def _length_of(self, planned: PlannedTrial) -> tuple[float, float]:
        key = _key(planned)
        if key not in self._lengths:
            config = self._config_of(planned)
            self._lengths[key] = trial_length(config, self._sizes.of(config))
        return self._lengths[key]


_AS_IT_STANDS = PlannedTrial("", {})


def _key(planned: PlannedTrial) -> tuple[str, str]:
    return planned.id, repr(planned.params)


def trial_length(config: ExperimentConfig, sizes: Sizes | None) -> tuple[float, float]:
    """Epochs and samples of a whole training; each infinite where it is not known."""
    derived = derive(config, sizes)
    if derived.stages and derived.total_epochs is not None and derived.total_samples is not None:
        return derived.total_epochs, derived.total_samples
    if derived.total_steps is None or derived.steps_per_epoch is None or derived.train_samples is None:
        return _length_as_written(config, derived.batch.global_batch_size)
    epochs = derived.total_steps / derived.steps_per_epoch
    per_epoch = derived.train_samples
    if config.data.drop_last:
        per_epoch = derived.steps_per_epoch * derived.batch.global_batch_size
    return epochs, epochs * per_epoch


def _length_as_written(config: ExperimentConfig, global_batch_size: int) -> tuple[float, float]:
    """Return the length for data of unknown size: the one of epochs and samples that alone ends a training."""
    trainer, schedule = config.trainer, schedule_of(config)
    if trainer.max_steps is None:
        return trainer.epochs or 1, math.inf
    if trainer.epochs is not None:
        return math.inf, math.inf
    if schedule is not None:
        return math.inf, ScheduledSteps(schedule, ENDLESS, drop_last=False).after(trainer.max_steps).samples
    return math.inf, trainer.max_steps * global_batch_size


_EXAMPLES = {
    "samples": "write after how many training samples trials are first compared, such as first_rung: 10_000",
    "epochs": "write after how many epochs trials are first compared, such as first_rung: 1",
    "seconds": "write after how many seconds trials are first compared, such as first_rung: 60",
}
"""By `budget_unit`."""


def first_rung(section: SweepConfig, length: float) -> float:
    """Return the amount at which trials are first compared, in `budget_unit`.

    Raises:
        ConfigError: it has to be given, since the length of a trial is not known, or it is beyond the end of all.
    """
    if section.first_rung is not None:
        if math.isfinite(length) and section.first_rung >= length:
            reason = f"comes too late: no trial is longer than {length:,g} {section.budget_unit}, so none is compared"
            hint = f"write less, such as {length / 9:.3g}, or leave it out"
            raise ConfigError([Problem("sweep", reason, "sweep.first_rung", hint=hint)])
        return section.first_rung
    if not math.isfinite(length):
        reason = f"is needed, since the length of a trial in {section.budget_unit} is not known in advance"
        hint = _EXAMPLES[section.budget_unit]
        if section.budget_unit == "samples":
            hint += ", or budget_unit: epochs"
        raise ConfigError([Problem("sweep", reason, "sweep.first_rung", hint=hint)])
    return length / (section.rung_factor**2 if section.scheduler == "asha" else 10)


def group_shape(config: ExperimentConfig, available: Resources) -> GroupShape:
    """The worker group that a trial needs. One that would train without Ray gets a single worker."""
    config = of_fixed_size(config)
    scaling = config.scaling
    workers = max(1, scaling.num_workers)
    return GroupShape(
        num_workers=workers,
        cpus_per_worker=scaling.cpus_per_worker,
        gpus_per_worker=requested(config, uses_gpu(config, available)).gpus / workers,
        placement=scaling.placement,
    )


def needs_fresh_processes(config: ExperimentConfig, available: Resources) -> bool:
    """Return True if the config needs a fresh process: cuBLAS reads its workspace setting when CUDA starts."""
    return config.trainer.deterministic and uses_gpu(of_fixed_size(config), available)


def fitting_shapes(configs: Sequence[ExperimentConfig], available: Resources, where: str) -> list[GroupShape]:
    """The worker groups that trials with these configs need, in their order.

    Raises:
        EnvironmentFault: one of them is more than there is, or than its nodes can hold.
    """
    shapes = [group_shape(each, available) for each in configs]
    for each, shape in zip(configs, shapes, strict=True):
        _check_fit(each, shape, available, where)
        if each.trainer.precision == "16-mixed" and not shape.gpus:
            raise EnvironmentFault(
                f"trainer.precision 16-mixed needs GPUs, {where} offers none: use bf16-mixed", "precision-needs-gpu"
            )
    return shapes


def _check_fit(config: ExperimentConfig, shape: GroupShape, available: Resources, where: str) -> None:
    if shape.gpus > available.gpus and shape.cpus <= available.cpus:
        what = f"a trial with scaling.num_workers {config.scaling.num_workers} needs"
        raise too_few_gpus(what, shape.gpus, "scaling.num_workers", available, where)
    if shape.cpus > available.cpus or shape.gpus > available.gpus:
        raise EnvironmentFault(
            f"a trial with scaling.num_workers {config.scaling.num_workers} needs {shape.cpus:g} CPU cores and "
            f"{shape.gpus:g} GPUs, {where} has {available.cpus:g} and {available.gpus:g}: lower "
            "scaling.num_workers or scaling.cpus_per_worker",
            "trial-too-large",
            num_workers=shape.num_workers,
            asked=(shape.cpus, shape.gpus),
            available=(available.cpus, available.gpus),
        )
    if groups_that_fit(shape, available):
        return
    each = f"{shape.cpus_per_worker:g} CPU cores and {shape.gpus_per_worker:g} GPUs"
    if not any(workers_on(room, shape.request()) for room in available.nodes):
        raise EnvironmentFault(
            f"a worker needs {each} on one node, and no node of {where} has them: lower scaling.cpus_per_worker or "
            "scaling.gpus_per_worker",
            "worker-too-large",
            asked=(shape.cpus_per_worker, shape.gpus_per_worker),
        )
    raise EnvironmentFault(
        f"the nodes of {where} cannot hold {shape.num_workers} workers with {each} each, as scaling.placement "
        f"{shape.placement} wants them: lower scaling.num_workers, or set scaling.placement=pack",
        "placement-impossible",
        num_workers=shape.num_workers,
        placement=shape.placement,
    )


def groups_that_fit(shape: GroupShape, available: Resources) -> int:
    """Number of worker groups of a shape that fit at the same time. A worker takes what it has of one node."""
    return placement.groups_that_fit(shape.request(), available.nodes)


def slots_for(section: SweepConfig, shapes: Sequence[GroupShape], available: Resources, trials: int) -> int:
    """Number of trials that run side by side: as asked for, or as many as there is room for.

    Raises:
        EnvironmentFault: there is no room for as many as were asked for.
    """
    rooms = {shape: groups_that_fit(shape, available) for shape in set(shapes)}
    largest = min(rooms, key=lambda shape: rooms[shape])
    room = rooms[largest]
    if section.slots == "auto":
        return max(1, min(room, trials))
    if section.slots > room:
        nodes = f" on {len(available.nodes)} nodes" if len(available.nodes) > 1 else ""
        raise EnvironmentFault(
            f"sweep.slots {section.slots} x {largest.cpus:g} CPU cores and {largest.gpus:g} GPUs are more than there "
            f"is room for ({available.cpus:g} and {available.gpus:g}{nodes}): lower sweep.slots to {room}, or write "
            "auto",
            "too-many-slots",
            asked=section.slots,
            room=room,
        )
    return min(section.slots, max(trials, 1))


class RecordedSizes:
    """Sizes of the training sets that earlier runs and sweeps were trained on; the newest record of each counts.

    Args:
        home: `<storage>/<name>`.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known: dict[str, tuple[int, str]] | None = None
        self.sources: list[str] = []
        """The runs and sweeps whose records were used, in words."""

    def of(self, config: ExperimentConfig) -> Sizes | None:
        """Sizes of the config's data, the validation set's left at 0; None where there is no record of them."""
        key = _data_key(config.data.model_dump(mode="json"))
        if key is None:
            return None
        if self._known is None:
            self._known = {}
            for found, size, source in _records(self._home):
                self._known.setdefault(found, (size, source))
        if key not in self._known:
            return None
        size, source = self._known[key]
        if source not in self.sources:
            self.sources.append(source)
        return Sizes(size, 0)


def _records(home: Path) -> Iterator[tuple[str, int, str]]:
    """Key of the data, size of the training set, and the place of that record; the newest first."""
    for folder in sorted(home.glob("*/"), reverse=True)[:_NEWEST]:
        try:
            found = list(_of_sweep(SweepFolder(folder))) + list(_of_run(RunFolder(folder)))
        except (OSError, LookupError, TypeError, ValueError, AttributeError, EnvironmentFault):
            continue  # damaged, or of another version
        yield from found


def _of_sweep(folder: SweepFolder) -> Iterator[tuple[str, int, str]]:
    data = folder.read().get("config", {}).get("data")
    for trial in read_log(folder.path).trials.values() if data else ():
        key, size = _data_key(_with(data, trial.params)), _training_size(trial.samples, trial.metrics)
        if trial.state == "finished" and key and size:
            yield key, size, f"sweep {folder.run_id}"


def _of_run(folder: RunFolder) -> Iterator[tuple[str, int, str]]:
    data, outcome = folder.read().get("config", {}).get("data"), read_outcome(folder.tracking) or {}
    if data and outcome.get("status") == "finished":
        key, size = _data_key(data), _training_size(outcome["samples"], outcome["metrics"])
        if key and size:
            yield key, size, f"run {folder.run_id}"


def _training_size(samples: int, metrics: Mapping[str, float]) -> int:
    """Samples of one epoch, of which a training tells how many it took; 0 where it did not."""
    epochs = metrics.get(EPOCH, 0.0)
    return round(samples / epochs) if epochs > 0 else 0


def _with(data: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section `data` of a trial, as far as it says where the data come from."""
    result: dict[str, Any] = {"path": data.get("path"), "args": dict(data.get("args") or {})}
    for key, value in sorted(params.items(), key=lambda item: item[0].count(".")):
        section, *below = key.split(".", 2)
        if section != "data":
            continue
        if not below:
            result = {"path": value.get("path"), "args": dict(value.get("args") or {})}
        elif below == ["name"]:
            result["path"] = None
        elif below[0] in ("path", "args") and len(below) == 1:
            result[below[0]] = value
        elif below[0] == "args":
            result["args"] = {**result["args"], below[1]: value}
    return result


def _data_key(data: Mapping[str, Any]) -> str | None:
    """Stands for data of the user's own; None for those that Paceline ships, which know their size by themselves."""
    path = data.get("path")
    return json.dumps([path, data.get("args") or {}], sort_keys=True, default=str) if path else None
