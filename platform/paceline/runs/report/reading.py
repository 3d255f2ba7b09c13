"""What the tracking folder of a run, a trial or a sweep says: its record, its tags, and its curves thinned out."""

import json
import re
from calendar import timegm
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import strptime
from typing import Any

from paceline.errors import coded
from paceline.redaction import redact_values
from paceline.tracking import metrics
from paceline.tracking.cursor import CURSOR_FILE, Cursor
from paceline.tracking.curves import Curve
from paceline.tracking.record import RECORD_FILE
from paceline.tracking.recorder import JOURNAL_FILE
from paceline.tracking.store import is_http, run_url
from paceline.tracking.uploads import ARTIFACT_FOLDER

CONFIG_FILE = "config.yaml"
"""Among the recorded files: the config of the last launch."""
LONGEST_FILE = 2**20
"""Bytes of a recorded file that are read."""
CHUNK_BYTES = 2**18
"""How much of a journal is read at once."""


@dataclass(frozen=True)
class Resume:
    """Where a run went on after it had ended, or had been lost."""

    step: int
    """The newest one that was recorded before."""
    ended_ms: int
    """When it had ended; the time of its newest point where nobody wrote its end."""
    began_ms: int
    ending: str
    """How it had ended, MLflow's word; empty where nobody wrote it."""


@dataclass
class Told:
    """One tracking folder."""

    folder: Path
    name: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    """The record's, and over them those of the journal."""
    status: str = ""
    """MLflow's word: `RUNNING`, `FINISHED`, `FAILED`, `KILLED`; empty when none was written."""
    began_ms: int | None = None
    """When it was launched, the last time."""
    ended_ms: int | None = None
    """When the last status was written, unless that is `RUNNING`."""
    newest_ms: int | None = None
    """The time of the newest point."""
    first_ms: int | None = None
    """The time of the first point."""
    newest_step: int = 0
    resumes: list[Resume] = field(default_factory=list)
    """Each time that it went on, in this order. Of a run that was lost without a word, only the last one is known."""
    url: str = ""
    """The run's page in MLflow; empty while there is none."""
    needs_ui: bool = False
    """Whether that page is there only while `paceline ui` runs."""
    artifacts: list[str] = field(default_factory=list)
    curves: dict[str, Curve] = field(default_factory=dict)
    datasets: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By role, `training` or `validation`: `name`, `size` and `fingerprint`."""
    warnings: list[str] = field(default_factory=list)
    """What is missing or damaged."""

    def warn(self, text: str) -> None:
        """Note that something is missing or damaged."""
        self.warnings.append(coded(text, "record-incomplete"))

    def started_ms(self, run_id: str = "") -> int | None:
        """When it was launched for the first time: its record has the last one.

        Args:
            run_id: of a run or a sweep, which tells the time; without one, a resumed run began at its first point.
        """
        if not self.resumes:
            return self.began_ms
        return _time_of(run_id) or self.first_ms or self.began_ms

    def seconds_since(self, start_ms: int | None) -> float | None:
        """To the end, or to the newest point, in seconds; None when that or the start is not known."""
        end = self.finally_ms
        return None if start_ms is None or end is None else max(end - start_ms, 0) / 1000

    @property
    def finally_ms(self) -> int | None:
        """The end, or the newest point."""
        return self.ended_ms or self.newest_ms

    @property
    def paused_seconds(self) -> float:
        """Between one end and the start that followed, in seconds, all of them together."""
        return sum(max(each.began_ms - each.ended_ms, 0) for each in self.resumes) / 1000

    def data(self, path: str) -> bytes:
        """The content of a recorded file; empty when it is not there."""
        try:
            with (self.folder / ARTIFACT_FOLDER / path).open("rb") as file:
                return file.read(LONGEST_FILE)
        except OSError:
            return b""

    def file(self, path: str) -> str:
        """The text of a recorded file; empty when it is not there."""
        return self.data(path).decode("utf-8", "replace")


def read(folder: Path, keys: Collection[str] | None = None) -> Told:
    """What a tracking folder says; whatever is missing or damaged is left out, and told in `warnings`.

    Args:
        folder: the recorder's.
        keys: metrics whose curves are wanted; all of them by default.
    """
    told = Told(folder)
    _take_record(told)
    try:
        damaged = sum(not _take(told, entry, keys) for entry in _entries(folder / JOURNAL_FILE, keys))
    except OSError as error:
        damaged = 0
        told.warn(f"the journal cannot be read: {error.strerror or error}")
    if damaged:
        told.warn(f"{damaged} entries of the journal are damaged, and left out")
    told.tags = {key: str(value) for key, value in redact_values(told.tags).items()}
    return told


def _take_record(told: Told) -> None:
    file = told.folder / RECORD_FILE
    try:
        record = json.loads(file.read_bytes())
        told.name = str(record["name"])
        told.params = {str(key): str(value) for key, value in redact_values(record["params"]).items()}
        told.tags = {str(key): str(value) for key, value in record["tags"].items()}
        told.began_ms = int(record["start_time_ms"])
        uri = str(record["uri"])
    except FileNotFoundError:
        told.warn(f"there is no {RECORD_FILE}, so that little is known of where it comes from")
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        told.warn(f"{RECORD_FILE} is damaged, so that little is known of where it comes from")
        return
    cursor = Cursor.load(told.folder / CURSOR_FILE)
    if cursor.run_id:
        told.url, told.needs_ui = run_url(uri, cursor.experiment_id, cursor.run_id), not is_http(uri)


def _entries(journal: Path, keys: Collection[str] | None) -> Iterator[Any]:
    """The lines of a journal as JSON values, None for a damaged one; without the points of other metrics.

    As `Journal.read`, but many lines at once: a sweep has millions, and a report is not to take minutes.
    """
    if not journal.exists():
        return
    passed_over = None if keys is None else _of_other_metrics(keys)
    with journal.open("rb") as file:
        while lines := file.readlines(CHUNK_BYTES):
            if not lines[-1].endswith(b"\n"):  # torn by a crash
                lines.pop()
            wanted = lines if passed_over is None else [line for line in lines if not passed_over(line)]
            try:
                yield from json.loads(b"[" + b",".join(wanted) + b"]")
            except ValueError:
                yield from map(_entry, wanted)


def _of_other_metrics(keys: Collection[str]) -> Callable[[bytes], object]:
    """Finds the lines with points of other metrics, as the journal writes them; parsing takes far longer."""
    own = b"|".join(re.escape(json.dumps(key).encode()) for key in keys)
    return re.compile(rb'\{"n":\d+,"kind":"point","key":(?!%s)' % own).match


def _entry(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _take(told: Told, content: Any, keys: Collection[str] | None) -> bool:
    """Take one entry of the journal; whether it is one."""
    try:
        kind = content["kind"]
        if kind == "point":
            key = content["key"]
            if keys is None or key in keys:
                if (curve := told.curves.get(key)) is None:
                    curve = told.curves[str(key)] = Curve()
                curve.add(int(content["step"]), float(content["value"]))
            _take_time(told, int(content["timestamp_ms"]), int(content["step"]))
        elif kind == "tags":
            told.tags |= {str(key): str(value) for key, value in content["tags"].items()}
        elif kind == "artifact":
            told.artifacts.append(str(content["path"]))
        elif kind == "datasets":
            told.datasets |= {str(role): dict(each) for role, each in content["sets"].items()}
        elif kind == "status":
            _take_status(told, str(content["status"]), int(content["time_ms"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return False
    return True


def _time_of(run_id: str) -> int | None:
    try:
        return timegm(strptime(run_id[:15], "%Y%m%d-%H%M%S")) * 1000
    except ValueError:
        return None


def _take_time(told: Told, time_ms: int, step: int) -> None:
    """Take the time of a point. A run that was lost wrote no end: its last launch began between two points."""
    began, before = told.began_ms, told.newest_ms
    known = bool(told.resumes) and began is not None and told.resumes[-1].began_ms >= began
    if began is not None and before is not None and not known and before < began <= time_ms:
        told.resumes.append(Resume(told.newest_step, told.ended_ms or before, began, ""))
    told.first_ms = time_ms if told.first_ms is None else told.first_ms
    told.newest_ms, told.newest_step = time_ms, max(told.newest_step, step)


def _take_status(told: Told, status: str, time_ms: int) -> None:
    if status != "RUNNING":
        told.status, told.ended_ms = status, time_ms
        return
    if told.ended_ms is not None:
        told.resumes.append(Resume(told.newest_step, told.ended_ms, time_ms, told.status))
    told.status, told.ended_ms = status, None


def last_values(curves: Mapping[str, Curve]) -> Iterator[tuple[str, float]]:
    """The newest value of each metric."""
    for key, curve in curves.items():
        yield key, curve.newest[1]


def reason_of(told: Told) -> str:
    """Why it ended as it did; empty when it finished."""
    return told.tags.get(metrics.STATUS_REASON, "")
