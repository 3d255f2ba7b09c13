"""Events of a run: the newest ones for whoever watches, each with its position, and the tags that some of them set."""

import json
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from paceline.tracking import metrics

MOST_EVENTS = 1000
"""Number of events that are kept. A watcher asks several times a second; one that stays away for longer misses the
oldest."""


Event = tuple[str, dict[str, Any]]
"""Kind and details."""


class EventCursor(NamedTuple):
    """Position up to which a watcher has read."""

    log: str = ""
    """Id of the log. A log that was opened again after a crash has another id, and is read from the start."""
    position: int = 0
    """Number of the log's events that the watcher has seen, or missed."""


START = EventCursor()


class EventLog:
    """A bounded list of events. May be added to from any thread."""

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._id = uuid.uuid4().hex
        self._events: deque[Event] = deque(maxlen=most)
        self._num_added = 0
        self._lock = threading.Lock()

    def add(self, kind: str, details: dict[str, Any]) -> None:
        """Add an event; the oldest one is dropped when there are too many."""
        with self._lock:
            self._events.append((kind, details))
            self._num_added += 1

    def has_written(self, cursor: EventCursor) -> bool:
        """Return True if the cursor belongs to this log, not to one that a crash has ended."""
        return cursor.log == self._id

    def since(self, cursor: EventCursor = START) -> tuple[list[Event], EventCursor]:
        """Return the events after a cursor, and the cursor after them. A warning says how many are missing."""
        with self._lock:
            seen = cursor.position if self.has_written(cursor) else 0
            first = self._num_added - len(self._events)
            events = list(islice(self._events, max(0, seen - first), None))
            missing = max(0, first - seen)
            cursor = EventCursor(self._id, self._num_added)
        return ([_missing(missing)] if missing else []) + events, cursor


def _missing(events: int) -> Event:
    message = f"{events} earlier events are not shown: they came faster than they were read"
    return "warning", {"code": "events-dropped", "message": message, "events": events}


class ReportedTags:
    """Turns some of the events into tags of the run.

    Args:
        tag: sets them.
    """

    def __init__(self, tag: Callable[[Mapping[str, str]], None]) -> None:
        self.stragglers: list[str] = []
        """Texts of the stragglers that were reported, one line each."""
        self._tag = tag
        self._ranks: list[str] = []
        self._preemptions = 0

    def take(self, kind: str, details: Mapping[str, Any]) -> bool:
        """Take an event; return True if it was turned into a tag."""
        note = {
            "initial_weights": self._note_initial_weights,
            "stamp": self._note_stamp,
            "ranks": self._note_ranks,
            "preemption": self._note_preemption,
            "straggler": self._note_straggler,
        }.get(kind)
        if note is not None:
            note(details)
        return note is not None

    def _note_initial_weights(self, details: Mapping[str, Any]) -> None:
        self._tag({metrics.INITIAL_WEIGHTS: details["weights"], metrics.INITIAL_WEIGHTS_SHA256: details["sha256"]})

    def _note_stamp(self, details: Mapping[str, Any]) -> None:
        self._tag({metrics.SPEED_STAMP: json.dumps(details)})

    def _note_ranks(self, details: Mapping[str, Any]) -> None:
        if self._ranks[-1:] != [details["text"]]:
            self._ranks.append(details["text"])
            self._tag({metrics.RANKS: "\n".join(self._ranks)})

    def _note_preemption(self, details: Mapping[str, Any]) -> None:
        self._preemptions += 1
        self._tag({metrics.PREEMPTIONS: str(self._preemptions)})

    def _note_straggler(self, details: Mapping[str, Any]) -> None:
        self.stragglers.append(details["text"])
        self._tag({metrics.STRAGGLER: "\n".join(self.stragglers)})
