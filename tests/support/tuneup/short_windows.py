"""A tune-up whose windows are short, in forks: for models that sleep rather than compute."""

from paceline.tuneups import confirmation, screening
from support.forked_process import fork_separate_processes


def measure_in_short_windows() -> None:
    """Prepare a command that is a process of its own. That each process is new is what `bench/test_fresh_processes.py`
    shows."""
    screening.WINDOW_SECONDS = 0.2
    confirmation.WINDOW_SECONDS = 0.1
    fork_separate_processes()
