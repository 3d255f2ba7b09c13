"""Tags of a run that its workers report, such as the nodes of its ranks."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from paceline.tracking import metrics


class ReportedTags:
    """Turns such events into tags of the run.

    Args:
        tag: sets them.
    """

    def __init__(self, tag: Callable[[Mapping[str, str]], None]) -> None:
        self.stragglers: list[str] = []
        """Those that were named, a line each."""
        self._tag = tag
        self._ranks: list[str] = []
        self._preemptions = 0

    def take(self, kind: str, details: Mapping[str, Any]) -> bool:
        """Take in an event; whether it was one of these."""
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
