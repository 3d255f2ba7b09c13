"""Output of the training workers on the driver's stderr, without Ray's own messages in between."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline._compat.ray import worker_output_to
from paceline.redaction import redact

TRAINING_ACTOR = "RayTrainWorker"
_CPP_LOG = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z] \d+ \d+\]")
"""How Ray's C++ side starts a line of its own log."""
_NAMELESS_HOST = "The hostname of the client socket cannot be retrieved"
"""What torch says of each worker on a host whose address has no name, which it does without."""
_DEATH = re.compile(r"A worker died or was killed|The node with node id: \S+ .*marked dead|Raylet is terminated")
"""How Ray's texts of many lines begin about processes that have died: each command says itself what follows."""


@contextmanager
def only_worker_output() -> Iterator[None]:
    """While the body runs, Ray passes on what training workers print, and what it warns of itself."""
    with worker_output_to(print_lines, lambda text: _DEATH.match(text) is None):
        yield


def print_lines(batch: Mapping[str, Any]) -> None:
    """Print a batch of lines that Ray collected from one process."""
    if batch.get("actor_name") != TRAINING_ACTOR:
        return
    for line in batch["lines"]:
        if not _CPP_LOG.match(line) and _NAMELESS_HOST not in line:
            print(f"(worker {batch['pid']}) {redact(line)}", file=sys.stderr)
