"""Builds the spec of a trial: everything that its workers and its record need."""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.preflight import Resources
from paceline.cluster.train import record_params
from paceline.cluster.user_code import python_objects
from paceline.cluster.worker_spec import TrialWorkerSpec, WorkerSpec
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import secrets_of, shareable
from paceline.storage.address import RunStore
from paceline.sweeps.messages import TrialSpec
from paceline.sweeps.planning.params_checks import KnownSizes
from paceline.sweeps.planning.planned_trials import trial_config
from paceline.sweeps.planning.sizing import group_shape, needs_fresh_processes
from paceline.sweeps.results.labels import setting_text, short_names
from paceline.sweeps.results.record import common_tags, without_secrets
from paceline.sweeps.trial import PlannedTrial
from paceline.tracking.run_record import RunRecord, trial_tags

if TYPE_CHECKING:
    from paceline.sweeps.launch import SlotPlan, SweepLaunch


@dataclass(frozen=True)
class TrialSpecBuilder:
    """Makes the specs of one sweep's trials; travels to Tune's trainables."""

    base: WorkerSpec
    """The sweep's own config, as its workers would get it; with its objects pickled."""
    folder: str
    """The sweep's folder."""
    sweep_id: str
    uri: str
    experiment: str
    tags: Mapping[str, str]
    """Tags that all trials have in common."""
    available: Resources
    rungs: Mapping[str, Any] | None = None
    predicted_bytes: Mapping[str, int] = field(default_factory=dict)
    """The predicted memory of one worker, by the trial's id, as far as it is known."""
    sizes: KnownSizes = field(default_factory=KnownSizes, repr=False, compare=False)
    store: RunStore | None = None
    """The sweep's place when that is in an object store; its folder is the driver's working copy then."""

    def store_of(self, trial_id: str) -> RunStore | None:
        """Return the place of a trial in the object store; None for a folder."""
        return None if self.store is None else self.store.trial(trial_id)

    @cached_property
    def config(self) -> ExperimentConfig:
        """The sweep's config."""
        return self.base.config()

    def make(self, planned: PlannedTrial) -> TrialSpec:
        """Settle a trial.

        Raises:
            ConfigError: it is not a valid config.
            EnvironmentFault: its data cannot be looked at.
        """
        config = trial_config(self.config, planned.params)
        folder = Path(self.folder) / "trials" / planned.id
        derived = derive(config, self.sizes.of(config))
        part = TrialWorkerSpec(
            config_json=shareable(config).model_dump_json(),
            kept=tuple(python_objects(config)),
            checkpoints=str(folder / "checkpoints"),
            rungs=self.rungs,
            store=self.store_of(planned.id),
        )
        return TrialSpec(
            planned=planned,
            shape=group_shape(config, self.available),
            needs_fresh_processes=needs_fresh_processes(config, self.available),
            worker_spec=pickle.dumps(part),
            record=self._record(planned, config, record_params(config, derived)),
            folder=str(folder),
            total_steps=derived.total_steps,
            timeout_seconds=config.parallel.timeout_seconds,
            store=part.store,
        )

    def _record(self, planned: PlannedTrial, config: ExperimentConfig, params: Mapping[str, Any]) -> RunRecord:
        return RunRecord(
            run_id=f"{self.sweep_id}/{planned.id}",
            name=_run_name(planned),
            title=config.name,
            uri=self.uri,
            experiment=self.experiment,
            params=params,
            tags={**self.tags, **trial_tags(self.sweep_id, planned.id, self.predicted_bytes.get(planned.id))},
            artifacts={"config.yaml": dump_yaml(shareable(config))},
            secrets=secrets_of(config),
            parent=self.sweep_id,
            picture=False,
        )


def base_of(launch: "SweepLaunch") -> WorkerSpec:
    """Return what the specs of all trials' workers have in common, ready to travel."""
    return WorkerSpec.of(launch.config, launch.address).travelling()


def spec_builder_of(launch: "SweepLaunch", plan: "SlotPlan", base: WorkerSpec) -> TrialSpecBuilder:
    """Return the builder of the trials' specs."""
    config = launch.config
    return TrialSpecBuilder(
        base=base,
        folder=str(launch.folder.path),
        sweep_id=launch.folder.run_id,
        uri=launch.uri,
        experiment=config.tracking.experiment or config.name,
        tags=common_tags(),
        available=plan.available,
        rungs=plan.rungs,
        predicted_bytes=launch.predicted_bytes,
        store=launch.claimed.store,
    )


def _run_name(planned: PlannedTrial) -> str:
    return f"{planned.id} {setting_text(without_secrets(planned.params), short_names(planned.params))}"
