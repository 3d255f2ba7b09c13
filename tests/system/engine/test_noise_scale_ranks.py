"""The noise scale over two ranks: that of per-sample gradients, the same on both."""

from typing import Any

import pytest

from paceline.engine.dist_context import DistContext
from support.adascale import reference, ten_steps
from support.ranks import run_ranks
from support.toys import fit, toy_config


def window(ranks: DistContext, overrides: dict[str, Any]) -> list[tuple[float, float]]:
    """Train; squared norm and variance at each step."""
    trainer, _, _ = fit(toy_config(**overrides, scaling__num_workers=ranks.world_size), ranks)
    return [tuple(each) for each in trainer.step._noise_scale.window]


@pytest.mark.parametrize(("weighted", "accumulation"), [(False, 1), (True, 2)])
def test_two_ranks_measure_what_per_sample_gradients_say(weighted: bool, accumulation: int) -> None:
    expected = reference(weighted, ranks=2, micro_batch=0, follows_gain=False)
    overrides = {
        **ten_steps(weighted),
        "optimizer__lr_scaling": "none",
        "trainer__noise_scale": True,
        "trainer__noise_scale_every_n_steps": 1,
        "trainer__gradient_accumulation_steps": accumulation,
    }
    first, second = run_ranks(window, 2, overrides)
    assert first == second
    assert [square for square, _ in first] == pytest.approx(expected.squares, rel=1e-10)
    assert [variance for _, variance in first] == pytest.approx(expected.variances, rel=1e-10)
