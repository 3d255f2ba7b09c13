"""An iterable training set on two ranks with loader processes: each sample once, also over an interrupted run."""

from pathlib import Path
from typing import Any

import pytest

from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from support.ranks import run_ranks
from support.streams import SAMPLES, stateful_stream, stream
from support.toys import fit, toy_config


def parts(ranks: DistContext, folder: Path, data: Any, loaders: int, stops: list[int]) -> list[tuple[list[int], str]]:
    """Samples seen by this rank, and the weights, of each launch of a run that is interrupted at some steps."""
    config = toy_config(
        data__path=data, data__global_batch_size=12, data__micro_batch_size=2, data__num_workers=loaders,
        trainer__epochs=None, trainer__max_steps=10, scaling__num_workers=ranks.world_size,
    )  # fmt: skip
    found = []
    for stop in [*stops, None]:
        trainer, outcome, _ = fit(config, ranks, folder, MemoryReporter(stop_at_step=stop))
        found.append(([index for batch in trainer.state.task.seen for index in batch], outcome.weights_sha256))
    return found


# a stream without a state of its own, with loader processes, is killed in test_kills.py
@pytest.mark.parametrize(
    ("data", "loaders"), [pytest.param(stream, 2, marks=pytest.mark.slow), (stateful_stream, 2), (stream, 0)]
)
def test_an_interrupted_run_sees_what_the_whole_one_sees(data: Any, loaders: int, tmp_path: Path) -> None:
    whole = run_ranks(parts, 2, tmp_path / "whole", data, loaders, [])
    interrupted = run_ranks(parts, 2, tmp_path / "parts", data, loaders, [2, 5])
    for of_whole, of_parts in zip(whole, interrupted, strict=True):
        assert len(of_parts) == 3
        assert [index for seen, _ in of_parts for index in seen] == of_whole[0][0]
        assert of_parts[-1][1] == of_whole[0][1]
    first_epoch = [seen[0][0] for seen in whole]
    both = sorted(set(first_epoch[0]) | set(first_epoch[1]))
    assert both == list(range(SAMPLES))
