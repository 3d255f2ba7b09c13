"""The model of a step's time."""

import pytest

from paceline.batch_scaling.step_time import MeasuredStep, StepTimeModel, fit_step_time, held_out_errors

TRUE = StepTimeModel(0.002, 0.0005, 0.01, True)


def measured(*shapes: tuple[int, int, int]) -> list[MeasuredStep]:
    """Steps of micro-batch size, accumulation and workers that take exactly what the model says."""
    return [MeasuredStep(*shape, TRUE.seconds(*shape)) for shape in shapes]


def test_the_coefficients_are_found() -> None:
    found = fit_step_time(measured((8, 1, 1), (16, 2, 1), (32, 1, 2), (32, 4, 4)))
    assert (found.fixed_seconds, found.sample_seconds, found.exchange_seconds) == pytest.approx((0.002, 0.0005, 0.01))
    assert found.has_exchange


def test_what_was_not_observed_is_said() -> None:
    found = fit_step_time(measured((8, 1, 1), (16, 1, 1), (32, 1, 1)))
    assert not found.has_exchange
    assert found.exchange_seconds == 0.0
    assert found.seconds(64, 1, 1) == pytest.approx(TRUE.seconds(64, 1, 1))


def test_micro_batches_of_one_size_predict_steps_with_more_of_them() -> None:
    """The time of a micro-batch cannot be told apart from that of its samples then (scipy 1.13 raised an error)."""
    found = fit_step_time(measured((16, 2, 1), (16, 4, 1), (16, 8, 1)))
    assert found.seconds(16, 16, 1) == pytest.approx(TRUE.seconds(16, 16, 1))


def test_no_coefficient_is_negative() -> None:
    steps = [MeasuredStep(8, 1, 1, 0.010), MeasuredStep(16, 1, 1, 0.0101), MeasuredStep(32, 1, 1, 0.0099)]
    found = fit_step_time(steps)
    assert min(found.fixed_seconds, found.sample_seconds) >= 0


def test_errors_are_those_of_steps_that_were_left_out() -> None:
    exact = measured((8, 1, 1), (16, 1, 1), (32, 1, 1), (64, 1, 1))
    assert held_out_errors(exact) == pytest.approx([0.0] * 4, abs=1e-9)
    slow = [*exact[:3], MeasuredStep(64, 1, 1, 2 * exact[3].seconds)]
    assert held_out_errors(slow)[3] == pytest.approx(-0.5, abs=0.01)
