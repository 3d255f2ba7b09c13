"""What a reviewer sees: the run's journal, and its way into MLflow. Never imports torch or ray.

No module of this package imports MLflow or matplotlib when it is itself imported: MLflow takes seconds, and is loaded
by the shipping thread while training is already under way.
"""

from paceline.tracking.points import Point
from paceline.tracking.record import RunRecord, launch_tags
from paceline.tracking.recorder import Recorder, sync
from paceline.tracking.shipping import ShipReport

__all__ = ["Point", "Recorder", "RunRecord", "ShipReport", "launch_tags", "sync"]
