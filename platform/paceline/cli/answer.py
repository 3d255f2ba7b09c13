"""The answer of a command: on stdout before its run, sweep or tune-up counts as finished."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


def answering(shown: ExitStack, as_json: bool, print_result: Callable[[Any], object]) -> Callable[[Any], None]:
    """Return a function that prints a result, and has it on stdout when it returns.

    What reads stdout may close it before the end, as `head` does: it has read what it wanted.

    Args:
        shown: what is shown meanwhile; it is closed first.
        print_result: prints it for a person.
    """

    def answer(result: Any) -> None:
        shown.close()
        try:
            if as_json:
                print(json.dumps(result.to_json()))
            else:
                print_result(result)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_output()

    return answer


def discard_output() -> None:
    """Discard what is still to be written to a closed stdout: Python would fail with it when the process ends."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
