"""Records without MLflow."""

from support.tracking.fixtures import _environment, _no_recorder_continues, odd_folder, record

__all__ = ["_environment", "_no_recorder_continues", "odd_folder", "record"]
