"""The critical batch size of a grid, by which `scale` is judged."""

from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import expected_efficiency

OWN = 32


def test_a_batch_that_has_not_reached_the_target_bounds_the_critical_size(load: Any) -> None:
    grid_critical_batch = load("batch_grid").grid_critical_batch
    seen = {size: 1 / expected_efficiency(size, OWN, 10_000.0) for size in (64, 128)}
    assert grid_critical_batch(seen, OWN) == pytest.approx(10_000, rel=0.05)
    # with 300, a batch of 256 takes 1.675 times the samples
    assert 300 < grid_critical_batch(seen, OWN, at_least={256: 1.675}) < 700
    low = {256: 1 / expected_efficiency(256, OWN, 10_000.0) / 1.01}
    assert grid_critical_batch(seen, OWN, at_least=low) == pytest.approx(10_000, rel=0.05)
