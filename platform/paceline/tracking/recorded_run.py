"""A run, a trial or a sweep as its tracking folder has it: record, tags, points, and curves thinned out."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import coded
from paceline.redaction import redact_values
from paceline.tracking.costs import COST_FILE, Ledger
from paceline.tracking.journal import JOURNAL_FILE
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.run_record import ARTIFACT_FOLDER, RECORD_FILE, launched_ms
from paceline.tracking.thinned_curves import ThinnedCurve
from paceline.tracking.tracking_uri import is_http, run_url
from paceline.tracking.upload_cursor import CURSOR_FILE, UploadCursor

CONFIG_FILE = "config.yaml"
"""Among the recorded files: the config of the last launch."""
LONGEST_FILE = 2**20
"""Bytes of a recorded file that are read."""
_POINT = b'"kind":"point"'
CHUNK_BYTES = 2**18
"""Part of a journal that is read at once."""


@dataclass(frozen=True)
class Resume:
    """A launch of a run that had ended before, or had been lost."""

    step: int
    """The newest one that was recorded before."""
    ended_ms: int
    """Time of its end; that of its newest point where no end was written."""
    began_ms: int
    ending: str
    """MLflow's status at that end; empty where none was written."""


@dataclass
class RecordedRun:
    """Contents of one tracking folder, see `read_run`."""

    folder: Path
    name: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    """The record's, and over them those of the journal."""
    status: str = ""
    """MLflow's: `RUNNING`, `FINISHED`, `FAILED`, `KILLED`; empty where none was written."""
    began_ms: int | None = None
    """Time of the last launch."""
    ended_ms: int | None = None
    """Time of the last status, unless that is `RUNNING`."""
    newest_ms: int | None = None
    """The time of the newest point."""
    first_ms: int | None = None
    """The time of the first point."""
    newest_step: int = 0
    resumes: list[Resume] = field(default_factory=list)
    """In their order. Of a run that was lost without a status, only the last one is known."""
    url: str = ""
    """The run's page in MLflow; empty while there is none."""
    needs_ui: bool = False
    """True if that page needs `paceline ui` to be running."""
    curves: dict[str, ThinnedCurve] = field(default_factory=dict)
    datasets: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By role, `training` or `validation`: `name`, `size` and `fingerprint`."""
    warnings: list[str] = field(default_factory=list)
    """Missing or damaged parts."""

    def warn(self, text: str) -> None:
        """Add a warning about something missing or damaged."""
        self.warnings.append(coded(text, "record-incomplete"))

    def started_ms(self, run_id: str = "") -> int | None:
        """Return when it was launched for the first time; the record has the last launch.

        Args:
            run_id: of a run or a sweep, which begins with the time; without one, a resumed run began at its first
                point.
        """
        if not self.resumes:
            return self.began_ms
        return launched_ms(run_id) or self.first_ms or self.began_ms

    def seconds_since(self, start_ms: int | None) -> float | None:
        """Return the seconds to the end, or to the newest point; None where that or the start is not known."""
        end = self.finally_ms
        return None if start_ms is None or end is None else max(end - start_ms, 0) / 1000

    @property
    def finally_ms(self) -> int | None:
        """The end, or the newest point."""
        return self.ended_ms or self.newest_ms

    @property
    def paused_seconds(self) -> float:
        """Seconds between each end and the launch that followed, together."""
        return sum(max(each.began_ms - each.ended_ms, 0) for each in self.resumes) / 1000

    def data(self, path: str) -> bytes:
        """Return the content of a recorded file; empty where it is missing."""
        try:
            with (self.folder / ARTIFACT_FOLDER / path).open("rb") as file:
                return file.read(LONGEST_FILE)
        except OSError:
            return b""

    def file(self, path: str) -> str:
        """Return the text of a recorded file; empty where it is missing."""
        return self.data(path).decode("utf-8", "replace")


def read_run(folder: Path, keys: Collection[str] | None = None) -> RecordedRun:
    """Read a tracking folder; whatever is missing or damaged is left out, and named in `warnings`.

    Args:
        folder: the recorder's.
        keys: metrics whose curves are wanted; all of them by default.
    """
    run = RecordedRun(folder)
    _take_record(run)
    try:
        damaged = sum(not _take(run, entry, keys) for entry in _entries(folder / JOURNAL_FILE, keys))
    except OSError as error:
        damaged = 0
        run.warn(f"the journal cannot be read: {error.strerror or error}")
    if damaged:
        run.warn(f"{damaged} damaged entries of the journal are left out")
    run.tags = {key: str(value) for key, value in redact_values(run.tags).items()}
    return run


def _take_record(run: RecordedRun) -> None:
    file = run.folder / RECORD_FILE
    try:
        record = json.loads(file.read_bytes())
        run.name = str(record["name"])
        run.params = {str(key): str(value) for key, value in redact_values(record["params"]).items()}
        run.tags = {str(key): str(value) for key, value in record["tags"].items()}
        run.began_ms = int(record["start_time_ms"])
        uri = str(record["uri"])
    except FileNotFoundError:
        run.warn(f"there is no {RECORD_FILE}, so little is known about its origin")
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        run.warn(f"{RECORD_FILE} is damaged, so little is known about its origin")
        return
    cursor = UploadCursor.load(run.folder / CURSOR_FILE)
    if cursor.run_id:
        run.url, run.needs_ui = run_url(uri, cursor.experiment_id, cursor.run_id), not is_http(uri)


def _entries(journal: Path, keys: Collection[str] | None) -> Iterator[Any]:
    """Yield the lines of a journal as JSON values, None for a damaged one, without the points of other metrics.

    Parses many lines at once, unlike `Journal.read`: a sweep has millions.
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
    """Match the lines with points of other metrics, as the journal writes them: parsing takes far longer."""
    own = b"|".join(re.escape(json.dumps(key).encode()) for key in keys)
    return re.compile(rb'\{"n":\d+,"kind":"point","key":(?!%s)' % own).match


def _entry(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _take(run: RecordedRun, content: Any, keys: Collection[str] | None) -> bool:
    """Take one entry of the journal; returns False for a damaged one."""
    try:
        kind = content["kind"]
        if kind == "point":
            key = content["key"]
            if keys is None or key in keys:
                if (curve := run.curves.get(key)) is None:
                    curve = run.curves[str(key)] = ThinnedCurve()
                curve.add(int(content["step"]), float(content["value"]))
            _take_time(run, int(content["timestamp_ms"]), int(content["step"]))
        elif kind == "tags":
            run.tags |= {str(key): str(value) for key, value in content["tags"].items()}
        elif kind == "datasets":
            run.datasets |= {str(role): dict(each) for role, each in content["sets"].items()}
        elif kind == "status":
            _take_status(run, str(content["status"]), int(content["time_ms"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return False
    return True


def _take_time(run: RecordedRun, time_ms: int, step: int) -> None:
    """Take the time of a point. A run that was lost has no end: its last launch began between two points."""
    began, before = run.began_ms, run.newest_ms
    known = bool(run.resumes) and began is not None and run.resumes[-1].began_ms >= began
    if began is not None and before is not None and not known and before < began <= time_ms:
        run.resumes.append(Resume(run.newest_step, run.ended_ms or before, began, ""))
    run.first_ms = time_ms if run.first_ms is None else run.first_ms
    run.newest_ms, run.newest_step = time_ms, max(run.newest_step, step)


def _take_status(run: RecordedRun, status: str, time_ms: int) -> None:
    if status != "RUNNING":
        run.status, run.ended_ms = status, time_ms
        return
    if run.ended_ms is not None:
        run.resumes.append(Resume(run.newest_step, run.ended_ms, time_ms, run.status))
    run.status, run.ended_ms = status, None


def ledger_of(run: RecordedRun) -> Ledger | None:
    """Return the cost of a run or a sweep, also of one that was killed; None where it was not written, or is damaged.

    The file is newer than the artifact where the run was resumed after its end.
    """
    if (ledger := Ledger.read(run.folder)) is not None:
        return ledger
    try:
        return Ledger.from_json(json.loads(run.file(COST_FILE)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


class PointHistories(Mapping[str, list[MetricPoint]]):
    """The points of several runs by id, each read from its journal when it is asked for, and kept."""

    def __init__(self, folders: Mapping[str, Path], keys: Collection[str] | None = None) -> None:
        """Read nothing yet.

        Args:
            folders: by id, the folder of the run's recorder.
            keys: the metrics to read; by default all.
        """
        self._folders = folders
        self._keys = keys
        self._read: dict[str, list[MetricPoint]] = {}

    def __getitem__(self, run_id: str) -> list[MetricPoint]:
        if run_id not in self._read:
            self._read[run_id] = read_points(self._folders[run_id], self._keys)
        return self._read[run_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._folders)

    def __len__(self) -> int:
        return len(self._folders)


def read_points(folder: Path, keys: Collection[str] | None = None) -> list[MetricPoint]:
    """Return the points in a recorder's folder, in their order; none where there is no journal.

    A line that a crash has torn, or that is damaged, is left out.

    Args:
        folder: the one that a `RunRecorder` was opened with.
        keys: the metrics to read; by default all. The fewer, the faster.

    Raises:
        OSError: the journal is there, but cannot be read.
    """
    marks = None if keys is None else [b'"key":' + json.dumps(key).encode() + b"," for key in keys]
    try:
        with (folder / JOURNAL_FILE).open("rb") as file:
            # other lines are left out before they are parsed, which takes most of the time
            lines = [line for line in file if _POINT in line and (marks is None or any(mark in line for mark in marks))]
    except FileNotFoundError:
        return []
    return [point for line in lines if (point := _point_in(line)) is not None and (keys is None or point.key in keys)]


def _point_in(line: bytes) -> MetricPoint | None:
    if not line.endswith(b"\n"):  # torn, and about to be cut off
        return None
    try:
        return MetricPoint.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
