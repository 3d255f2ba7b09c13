"""Slots of a sweep: each has one worker group at a time, which runs one trial at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from paceline.sweeps.coordinator.group_times import SHUTDOWN, GroupTimes
from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.launch_state import SlotState
from paceline.sweeps.messages import GroupShape, WantedGroup

_STATE = tuple(each.name for each in fields(SlotState))


@dataclass
class Slot:
    """A place for a worker group. The group itself is started by the driver, as `wanted` says."""

    number: int
    shape: GroupShape | None = None
    generation: int = 0
    incarnation: int = 0
    """Counts the starts of this generation's group: Ray Train starts it again when it lost a process."""
    idle_starts: int = 0
    """How many of these starts there were since the group was last at work on a trial."""
    was_used: bool = False
    """Whether a trial has run in this generation's group."""
    has_lived: bool = False
    """Whether there was ever a group here."""
    is_retired: bool = False
    """Whether it gets no group any more."""
    run: RunningTrial | None = None
    taken: int = 0
    """How often the group has taken a trial."""
    workers: dict[int, list[bytes]] = field(default_factory=dict)
    """Pickled handles of the actors of each generation's group, until that is known to have ended."""
    times: GroupTimes = field(default_factory=GroupTimes)
    """What the groups of all slots spend their time on."""

    @property
    def state(self) -> SlotState:
        """What `restore` needs."""
        return SlotState(**{name: getattr(self, name) for name in _STATE})

    def restore(self, state: SlotState) -> None:
        """Take over the group of a coordinator that has died."""
        for name in _STATE:
            setattr(self, name, getattr(state, name))

    @property
    def wanted(self) -> WantedGroup:
        """What the driver is to see to."""
        return WantedGroup(self.number, self.generation, self.shape)

    @property
    def is_free(self) -> bool:
        """Return True if a trial may be assigned to this slot."""
        return self.run is None and not self.is_retired

    @property
    def is_busy(self) -> bool:
        """Whether a group has taken the trial of this slot."""
        return self.run is not None and self.run.begun is not None

    def is_current(self, generation: int, incarnation: int | None = None) -> bool:
        """Whether a worker's group is the one that this slot has now."""
        same = generation == self.generation and self.shape is not None
        return same and incarnation in (None, self.incarnation)

    def give_to(self, run: RunningTrial) -> None:
        """Slot a trial here."""
        self.run = run
        run.take_slot(self.number)

    def renew(self, shape: GroupShape | None) -> None:
        """Let the group leave, and want another one; None: want none."""
        self.times.turn_to(self.number, self.generation, SHUTDOWN)
        self.shape = shape
        self.generation += 1
        self.incarnation = self.idle_starts = 0
        self.was_used = False

    def retire(self) -> None:
        """Let the group leave, and want none any more."""
        self.renew(None)
        self.is_retired = True

    def suits(self, shape: GroupShape, fresh: bool) -> bool:
        """Whether a trial can run in the group that is there."""
        return self.shape == shape and not (fresh and self.was_used)


def choose_slot(slots: Iterable[Slot], shape: GroupShape, fresh: bool) -> Slot | None:
    """The free slot in which a trial can begin soonest: one with a group that suits, then one without a group."""
    free = [slot for slot in slots if slot.is_free]
    return min(free, key=lambda slot: (not slot.suits(shape, fresh), slot.shape is not None), default=None)
