"""From a point of a sweep to everything that its workers and its record need."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.cluster.assignment import Assignment
from paceline.cluster.experiment import record_params
from paceline.cluster.preflight import Resources, uses_gpu
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.sweeps.labels import setting_text, short_names
from paceline.sweeps.points import trial_config
from paceline.sweeps.trials import Point
from paceline.sweeps.work import GroupShape, Order
from paceline.tracking.record import RunRecord, trial_tags
from paceline.tracking.redact import shareable


@dataclass(frozen=True)
class OrderMaker:
    """Makes the orders of one sweep; travels to Tune's trainables."""

    base: Assignment
    """The sweep's own config, as its workers would get it; with its objects pickled."""
    folder: str
    """The sweep's folder."""
    sweep_id: str
    uri: str
    experiment: str
    tags: Mapping[str, str]
    """Those that all trials have in common."""
    available: Resources
    rungs: Mapping[str, Any] | None = None
    _sizes: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def config(self) -> ExperimentConfig:
        """The sweep's config."""
        return self.base.config()

    def make(self, point: Point) -> Order:
        """Settle a point.

        Raises:
            ConfigError: it is no valid config.
        """
        config = trial_config(self.config, point.overrides)
        folder = Path(self.folder) / "trials" / point.id
        derived = derive(config, config.data.sizes())
        assignment = replace(
            self.base,
            config_json=shareable(config).model_dump_json(),
            checkpoints=str(folder / "checkpoints"),
            rungs=self.rungs,
        )
        return Order(
            point=point,
            shape=group_shape(config, self.available),
            needs_fresh_processes=needs_fresh_processes(config, self.available),
            assignment=pickle.dumps(assignment),
            record=self._record(point, config, record_params(config, derived)),
            folder=str(folder),
            total_steps=derived.total_steps,
            timeout_seconds=config.parallel.timeout_seconds,
        )

    def _record(self, point: Point, config: ExperimentConfig, params: Mapping[str, Any]) -> RunRecord:
        return RunRecord(
            run_id=f"{self.sweep_id}/{point.id}",
            name=f"{point.id} {setting_text(point.overrides, short_names(point.overrides))}",
            title=config.name,
            uri=self.uri,
            experiment=self.experiment,
            params=params,
            tags={**self.tags, **trial_tags(self.sweep_id, point.id)},
            artifacts={"config.yaml": dump_yaml(shareable(config))},
            parent=self.sweep_id,
            picture=False,
        )


def group_shape(config: ExperimentConfig, available: Resources) -> GroupShape:
    """The worker group that a trial needs. One that would train without Ray gets a single worker."""
    scaling = config.scaling
    per_worker = 1.0 if scaling.gpus_per_worker == "auto" else scaling.gpus_per_worker
    return GroupShape(
        num_workers=max(1, scaling.num_workers),
        cpus_per_worker=scaling.cpus_per_worker,
        gpus_per_worker=per_worker if uses_gpu(config, available) else 0.0,
        placement=scaling.placement,
    )


def needs_fresh_processes(config: ExperimentConfig, available: Resources) -> bool:
    """Whether the config sets what only a fresh process can: cuBLAS reads its workspace setting when CUDA starts."""
    return config.trainer.deterministic and uses_gpu(config, available)
