"""The names that `tracking.metrics` declares, and those that records hold."""

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

from paceline.tracking import metrics
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.run_record import RECORD_FILE

METRICS, _, TAGS = inspect.getsource(metrics).partition("# --- tags")
MADE = ("val/", "axis/", "best/", "rank_seconds/", "trials/", "cost/", metrics.SYSTEM)
"""Prefixes of the keys that functions of the module make, which refuse the names they do not know."""
FREE = (*metrics.FOUND_SIZES, metrics.version_tag(""))
"""Tags that are made of parts, and prefixes of them."""


def declared(source: str) -> set[str]:
    return set(re.findall(r'^[A-Z0-9_]+ = "(.*[^/])"$', source, re.MULTILINE))


def written(folder: Path) -> Iterator[tuple[str, str]]:
    """Kind and key of all that the records below a folder hold."""
    for file in folder.rglob(RECORD_FILE):
        yield from (("tag", key) for key in json.loads(file.read_text())["tags"])
        for entry in Journal(file.with_name(JOURNAL_FILE)).read():
            yield from (("tag", key) for key in entry.content.get("tags", {}))
            if entry.kind == "point":
                yield "metric", entry.content["key"]


def undeclared(folder: Path) -> set[tuple[str, str]]:
    known = {("metric", key) for key in declared(METRICS)} | {("tag", key) for key in declared(TAGS)}
    prefixes = {"metric": MADE, "tag": FREE}
    return {(kind, key) for kind, key in written(folder) if not key.startswith(prefixes[kind])} - known
