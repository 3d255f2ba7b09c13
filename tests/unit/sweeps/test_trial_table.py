"""The driver's table of trials: the counts and orders that a count over all trials gives."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any, get_args

import pytest

from paceline.sweeps.states import ENDED, NOT_TRAINED, TrialState
from paceline.sweeps.trial import Trial, TrialTable, planned_order


@pytest.mark.parametrize("seed", range(5))
def test_table_agrees_with_a_count_over_all_trials(seed: int) -> None:
    draw, table, trials = random.Random(seed), TrialTable(), {}
    ended: list[str] = []
    for _ in range(400):
        number = draw.randrange(60) if draw.random() < 0.9 else 10_000 + draw.randrange(9)
        state: Any = draw.choice(get_args(TrialState))
        trial = trials.get(f"{number:04d}", Trial(f"{number:04d}", {}, total_steps=10))
        if trial.state in ENDED:  # it stays there; what is known of its record changes
            trial = replace(trial, mlflow_run_id="run")
        else:
            trial = replace(trial, state=state, steps=draw.randrange(12))
            ended += [trial.id] if state in ENDED else []
        trials[trial.id] = trial
        table.update([trial])
    assert list(table) == sorted(trials.values(), key=planned_order)
    assert table[1:3] == list(table)[1:3]
    assert +table.counts == Counter(trial.state for trial in trials.values())
    assert table.ended_ids == ended
    assert set(table.open) == {trial.id for trial in trials.values() if trial.state not in ENDED}
    untrained = sum(trial.state in NOT_TRAINED for trial in trials.values())
    assert (table.num_ended, table.num_untrained) == (len(ended), untrained)
    shares = sum(min(trial.steps / 10, 1.0) for trial in table.open.values())
    assert table.work_done == pytest.approx(len(ended) - untrained + shares)
