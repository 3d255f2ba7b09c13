"""Tune's controller of an experiment, without Ray."""

from typing import Any
from unittest.mock import Mock, patch

import ray
from pyarrow.fs import LocalFileSystem
from ray.train._internal.storage import StorageContext
from ray.tune.execution.tune_controller import TuneController


def tune_controller(scheduler: Any = None) -> Any:
    """Make one whose actors are not there."""
    storage = StorageContext(storage_path="/nowhere", experiment_dir_name="toy", storage_filesystem=LocalFileSystem())
    with patch.object(ray, "cluster_resources", dict), patch.object(StorageContext, "_create_validation_file", Mock()):
        return TuneController(storage=storage, resource_manager_factory=Mock, scheduler=scheduler)
