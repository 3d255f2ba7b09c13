"""What the scan of an exhaustive search has measured so far, line by line in a file, so that it can go on later."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Scanned(NamedTuple):
    """A combination that the scan has been through."""

    name: str
    baseline_seconds: float = 0.0
    """Seconds per sample of the config as it is, in the same stretch of time."""
    seconds: float = 0.0
    """Seconds per sample of the combination."""
    build_seconds: float = 0.0
    """How long it took to be ready for its first step, compiling and filling of the cache included."""
    took_seconds: float = 0.0
    """How long all of it took, the baseline's part included."""
    problem: str = ""
    """Why it could not be measured; empty when it could."""

    @property
    def speedup(self) -> float:
        """Samples per second over those of the config as it is."""
        return self.baseline_seconds / self.seconds


class OtherSearch(Exception):
    """The file is of another search."""


class Journal:
    """A file with a line for each combination that has been measured, and a first one that says of which search."""

    def __init__(self, path: Path, search: Mapping[str, Any]) -> None:
        """Open the file, or begin it. A last line that was cut off is forgotten.

        Args:
            search: what must be the same when the search goes on, in plain JSON values.

        Raises:
            OtherSearch: the file belongs to another search, or is none of these.
        """
        self._path = path
        self.scanned: list[Scanned] = []
        """In the order in which they were measured."""
        lines = _whole_lines(path)
        if not lines:
            self._append(search)
            return
        try:
            head, *rest = map(json.loads, lines)
            self.scanned = [Scanned(**each) for each in rest]
        except (ValueError, TypeError) as error:
            raise OtherSearch(f"{path} is not the file of a scan: {error}") from None
        if head != json.loads(json.dumps(search)):
            keys = search.keys() | (head.keys() if isinstance(head, dict) else ())
            differing = sorted(key for key in keys if not isinstance(head, dict) or head.get(key) != search.get(key))
            raise OtherSearch(f"{path} is of another search, by its {', '.join(differing)}: name another file")

    def add(self, scanned: Scanned) -> None:
        """Keep what has been measured."""
        self._append(scanned._asdict())
        self.scanned.append(scanned)

    def left(self, names: Sequence[str]) -> list[str]:
        """Those that have not been measured yet, in the same order."""
        done = {each.name for each in self.scanned}
        return [name for name in names if name not in done]

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file that have their end; what follows the last of them is cut off."""
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole)
    return whole.splitlines()
