"""Events of the steps of a training."""

import itertools

import pytest

from paceline.config.experiment import validate
from paceline.engine.plan import TrainPlan
from paceline.engine.state import Position

STEPS_PER_EPOCH = 5


def plan_of(log, evaluate, save, total):
    sections = {
        "trainer": {"max_steps": total, "log_every_n_steps": log, "evaluate_every_n_steps": evaluate},
        "checkpoint": {"every_n_steps": save},
    }
    config = validate({"name": "plan", "model": {"name": "cnn"}, "data": {"name": "mnist5k"}, **sections})
    return TrainPlan(config.trainer, config.checkpoint, STEPS_PER_EPOCH)


EVERY = [*itertools.product((1, 3, 100), (None, 4, 7), (None, 6))]


@pytest.mark.parametrize(("log", "evaluate", "save"), EVERY, ids=str)
def test_quiet_steps_are_those_without_any_event(log, evaluate, save):
    plan, position = plan_of(log, evaluate, save, total=33), Position()
    for step in range(1, 34):
        position.advance(8, step % STEPS_PER_EPOCH == 0)
        has_event = plan.logs(position) or plan.evaluates(position) or plan.saves(position) or plan.is_over(position)
        assert plan.is_quiet(position) == (not has_event and step % STEPS_PER_EPOCH != 0)
