"""Everything that the workers of an evaluation need. Light to import, for processes without torch."""

from dataclasses import dataclass, replace
from pathlib import Path

from paceline.cluster.listener import Listener
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.experiment import ExperimentConfig


@dataclass(frozen=True)
class EvaluationRequest:
    """What one evaluation does. Travels to the workers."""

    worker_spec: WorkerSpec
    checkpoint: str
    """Folder, or address in an object store."""
    sets: tuple[str, ...]
    """See `engine.evaluation.chosen_sets`."""
    parts: str = ""
    """Where the predictions of each rank are written to, a folder or an address; empty: metrics are wanted."""

    def travelling(self) -> "EvaluationRequest":
        """The same with its Python objects pickled."""
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
