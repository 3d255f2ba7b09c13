"""What the sweep's log has of slots and trials, so that only what has changed is added."""

from collections.abc import Iterable

from paceline.sweeps.coordinator.running_trial import RunningTrial
from paceline.sweeps.coordinator.slot import Slot
from paceline.sweeps.launch_state import over_entry
from paceline.sweeps.log_entry import LogEntry


class SavedStates:
    """The states that were written, of slots by number and of trials by id."""

    def __init__(self) -> None:
        self._saved: dict[object, object] = {}

    def changes(self, slots: Iterable[Slot], runs: Iterable[RunningTrial], over: str, fault: str) -> list[LogEntry]:
        """Return the entries of all that differs from what was written, and take it for written."""
        entries = [slot.state.entry() for slot in slots if self._has_changed(slot.number, slot.state)]
        entries += [run.state.entry() for run in runs if self._has_changed(run.trial.id, run.state)]
        if self._has_changed("over", (over, fault)):
            entries.append(over_entry(over, fault))
        return entries

    def forget(self, trial_id: str) -> None:
        """Forget a trial that has ended."""
        self._saved.pop(trial_id, None)

    def clear(self) -> None:
        """Have everything written again: the disk did not take it."""
        self._saved.clear()

    def _has_changed(self, key: object, state: object) -> bool:
        has_changed = self._saved.get(key) != state
        self._saved[key] = state
        return has_changed
