"""The folder that Python puts first into the import path. The standard library alone: `paceline --help` needs it."""

import os
import sys
from contextlib import suppress


def drop_starting_folder() -> None:
    """Remove the entry that Python put first into the import path: the folder of the script, or the working folder.

    For processes that run Paceline's own programs, where files in these folders must not shadow libraries.
    """
    unwanted = {"", os.path.dirname(os.path.realpath(sys.argv[0]))}
    with suppress(OSError):  # the working folder may have been removed
        unwanted.add(os.getcwd())
    if sys.path and not sys.flags.safe_path and sys.path[0] in unwanted:
        del sys.path[0]
