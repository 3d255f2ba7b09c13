"""The journal of a study: the result of each job, and when, so that a later launch can continue with it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.bench.jobs import Answer, Job, StudyKind
from paceline.cluster.resume_rules import is_below
from paceline.cluster.run_folder import writable
from paceline.cluster.worker_spec import TrialWorkerSpec
from paceline.errors import EnvironmentFault
from paceline.tracking.journal import Journal, is_number
from paceline.tracking.run_record import flatten

FILE = "jobs.jsonl"


@dataclass(frozen=True)
class Done:
    """A job that has been answered."""

    digest: str
    answer: Answer
    elapsed: float
    """Seconds since the study began, without those between its launches."""


class JobLog:
    """Appends to the journal; what a method has written is durable when it returns.

    Each may raise EnvironmentFault: the disk is full or gone.
    """

    def __init__(self, folder: Path, in_process: bool) -> None:
        """Args:
        in_process: whether jobs are done in the process that writes the journal, so that one may end it.

        Raises:
            EnvironmentFault: the journal is damaged.
        """
        self._journal = Journal(folder / FILE, is_whole=_is_whole)
        self._in_process = in_process
        self._is_begun = False
        self._losses = 0
        self.done: list[Done] = []
        """All that have been answered, in their order."""
        for number, entry in enumerate(self._journal.scan(), 1):
            if entry.sequence != number:
                hint = "put it back from a copy, or start again with --new"
                told = f"{self._journal.path} is damaged: entry {number} is missing; {hint}"
                raise EnvironmentFault(told, "file-damaged", path=self._journal.path, entry=number)
            self._take_up(entry.kind, entry.content)

    @property
    def losses(self) -> int:
        """Return how often the job after those of `done` has ended the workers, or the process that did it."""
        return self._losses + (self._in_process and self._is_begun)

    def begin(self, digest: str) -> None:
        """A job is begun."""
        self._append("begun", {"job": digest})

    def leave(self) -> None:
        """The job that was begun is left undone, by no fault of its own."""
        self._append("left", {})

    def lose(self) -> None:
        """The job that was begun has ended the workers."""
        self._append("lost", {})

    def finish(self, done: Done) -> None:
        """The job that was begun has been answered."""
        self._append("done", {"job": done.digest, "answer": asdict(done.answer), "elapsed": done.elapsed})

    def close(self) -> None:
        """Release the file."""
        self._journal.close()

    def _append(self, kind: str, content: Mapping[str, Any]) -> None:
        with writable(self._journal.path.parent):
            self._journal.append([(kind, content)])
        self._take_up(kind, content)

    def _take_up(self, kind: str, content: Mapping[str, Any]) -> None:
        died = kind == "begun" and self._is_begun and self._in_process  # whoever had begun it said no more
        self._losses += died or kind == "lost"
        self._is_begun = kind == "begun"
        if kind == "done":
            self._losses = 0
            self.done.append(Done(content["job"], Answer(**content["answer"]), content["elapsed"]))


def digest_of(job: Job, study: StudyKind) -> str:
    """Return the digest of a job: of its function's name, its configs and its options."""
    configs = [_without(part, study.may_differ) for part in job.configs]
    content = json.dumps([job.function, configs, dict(job.options)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def is_of(job: Job, first: Job, study: StudyKind) -> bool:
    """Return True if a job is about the same config as another one alone, with whatever seed."""
    free = (*study.may_differ, "seed", study.section)
    return all(_without(part, free) == _without(first.configs[0], free) for part in job.configs)


def _without(part: TrialWorkerSpec, places: Sequence[str]) -> dict[str, Any]:
    """A config with dotted keys, without those of some places."""
    flat = flatten(json.loads(part.config_json))
    return {key: value for key, value in flat.items() if not is_below(key, places)}


def _is_whole(kind: str, content: Mapping[str, Any]) -> bool:
    """Return True if an entry has all that its kind needs."""
    if kind in ("left", "lost"):
        return True
    if not isinstance(content.get("job"), str):
        return False
    answer = content.get("answer")
    is_answer = isinstance(answer, dict) and {"values", "problem", "kind"} <= answer.keys() <= _ANSWER.keys()
    return kind == "begun" or (is_answer and is_number(content.get("elapsed")))


_ANSWER = asdict(Answer())
