"""A user's file with a callback, a metric, a schedule and an optimizer, any of which can fail on rank 1."""

from pathlib import Path

FAILING_STEP = 5
"""Optimizer steps at the end of which, or evaluations in which, the fault comes."""
NAME = "faulty_parts_of_a_user"
SOURCE = """
import os, time
from pathlib import Path

import torch
import torch.distributed as dist

from paceline import Callback

FAULT = Path(os.environ["USER_FAULT"])


def fail(part, step):
    named, at = FAULT.read_text().split() if FAULT.exists() else ("", 0)
    if named == part and step == int(at) and dist.get_rank() == 1:
        FAULT.with_name("failed").write_text(str(time.time()))
        raise LookupError(f"the {part} is broken")


class Watching(Callback):
    def on_step_end(self, ctx):
        fail("callback", ctx.step)


class Accuracy:
    evaluations = 0

    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.samples = 0

    def update(self, predictions, targets):
        self.right += int((predictions == targets).sum())
        self.samples += len(targets)

    def compute(self):
        Accuracy.evaluations += 1
        fail("metric", Accuracy.evaluations)
        return self.right / self.samples


def factor(step, total_steps):
    fail("schedule", step)
    return 1 - step / total_steps


class Momentum(torch.optim.SGD):
    def step(self, closure=None):
        self.taken = getattr(self, "taken", 0) + 1
        fail("optimizer", self.taken)
        return super().step(closure)
"""


def write_parts(folder: Path) -> Path:
    """Write the user's file into a folder; returns it."""
    file = folder / f"{NAME}.py"
    file.write_text(SOURCE.lstrip())
    return file
