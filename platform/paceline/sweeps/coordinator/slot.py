"""Slots of a sweep: each has one worker group at a time, which runs one trial at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.messages import GroupShape, WantedGroup
from paceline.sweeps.restart_state import SavedSlot
from paceline.sweeps.states import SLOT, SlotState, moved
from paceline.sweeps.sweep_costs import SHUTDOWN, GroupTimes


@dataclass
class Slot(SavedSlot):
    """A place for a worker group. The group itself is started by the driver, as `wanted` says."""

    run: RunningTrial | None = None
    workers: dict[int, list[bytes]] = field(default_factory=dict)
    """Pickled handles of the actors of each generation's group, until that is known to have ended."""
    times: GroupTimes = field(default_factory=GroupTimes)
    """Time accounting of the groups of all slots."""

    @property
    def wanted(self) -> WantedGroup:
        """The group that the driver starts, or ends."""
        return WantedGroup(self.number, self.generation, self.shape)

    @property
    def is_free(self) -> bool:
        """Return True if a trial may be assigned to this slot."""
        return self.state in ("empty", "open")

    @property
    def is_busy(self) -> bool:
        """True if a group has taken the trial of this slot."""
        return self.state == "busy"

    def is_current(self, generation: int, incarnation: int | None = None) -> bool:
        """Return True if a worker's group is the one that this slot has now."""
        same = generation == self.generation and self.shape is not None
        return same and incarnation in (None, self.incarnation)

    def restore(self, saved: SavedSlot) -> None:
        """Take over the group of a coordinator that has died. Its trial, if it still has one, follows in `adopt`."""
        vars(self).update(vars(saved))
        if not self.is_free and self.state != "retired":
            self.state = "open"

    def adopt(self, run: RunningTrial) -> None:
        """Take over the trial of a coordinator that has died."""
        self.run = run
        self.state = "assigned" if run.begun is None else "busy"

    def give_to(self, run: RunningTrial) -> None:
        """Assign a trial."""
        self._turn("assigned")
        self.run = run
        run.take_slot(self.number)

    def begin(self) -> None:
        """The group takes the trial."""
        assert self.run is not None
        self._turn("busy")
        self.taken += 1
        self.run.begin()

    def lose_group(self) -> None:
        """The processes are gone that were at work on the trial; the next group gets it again."""
        assert self.run is not None
        self._turn("assigned")
        self.run.lose_group()

    def release(self) -> RunningTrial | None:
        """Have no trial any more; returns the one that was here."""
        run, self.run = self.run, None
        if run is not None:
            self._turn("open")
        return run

    def renew(self, shape: GroupShape | None) -> None:
        """Let the group leave, and want another one; None: want none."""
        if self.run is None:
            self._turn("empty" if shape is None else "open")
        self._begin_generation(shape)

    def _begin_generation(self, shape: GroupShape | None) -> None:
        self.times.turn_to(self.number, self.generation, SHUTDOWN)
        self.shape = shape
        self.generation += 1
        self.incarnation = self.idle_starts = 0
        self.was_used = False

    def retire(self) -> None:
        """Let the group leave, and want none any more."""
        self._turn("retired")
        self._begin_generation(None)

    def suits(self, shape: GroupShape, fresh: bool) -> bool:
        """Return True if a trial can run in the group that is there."""
        return self.shape == shape and not (fresh and self.was_used)

    def _turn(self, state: SlotState) -> None:
        self.state = moved(SLOT, self.state, state)


def choose_slot(slots: Iterable[Slot], shape: GroupShape, fresh: bool) -> Slot | None:
    """The free slot in which a trial can begin soonest: one with a group that suits, then one without a group."""
    free = [slot for slot in slots if slot.is_free]
    return min(free, key=lambda slot: (not slot.suits(shape, fresh), slot.shape is not None), default=None)
