"""A terminal that a command is given in, and that may be closed. Used in the command's own process."""

import os


def sit_at(terminal: str) -> None:
    """Make a terminal that of this process, as a shell's is; what it says on stderr is shown there."""
    os.setsid()
    os.dup2(os.open(terminal, os.O_RDWR), 2)
