"""`python -m paceline` runs the command `paceline`."""

import sys

from paceline.cli import main
from paceline.process_end import end_process


def command() -> None:
    """Run one command; the program `paceline`."""
    try:
        main()
    except SystemExit as ending:
        if "torch" in sys.modules and isinstance(ending.code, int):
            end_process(ending.code)
        raise


if __name__ == "__main__":
    command()
