"""Several runs in one process: what the first one leaves behind does not count in the second one."""

from pathlib import Path

import torch
from torch import nn

from paceline.cluster.train_worker import run_here
from paceline.cluster.worker_spec import WorkerSpec
from paceline.engine.reporter import MemoryReporter
from support.toys import net, toy_config

HELD_BYTES = 400 * 2**20


def hungry_net() -> nn.Module:
    """A model that takes a lot of memory while it is made."""
    held = torch.ones(HELD_BYTES // 4)
    return net() if held[-1] == 1 else nn.Identity()


def test_the_peak_memory_is_that_of_the_run_alone(tmp_path: Path) -> None:
    peaks = []
    for model in (hungry_net, net):
        config = toy_config(model__path=model)
        objects = {section: getattr(config, section).path for section in ("model", "data", "task")}
        worker_spec = WorkerSpec(config.model_dump_json(), objects, checkpoints=str(tmp_path / model.__name__))
        ending = run_here(worker_spec, torch.device("cpu"), MemoryReporter())
        assert ending["status"] == "finished", ending
        peaks.append(ending["peak_memory_bytes"])
    assert peaks[0] - peaks[1] > HELD_BYTES / 2
