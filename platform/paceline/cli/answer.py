"""The answer of a command: on stdout before its run, sweep or tune-up counts as finished."""

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


def answering(shown: ExitStack, as_json: bool, print_result: Callable[[Any], object]) -> Callable[[Any], None]:
    """Return a function that prints a result, and has it on stdout when it returns.

    Args:
        shown: what is shown meanwhile; it is closed first.
        print_result: prints it for a person.
    """

    def answer(result: Any) -> None:
        shown.close()
        if as_json:
            print(json.dumps(result.to_json()))
        else:
            print_result(result)
        sys.stdout.flush()

    return answer
