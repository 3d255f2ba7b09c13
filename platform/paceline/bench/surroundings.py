"""Hardware, software and user code that measurements depend on."""

import sys
from typing import Any

import torch

import paceline
from paceline.bench.own_digests import own_digests
from paceline.config.experiment import ExperimentConfig
from paceline.engine.dist_context import DistContext
from paceline.engine.monitoring.stamp import device_name, usable_cores


def surroundings(config: ExperimentConfig, ranks: DistContext) -> dict[str, Any]:
    """Return them in plain values, for the answer of a job that `checks_again`, once the model and the data have been
    built: their modules are imported then."""
    return {
        "device_type": ranks.device.type,
        "world_size": ranks.world_size,
        "cores": torch.get_num_threads(),
        "device": device_name(ranks.device),
        "device_memory_bytes": _device_memory_bytes(ranks.device),
        "usable_cores": usable_cores(),
        "software": f"paceline {paceline.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}",
        "code": own_digests(config) if ranks.is_first else {},
    }


def _device_memory_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0
