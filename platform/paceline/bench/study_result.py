"""Result of a study: its answer's places. The results of `scale` and `tuneup` add what was found out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.listener import UI_HINT
from paceline.config.experiment import ExperimentConfig


@dataclass(frozen=True, repr=False, kw_only=True)
class StudyResult:
    """A finished study."""

    name: str
    config: ExperimentConfig
    """The config as it was."""
    recommended_path: str
    """File with the recommended config, which `train` accepts; empty where no file can hold it."""
    report_path: str
    """The report as one HTML file."""
    folder: Path
    wall_seconds: float
    mlflow_url: str | None
    mlflow_run_id: str | None
    needs_ui: bool = False
    """True if the link needs `paceline ui` to be running."""

    def _places_json(self) -> dict[str, Any]:
        return {
            "recommended_path": self.recommended_path,
            "report_path": self.report_path,
            "wall_seconds": self.wall_seconds,
            "mlflow_url": self.mlflow_url,
        }

    def _place_rows(self) -> list[tuple[str, str]]:
        """Return rows of label and text; an empty text where there is nothing."""
        link = self.mlflow_url or ""
        return [
            ("config", self.recommended_path),
            ("report", self.report_path),
            ("wall time", f"{self.wall_seconds:.0f} s"),
            ("MLflow", f"{link}{UI_HINT if self.needs_ui else ''}" if link else ""),
        ]
