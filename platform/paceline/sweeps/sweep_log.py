"""The journal of a sweep: its trials and what they reported at rungs, so that a later launch can continue with it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from paceline.errors import EnvironmentFault
from paceline.sweeps import restart_state
from paceline.sweeps.restart_state import LogEntry, RestartState
from paceline.sweeps.states import ENDED, TrialState
from paceline.sweeps.trial import Trial
from paceline.tracking.journal import Journal, is_count, is_number

FILE = "log.jsonl"


@dataclass
class SweepHistory:
    """Contents of a sweep's journal."""

    trials: dict[str, Trial] = field(default_factory=dict)
    """By id, each as it was written down last."""
    rungs: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    """Id of a trial and the values at a rung that it reached, in the order in which they were reached."""
    answered: dict[str, int] = field(default_factory=dict)
    """Id of a trial to the place in `rungs`, counted from 1, of the newest one at which it has its decision."""
    launch: RestartState | None = None
    """The newest launch, as a coordinator needs it that is started again; None in a log of an earlier version."""
    repeated: set[int] = field(default_factory=set)
    """Places in `rungs`, counted from 1, where a trial had no decision before it reached a rung again."""

    @property
    def ended(self) -> dict[str, Trial]:
        """The trials that are not to be run again."""
        return {id: trial for id, trial in self.trials.items() if trial.state in ENDED}

    @property
    def last_rungs(self) -> dict[str, dict[str, float]]:
        """Id of a trial to the values at the rung that it reached last."""
        return dict(self.rungs)

    @property
    def decided(self) -> list[tuple[str, dict[str, float]]]:
        """The entries of `rungs` that are over, each once: one where a trial still waits will be reported again."""
        ended = self.ended
        return [
            (trial_id, values)
            for place, (trial_id, values) in enumerate(self.rungs, 1)
            if place not in self.repeated and (trial_id in ended or place <= self.answered.get(trial_id, 0))
        ]


def read_log(folder: Path) -> SweepHistory:
    """Read the journal of the sweep in a folder; empty for one that has not begun.

    Raises:
        EnvironmentFault: another version of Paceline has written it.
    """
    return _replay(_journal(folder))


def trial_entry(trial: Trial) -> LogEntry:
    """The entry that says how a trial stands."""
    return "trial", asdict(trial)


def rung_entry(trial_id: str, values: Mapping[str, float]) -> LogEntry:
    """The entry that says what a trial reported at a rung."""
    return "rung", {"id": trial_id, "values": dict(values)}


def answer_entry(trial_id: str) -> LogEntry:
    """The entry that says that a trial has its decision at the rung that it reached last."""
    return "answer", {"id": trial_id}


class SweepLog:
    """Appends to the journal; what a method has written is durable when it returns. Each may raise OSError."""

    def __init__(self, folder: Path) -> None:
        """Open or create the journal.

        Raises:
            OSError: the folder cannot be written to.
            EnvironmentFault: another version of Paceline has written the journal.
        """
        self._journal = _journal(folder)
        self.history = _replay(self._journal)

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Append several entries at once, which takes as long as one."""
        self._journal.append(entries)

    def close(self) -> None:
        """Release the file."""
        self._journal.close()


def _journal(folder: Path) -> Journal:
    return Journal(folder / FILE, is_whole=_is_whole)


def _is_whole(kind: str, content: Mapping[str, Any]) -> bool:
    """Return True if an entry has all that its kind needs; one of a kind that is not known here has."""
    if kind == "trial":
        return _is_trial(content)
    if kind == "rung":
        return isinstance(content.get("id"), str) and _are_numbers(content.get("values"))
    if kind == "answer":
        return isinstance(content.get("id"), str)
    return restart_state.is_whole(kind, content)


def _is_trial(content: Mapping[str, Any]) -> bool:
    """Return True if each field is there, or has a default, and is of the kind of its default. An unknown
    one is not damage: another version has written it."""
    if not {"id", "params"} <= content.keys():
        return False
    is_right = all(_is_like(_TRIAL[key], value) for key, value in content.items() if key in _TRIAL)
    return is_right and all(_are_numbers(content.get(key, {})) for key in ("metrics", "violations"))


def _trial(content: Mapping[str, Any], file: Path) -> Trial:
    strange = sorted(content.keys() - _TRIAL.keys()) or [f"state {content.get('state')}"]
    if content.keys() <= _TRIAL.keys() and content.get("state", "pending") in _STATES:
        return Trial(**content)
    raise EnvironmentFault(
        f"{file} was written by another version of Paceline: trial {content['id']} has {strange[0]!r}, which this one "
        "does not know; use that version",
        "other-version",
        trial=content["id"],
        unknown=strange[0],
    )


def _is_like(example: object, value: object) -> bool:
    if isinstance(example, int):
        return is_count(value)
    if isinstance(example, float):
        return isinstance(value, int | float) and is_number(value)
    return isinstance(value, type(example)) or (example is None and (value is None or is_count(value)))


def _are_numbers(values: object) -> bool:
    return isinstance(values, dict) and all(isinstance(each, int | float) for each in values.values())


_TRIAL = asdict(Trial("", {}))
_STATES = get_args(TrialState)


def _replay(journal: Journal) -> SweepHistory:
    history = SweepHistory()
    waiting: dict[str, int] = {}  # place of the newest rung of a trial, until it has its decision there
    for entry in journal.scan():
        content: dict[str, Any] = dict(entry.content)
        if entry.kind == "trial":
            history.trials[content["id"]] = _trial(content, journal.path)
        elif entry.kind == "rung":
            history.rungs.append((content["id"], content["values"]))
            if content["id"] in waiting:
                history.repeated.add(waiting[content["id"]])
            waiting[content["id"]] = len(history.rungs)
        elif entry.kind == "answer":
            history.answered[content["id"]] = waiting.pop(content["id"], len(history.rungs))
        elif entry.kind == "launch":
            history.launch = RestartState(content["id"])
        elif history.launch is not None:
            history.launch.take(entry.kind, content)
    return history
