"""The runs, sweeps, tune-ups and scale studies that a storage holds."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from paceline.cluster.final_report import read_outcome
from paceline.cluster.run_folder import RunFolder
from paceline.errors import EnvironmentFault
from paceline.places import default_storage, place_of
from paceline.redaction import redact_tree
from paceline.runs.finding import FoundRun, Kind, runs_under
from paceline.runs.reopening import status_of, summary_in, summary_of
from paceline.storage.address import LAUNCH, StoreAddress, is_address, parse
from paceline.storage.in_progress import is_in_progress
from paceline.storage.remote_folder import RemoteFolder
from paceline.sweeps.sweep_folder import SweepFolder

DAMAGED = "damaged"
"""Status of a run whose file cannot be read."""


@dataclass(frozen=True)
class ListedRun:
    """One run, sweep, tune-up or scale study."""

    name: str
    id: str
    kind: Kind
    status: str
    """`running`, `finished`, `interrupted`, `failed`, or `damaged`."""
    started: str
    """Start time in UTC, such as `2026-11-24 18:07:31`; empty if the id does not contain it."""
    metrics: dict[str, float]
    """Last value of each `val/` and `train/` metric of a finished run; empty for runs in an object store."""
    summary: str
    """The best setting of a sweep, the recommendation of a study, the reason of a failure; empty of other runs."""
    folder: str
    """Its folder, or its address in an object store."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        # JSON knows no NaN
        metrics = {key: value if isfinite(value) else None for key, value in self.metrics.items()}
        return dict(redact_tree({**asdict(self), "metrics": metrics}))


def list_runs(name: str | None = None, storage: str | Path | None = None) -> list[ListedRun]:
    """List what a storage holds, name by name, the newest of each last. Reads only the small file of each run.

    Args:
        name: only the runs of this name.
        storage: the folder that holds the runs, or its address; by default PACELINE_STORAGE, else `runs` in the working
            folder.

    Raises:
        EnvironmentFault: an object store cannot be read.
        ConfigError: an address cannot be used.
    """
    storage = storage or default_storage() or "runs"
    found = _in_store(str(storage), name) if is_address(storage) else _in_folder(place_of(storage), name)
    return list(found)


def _in_folder(storage: Path, name: str | None) -> Iterator[ListedRun]:
    for found in runs_under(storage, studies=True):
        if name in (None, found.name):
            yield ListedRun(
                found.name,
                found.id,
                found.kind,
                _status(found),
                _started(found.id),
                _shown((read_outcome(found.tracking) or {}).get("metrics", {})),
                _summary(found),
                str(found.folder),
            )


def _status(found: FoundRun) -> str:
    try:
        return status_of(found)
    except EnvironmentFault:
        return DAMAGED


def _summary(found: FoundRun) -> str:
    try:
        return summary_of(found)
    except EnvironmentFault:
        return ""


def _in_store(storage: str, name: str | None) -> Iterator[ListedRun]:
    home = RemoteFolder(parse(storage, "storage"))
    for each in home.folders() if name is None else [name]:
        for run_id in (home / each).folders():
            run = home / each / run_id
            kinds: dict[Kind, str] = {"run": RunFolder.FILE, "sweep": SweepFolder.FILE}
            found = ((kind, data) for kind, file in kinds.items() if (data := run.read(file)) is not None)
            for kind, data in islice(found, 1):
                status, summary = _status_in(data, home.address / each)
                yield ListedRun(each, run_id, kind, status, _started(run_id), {}, summary, str(run.address.bare))


def _status_in(data: bytes, home: StoreAddress) -> tuple[str, str]:
    """Return the status, and the summary of what has ended."""
    try:
        content = json.loads(data)
        status = str(content["status"])
        is_running = status == "running" and is_in_progress(home, str(content.get(LAUNCH, "")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return DAMAGED, ""
    if status == "running":
        return ("running" if is_running else "interrupted"), ""
    return status, summary_in(content)


def _started(run_id: str) -> str:
    """Return the time at the beginning of an id such as `20261124-180731-548a55`; empty without one."""
    date, _, rest = run_id.partition("-")
    time = rest.partition("-")[0]
    if not (date.isdigit() and time.isdigit() and len(date) == 8 and len(time) == 6):
        return ""
    return f"{date[:4]}-{date[4:6]}-{date[6:]} {time[:2]}:{time[2:4]}:{time[4:]}"


def _shown(metrics: Any) -> dict[str, float]:
    return {key: value for key, value in sorted(metrics.items()) if key.startswith(("val/", "train/"))}
