"""From a point of a sweep to everything that its workers and its record need."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paceline.cluster.assignment import Assignment, TrialPart
from paceline.cluster.experiment import record_params
from paceline.cluster.preflight import Resources
from paceline.cluster.python_objects import python_objects
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import secrets_of, shareable
from paceline.sweeps.planning.points import trial_config
from paceline.sweeps.planning.sizing import KnownSizes, group_shape, needs_fresh_processes
from paceline.sweeps.results.labels import setting_text, short_names
from paceline.sweeps.results.record import without_secrets
from paceline.sweeps.trials import Point
from paceline.sweeps.work import Order
from paceline.tracking.record import RunRecord, trial_tags


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
    predicted_bytes: Mapping[str, int] = field(default_factory=dict)
    """The predicted memory of one worker, by the point's id, as far as it is known."""
    sizes: KnownSizes = field(default_factory=KnownSizes, repr=False, compare=False)

    @cached_property
    def config(self) -> ExperimentConfig:
        """The sweep's config."""
        return self.base.config()

    def make(self, point: Point) -> Order:
        """Settle a point.

        Raises:
            ConfigError: it is no valid config.
            EnvironmentFault: its data cannot be looked at.
        """
        config = trial_config(self.config, point.overrides)
        folder = Path(self.folder) / "trials" / point.id
        derived = derive(config, self.sizes.of(config))
        part = TrialPart(
            config_json=shareable(config).model_dump_json(),
            kept=tuple(python_objects(config)),
            checkpoints=str(folder / "checkpoints"),
            rungs=self.rungs,
        )
        return Order(
            point=point,
            shape=group_shape(config, self.available),
            needs_fresh_processes=needs_fresh_processes(config, self.available),
            assignment=pickle.dumps(part),
            record=self._record(point, config, record_params(config, derived)),
            folder=str(folder),
            total_steps=derived.total_steps,
            timeout_seconds=config.parallel.timeout_seconds,
        )

    def _record(self, point: Point, config: ExperimentConfig, params: Mapping[str, Any]) -> RunRecord:
        return RunRecord(
            run_id=f"{self.sweep_id}/{point.id}",
            name=_run_name(point),
            title=config.name,
            uri=self.uri,
            experiment=self.experiment,
            params=params,
            tags={**self.tags, **trial_tags(self.sweep_id, point.id, self.predicted_bytes.get(point.id))},
            artifacts={"config.yaml": dump_yaml(shareable(config))},
            secrets=secrets_of(config),
            parent=self.sweep_id,
            picture=False,
        )


def _run_name(point: Point) -> str:
    return f"{point.id} {setting_text(without_secrets(point.overrides), short_names(point.overrides))}"
