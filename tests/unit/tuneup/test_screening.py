"""Which pairs of configs the screening looks at again."""

import pytest

from paceline.tuneups.paired_benchmark import Pair
from paceline.tuneups.screening import ScreenedPair
from support.toys import toy_config


@pytest.mark.parametrize(
    ("speedups", "is_open"),
    [
        ((1.01, 1.06, 0.99, 1.05), True),
        ((1.04, 1.05, 1.04, 1.05), False),  # that is clear
        ((1.001, 1.002, 0.999, 1.001), False),  # nothing to be seen
        ((0.99, 0.94, 1.01, 0.95), True),  # may still be faster
        ((0.975, 0.97, 0.98, 0.965), False),
        ((1.01, 1.06, 0.99, 1.05) * 3, True),  # after two benchmarks
        ((1.0, 1.1, 0.94, 1.08) * 4 + (1.0, 1.1), False),  # three are enough
    ],
)
def test_only_what_may_be_faster_is_looked_at_again(speedups: tuple[float, ...], is_open: bool) -> None:
    config = toy_config()
    screened = ScreenedPair("technique", config, config, [Pair(speedup, 1.0) for speedup in speedups])
    assert screened.is_open == is_open
