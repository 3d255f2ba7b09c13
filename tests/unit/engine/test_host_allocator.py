"""Training on CPU keeps the memory that a step frees, and returns it when the trial ends."""

import resource
import sys
from collections.abc import Callable

import psutil
import pytest
import torch

from paceline.bench.stepper import Stepper
from paceline.engine import host_allocator
from paceline.engine.dist_context import DistContext
from paceline.engine.fresh import release_memory
from paceline.engine.host_allocator import keep_freed_memory, return_freed_memory
from paceline.engine.trial_steps import release
from support.toys import toy_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")

CPU = torch.device("cpu")
MMAP, TRIM = -3, -1
LARGEST = 2**31 - 1
STEPS = 10
MOST_FAULTS = 10_000
"""Page faults in a step; 136,000 where the activations of a step are returned to the system."""


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def test_steps_use_the_memory_of_the_steps_before() -> None:
    config = toy_config(
        task={"name": "classification"}, model={"name": "cnn"}, data={"name": "mnist5k", "global_batch_size": 2000}
    )
    stepper = Stepper(config, DistContext.current("cpu"))
    stepper.run(6)
    before = faults()
    stepper.run(STEPS)
    assert (faults() - before) / STEPS < MOST_FAULTS


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (2**31, [(MMAP, LARGEST), (TRIM, LARGEST)]),
        (32 << 20, [(MMAP, LARGEST), (MMAP, 32 << 20), (TRIM, LARGEST)]),
        (0, [(MMAP, LARGEST), (MMAP, 32 << 20)]),
    ],
)
def test_the_trim_threshold_is_set_only_where_the_other_is(
    monkeypatch: pytest.MonkeyPatch, most: int, expected: list[tuple[int, int]]
) -> None:
    """Before glibc 2.35, the threshold of mmap is at most 32 MiB. Either of the two alone would make steps slower."""
    calls: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return int(parameter != MMAP or value <= most)

    monkeypatch.setattr(host_allocator, "_function", lambda name: mallopt)
    keep_freed_memory()
    assert calls == expected


@pytest.mark.parametrize("give_back", [release_memory, lambda: release(CPU)], ids=["between trials", "in a search"])
def test_memory_is_returned_between_trials(give_back: Callable[[], None]) -> None:
    keep_freed_memory()
    return_freed_memory()
    before = resident()
    block = torch.ones(50 << 20)
    del block
    assert resident() - before > 150 << 20, "kept"
    give_back()
    assert resident() - before < 50 << 20, "returned"
