"""The journal of a tune-up: what came of each job, and when, so that a later launch can go on with it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.preflight import writable
from paceline.study.tuneup.jobs import Answer, Job
from paceline.tracking.entries import is_number
from paceline.tracking.journal import Journal

FILE = "jobs.jsonl"
OF_NO_EFFECT = ("uri", "offline")
"""Of a config's section `tracking`: what a job's work has nothing to do with."""


@dataclass(frozen=True)
class Done:
    """A job that has been answered."""

    digest: str
    answer: Answer
    elapsed: float
    """Seconds since the tune-up began, without those between its launches."""


class JobLog:
    """Appends to the journal; what a method has written is durable when it returns.

    Each may raise EnvironmentFault: the disk is full or gone.
    """

    def __init__(self, folder: Path) -> None:
        self._journal = Journal(folder / FILE, is_whole=_is_whole)
        self.done: list[Done] = []
        """All that have been answered, in their order."""
        self.deaths = 0
        """How often a launch has died at work on the job that comes after these."""
        for entry in self._journal.scan():
            self._take_up(entry.kind, entry.content)

    def begin(self, digest: str) -> None:
        """A job is begun."""
        self._append("begun", {"job": digest})

    def leave(self) -> None:
        """The job that was begun is left undone, by no fault of its own."""
        self._append("left", {})

    def finish(self, done: Done) -> None:
        """The job that was begun has been answered."""
        self._append("done", {"job": done.digest, "answer": asdict(done.answer), "elapsed": done.elapsed})

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    def _append(self, kind: str, content: Mapping[str, Any]) -> None:
        with writable(self._journal.path.parent):
            self._journal.append([(kind, content)])
        self._take_up(kind, content)

    def _take_up(self, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "begun":
            self.deaths += 1  # until something else is told of it
        elif kind == "left":
            self.deaths -= 1
        elif kind == "done":
            self.deaths = 0
            self.done.append(Done(content["job"], Answer(**content["answer"]), content["elapsed"]))


def digest_of(job: Job) -> str:
    """What a job is known by: its kind, its configs and its options."""
    configs = [json.loads(part.config_json) for part in job.configs]
    for config in configs:
        config["tracking"] = {key: value for key, value in config["tracking"].items() if key not in OF_NO_EFFECT}
        config.pop("storage")
    content = json.dumps([job.kind, configs, dict(job.options)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _is_whole(kind: str, content: Mapping[str, Any]) -> bool:
    """Whether an entry has all that its kind needs."""
    if kind == "left":
        return True
    if not isinstance(content.get("job"), str):
        return False
    answer = content.get("answer")
    is_answer = isinstance(answer, dict) and answer.keys() == _ANSWER.keys()
    return kind == "begun" or (is_answer and is_number(content.get("elapsed")))


_ANSWER = asdict(Answer())
