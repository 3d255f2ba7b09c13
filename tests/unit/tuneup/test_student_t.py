"""Student's t against printed tables, and values of SciPy between whole degrees of freedom."""

import pytest

from paceline.tuneups.statistics.student import cdf, quantile


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [(0.975, 1, 12.7062), (0.95, 2, 2.91999), (0.995, 10, 3.16927), (0.975, 120, 1.97993), (0.95, 1.7, 3.30362)],
)
def test_quantiles(probability: float, degrees: float, expected: float) -> None:
    assert quantile(probability, degrees) == pytest.approx(expected, abs=2e-4)
    assert quantile(1 - probability, degrees) == pytest.approx(-expected, abs=2e-4)
    assert cdf(expected, degrees) == pytest.approx(probability, abs=1e-5)


def test_there_is_no_quantile_of_certainty() -> None:
    with pytest.raises(ValueError, match="quantile"):
        quantile(1.0, 3)
