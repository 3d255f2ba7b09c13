"""Tables of states: a trial, an attempt and a slot make the transitions of their table, and no other."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.slot import Slot
from paceline.sweeps.states import ATTEMPT, SLOT, TRIAL, IllegalTransition
from paceline.sweeps.trial import PlannedTrial, Trial
from support.sweeps.simulation import ONE, TWO, SimulatedSweep, simulated

Steps = Mapping[str, Callable[[Any], object]]


def attempt() -> RunningTrial:
    spec: Any = SimpleNamespace(planned=PlannedTrial("0000", {}))
    unused: Any = None
    return RunningTrial("0000", spec=spec, trial=Trial("0000", {}), coordinator=unused, writes=unused)


ATTEMPT_STEPS: Steps = {
    "take_slot": lambda run: run.take_slot(0),
    **{name: getattr(RunningTrial, name) for name in ("begin", "confirm", "lose_group", "displace", "release")},
}
SLOT_STEPS: Steps = {
    "give_to": lambda slot: slot.give_to(attempt()),
    "renew": lambda slot: slot.renew(ONE),
    "renew with another shape": lambda slot: slot.renew(TWO),
    "want none": lambda slot: slot.renew(None),
    **{name: getattr(Slot, name) for name in ("begin", "lose_group", "release", "retire")},
}


def walked(new: Callable[[], Any], steps: Steps) -> set[tuple[str, str]]:
    """All transitions that any sequence of steps makes."""
    found, known, paths = set(), {new().state}, [()]
    while paths:
        path: tuple[str, ...] = paths.pop()
        for name, step in steps.items():
            thing = new()
            for before in path:
                steps[before](thing)
            state = thing.state
            try:
                step(thing)
            except (IllegalTransition, AssertionError):
                continue
            if thing.state != state:
                found.add((state, thing.state))
            if thing.state not in known:
                known.add(thing.state)
                paths.append((*path, name))
    return found


@pytest.mark.parametrize(
    ("table", "new", "steps"),
    [(ATTEMPT, attempt, ATTEMPT_STEPS), (SLOT, lambda: Slot(0), SLOT_STEPS)],
    ids=["attempt", "slot"],
)
def test_steps_make_the_transitions_of_the_table(
    table: Mapping[str, Sequence[str]], new: Callable[[], Any], steps: Steps
) -> None:
    assert walked(new, steps) == {(before, after) for before, others in table.items() for after in others}


@simulated(groups=False)
async def test_recorder_takes_the_transitions_of_a_trial_and_no_other(sweep: SimulatedSweep) -> None:
    recorder = sweep.coordinator._recorder
    pairs = [(before, after) for before in TRIAL for after in TRIAL]
    for number, (before, after) in enumerate(pairs):
        recorder.note(Trial(f"{number:04d}", {}, before))
        if after == before or after in TRIAL[before]:
            recorder.note(Trial(f"{number:04d}", {}, after))
        else:
            with pytest.raises(IllegalTransition):
                recorder.note(Trial(f"{number:04d}", {}, after))
