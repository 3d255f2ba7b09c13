"""The seats of a sweep: each has one worker group at a time, in which one trial runs at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.sweeps.work import GroupShape, WantedGroup

if TYPE_CHECKING:
    from paceline.sweeps.trial_run import TrialRun


@dataclass
class Seat:
    """A place for a worker group. The group itself is started by the driver, as `wanted` says."""

    number: int
    shape: GroupShape | None = None
    generation: int = 0
    incarnation: int = 0
    """Counts the starts of this generation's group: Ray Train starts it again when it lost a process."""
    was_used: bool = False
    """Whether a trial has run in this generation's group."""
    run: "TrialRun | None" = None
    taken: int = 0
    """How often the group has taken a trial."""
    workers: list[bytes] = field(default_factory=list)
    """Pickled handles of the group's actors."""

    @property
    def wanted(self) -> WantedGroup:
        """What the driver is to see to."""
        return WantedGroup(self.number, self.generation, self.shape)

    def is_current(self, generation: int, incarnation: int | None = None) -> bool:
        """Whether a worker's group is the one that this seat has now."""
        same = generation == self.generation and self.shape is not None
        return same and incarnation in (None, self.incarnation)

    def renew(self, shape: GroupShape | None) -> None:
        """Let the group leave, and want another one; None: want none."""
        self.shape = shape
        self.generation += 1
        self.incarnation = 0
        self.was_used = False
        self.workers = []

    def suits(self, shape: GroupShape, fresh: bool) -> bool:
        """Whether a trial can run in the group that is there."""
        return self.shape == shape and not (fresh and self.was_used)


def choose_seat(seats: Iterable[Seat], shape: GroupShape, fresh: bool) -> Seat | None:
    """The free seat in which a trial can begin soonest: one with a group that suits, then one without a group."""
    free = [seat for seat in seats if seat.run is None]
    return min(free, key=lambda seat: (not seat.suits(shape, fresh), seat.shape is not None), default=None)
