"""States of a trial, of an attempt at it, and of a slot; for each state, those that may follow."""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

TrialState = Literal[
    "pending", "running", "paused", "finished", "pruned", "failed", "oom", "diverged", "skipped", "predicted_oom"
]
"""Recorded with the trial, and shown to users."""
AttemptState = Literal["waiting", "displaced", "assigned", "taken", "at_work"]
"""Place of a trial between Tune and the worker groups.

waiting: it has no slot. displaced: it has lost its slot and gets another one. assigned: it has a slot, whose group does
not work on it. taken: the group has taken it. at_work: something was heard of that group since; one that died while it
waited is given a trial, too.
"""
SlotState = Literal["empty", "open", "assigned", "busy", "retired"]
"""Place of a slot between the driver, which starts its group, and the trials.

empty: it wants no worker group. open: it wants a group, and has no trial. assigned: it has a trial, and no group works
on that. busy: its group has taken the trial. retired: it gets neither any more.
"""

State = TypeVar("State", bound=str)
Transitions = Mapping[State, Sequence[State]]
"""By state, those that may follow."""

TRIAL: Transitions[TrialState] = {
    "pending": ("running", "paused", "pruned", "failed", "skipped"),
    "running": ("pending", "paused", "finished", "pruned", "failed", "oom", "diverged", "skipped"),
    "paused": ("pending", "running", "pruned", "failed", "skipped"),
    **dict.fromkeys(("finished", "pruned", "failed", "oom", "diverged", "skipped", "predicted_oom"), ()),
}
ATTEMPT: Transitions[AttemptState] = {
    "waiting": ("assigned",),
    "displaced": ("assigned", "waiting"),
    "assigned": ("taken", "displaced", "waiting"),
    "taken": ("at_work", "assigned"),
    "at_work": ("assigned",),
}
SLOT: Transitions[SlotState] = {
    "empty": ("open", "retired"),
    "open": ("assigned", "empty", "retired"),
    "assigned": ("busy", "open"),
    "busy": ("assigned", "open"),
    "retired": (),
}

ENDED = tuple(state for state, followers in TRIAL.items() if not followers)
"""The states that a trial stays in."""
TROUBLE: tuple[TrialState, ...] = ("failed", "oom", "diverged")
"""States that make the command line answer 4."""
NOT_TRAINED: tuple[TrialState, ...] = ("skipped", "predicted_oom")
"""States of trials that ended before they began."""


class IllegalTransition(RuntimeError):
    """A state was about to follow another one that it must not follow: a bug."""


def moved(transitions: Transitions[State], before: State, after: State) -> State:
    """Return the state after a transition; to stay in a state is none.

    Raises:
        IllegalTransition: the table does not have it.
    """
    if after != before and after not in transitions[before]:
        raise IllegalTransition(f"{before} was about to become {after}")
    return after
