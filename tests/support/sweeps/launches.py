"""Launches of sweeps that start nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.sweeps.launch import SweepLaunch
from paceline.sweeps.listener import SweepListener
from paceline.sweeps.planning.planned_trials import section_of
from paceline.sweeps.planning.sizing import TrialConfigs
from paceline.sweeps.sweep_folder import claim_sweep
from paceline.sweeps.sweep_log import SweepHistory
from paceline.sweeps.trial import PlannedTrial


class RecordingListener:
    """Keeps the stages and events of a sweep."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.stages: list[str] = []

    @property
    def warnings(self) -> list[str]:
        """The codes of the warnings."""
        return [details.get("code", "") for kind, details in self.events if kind == "warning"]

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def planned(self, lines: list[tuple[str, str]]) -> None: ...

    def trials(self, view: Sequence[object]) -> None: ...

    def event(self, kind: str, details: dict[str, Any]) -> None:
        self.events.append((kind, details))


def launch_of(
    config: ExperimentConfig,
    storage: Path,
    planned_trials: Sequence[PlannedTrial] = (),
    listener: SweepListener | None = None,
    uri: str = "http://127.0.0.1:9",
    close_seconds: float = 0.1,
) -> SweepLaunch:
    """A sweep that is claimed, in a folder of its own."""
    storage.mkdir(parents=True, exist_ok=True)
    return SweepLaunch(
        config=config,
        sweep=section_of(config),
        claimed=claim_sweep(config, storage),
        uri=uri,
        planned_trials=tuple(planned_trials),
        skipped=(),
        configs=TrialConfigs(config),
        history=SweepHistory(),
        address=None,
        listener=listener or RecordingListener(),  # type: ignore[arg-type]
        close_seconds=close_seconds,
        working_folder=Path.cwd(),
    )
