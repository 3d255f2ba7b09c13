"""The desk of one trial within the desk of its sweep."""

from paceline.cluster.desk import Desk
from paceline.sweeps.desk.tracebacks import kept_text

TRACEBACK_FILE = "traceback.txt"


class TrialDesk(Desk):
    """A run's desk that also keeps why the trial failed."""

    def keep_traceback(self, text: str) -> None:
        """Add the traceback to the trial's record, without secrets; trouble with that is told to the watcher.

        Args:
            text: empty: there is nothing to keep.
        """
        if not text:
            return
        try:
            self._recorder.add_artifact(TRACEBACK_FILE, kept_text(text).encode(errors="replace"))
        except OSError as error:
            self.event("warning", {"message": f"{TRACEBACK_FILE} could not be written: {error}"})
