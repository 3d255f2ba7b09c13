"""Fields that the results of all studies have."""

from pathlib import Path
from typing import Any

from paceline.config.experiment import ExperimentConfig


def study_fields(
    config: ExperimentConfig, folder: Path, *, recommended: str = "", report: str = "", url: str | None = None
) -> dict[str, Any]:
    """Return the fields of a study that took a second."""
    return {
        "name": config.name,
        "config": config,
        "recommended_path": recommended,
        "report_path": report,
        "folder": folder,
        "wall_seconds": 1.0,
        "mlflow_url": url,
        "mlflow_run_id": None,
    }
