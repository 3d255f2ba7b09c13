"""What a split of real steps measures, and that measuring changes nothing that is computed."""

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from paceline.engine.build import build_trainer
from paceline.engine.dist_context import DistContext
from paceline.engine.reporter import MemoryReporter
from paceline.engine.state import weights_sha256
from paceline.errors import ConfigError
from paceline.profiling.parts import StepSplit
from paceline.profiling.splitting import split_steps
from support.bottlenecks import DELAY, PLANTS, Plant
from support.ranks import run_ranks
from support.toys import net_with_dropout_and_norm, toy_config

ALONE = DistContext.current()


def split_of(ranks: DistContext, plant: Plant, steps: int = 12, warm_up: int = 3, folder: Any = None) -> StepSplit:
    """One rank's split of the planted training."""
    return split_steps(plant.build(plant.config(), ranks, folder), steps, warm_up)


# --- what is measured --------------------------------------------------------------------------------------------


def by_another_clock(ranks: DistContext, times: int) -> list[tuple[float, StepSplit]]:
    plant, found = PLANTS["data"], []
    for _ in range(times):
        trainer = plant.build(plant.config(), ranks)
        start = perf_counter()
        split = split_steps(trainer, 20, 0)
        found.append((perf_counter() - start, split))
    return found


def test_the_steps_take_as_long_as_by_another_clock() -> None:
    """What is around the steps is little: in one of three looks, as other programs only add to it."""
    (found,) = run_ranks(by_another_clock, 1, 3)
    assert all(20 * split.step_seconds <= seconds for seconds, split in found)
    assert max(20 * sum(split.seconds.values()) / seconds for seconds, split in found) > 0.8


def test_evaluations_and_checkpoints_are_told_apart(tmp_path: Path) -> None:
    plant = Plant(
        overrides={"data__args": {"samples": 64, "validation": 512}, "checkpoint__every_n_steps": 1}, saves=True
    )
    (split,) = run_ranks(split_of, 1, plant, 8, 0, tmp_path)  # two epochs
    (alone,) = split.ranks
    assert all(seconds > 0 for seconds in alone.after_step.values())
    assert sum(alone.after_step.values()) <= split.seconds["logging"]
    (without,) = run_ranks(split_of, 1, Plant(), 4)
    assert without.ranks[0].after_step == {"evaluation": 0.0, "checkpoints": 0.0}


def test_loader_processes_are_waited_for_in_data() -> None:
    plant = Plant(planted={"data__args": {"delay": 2 * DELAY / 16}, "data__num_workers": 1})
    (split,) = run_ranks(split_of, 1, plant)
    assert split.fraction("data") > 0.5


# --- what is computed stays the same -----------------------------------------------------------------------------


def weights_after(ranks: DistContext, splits: bool, **overrides: Any) -> tuple[str, int]:
    """Of 9 steps, the last ones of them measured or all of them trained."""
    config = toy_config(trainer__max_steps=9, scaling__num_workers=ranks.world_size, **overrides)
    trainer = build_trainer(config, ranks, MemoryReporter())
    if splits:
        split_steps(trainer, 6, 3)
    else:
        trainer.fit()
    # without buffers: rank 0's reach the others with the next forward pass, or with the evaluation at the end
    parameters = {name: each.detach() for name, each in trainer.state.task.named_parameters()}
    return weights_sha256(parameters), trainer.state.position.samples


@pytest.mark.parametrize(
    ("world_size", "overrides"),
    [
        (1, {"model__path": net_with_dropout_and_norm, "trainer__max_grad_norm": 0.5}),
        (2, {"trainer__gradient_accumulation_steps": 2}),
        (2, {"model__path": net_with_dropout_and_norm, "parallel__comm_hook": "bf16"}),
    ],
)
def test_measuring_changes_nothing(world_size: int, overrides: dict[str, Any]) -> None:
    trained = run_ranks(weights_after, world_size, False, **overrides)
    assert run_ranks(weights_after, world_size, True, **overrides) == trained


def test_the_watch_is_taken_off_and_a_split_goes_past_the_end_of_the_plan() -> None:
    trainer = build_trainer(toy_config(trainer__epochs=1), ALONE, MemoryReporter())
    watched = [trainer, trainer.data.loader, trainer.step.forward_backward, trainer.state.precision, trainer.meter]
    before = [vars(each).keys() - {"lr"} for each in watched]
    ranks, start = trainer.dist, trainer.data.loader.start
    assert split_steps(trainer, 10, 2).steps == 10
    assert trainer.state.position.step == 12
    assert [vars(each).keys() - {"lr"} for each in watched] == before
    assert trainer.dist is ranks
    assert trainer.data.loader.start == start


def hooks_left(ranks: DistContext) -> int:
    trainer = build_trainer(toy_config(scaling__num_workers=2), ranks, MemoryReporter())
    split_steps(trainer, 2, 1)
    return sum(len(each._post_accumulate_grad_hooks or ()) for each in trainer.step.parameters)


def test_no_gradient_stays_watched() -> None:
    assert run_ranks(hooks_left, 2) == [0, 0]


def in_a_pipeline(ranks: DistContext) -> str:
    from torch import nn

    config = toy_config(
        task={"name": "classification"},
        model__path=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
        data__path=lambda: 2 * (torch.utils.data.TensorDataset(torch.ones(96, 6), torch.zeros(96).long()),),
        parallel__strategy="pipeline",
        scaling__num_workers=2,
    )
    trainer = build_trainer(config, ranks, MemoryReporter())
    with pytest.raises(ConfigError) as refused:
        split_steps(trainer, 2, 1)
    return str(refused.value)


def test_a_pipeline_is_refused() -> None:
    (said, _) = run_ranks(in_a_pipeline, 2)
    assert "parallel.strategy" in said


def test_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="0 steps"):
        split_steps(build_trainer(toy_config(), ALONE, MemoryReporter()), 0, 1)
