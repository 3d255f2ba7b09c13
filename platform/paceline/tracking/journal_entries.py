"""Checks that a line of a journal is an entry: a bad line costs only itself."""

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

STATUSES = ("SCHEDULED", "RUNNING", "FINISHED", "FAILED", "KILLED")
"""How MLflow calls what a run is doing."""
LARGEST = 2**63 - 1
"""Steps, times and numbers are stored in 64 bits."""

Content = Mapping[str, Any]


def is_whole(kind: str, content: Content) -> bool:
    """Whether an entry of a run's journal has all that its kind needs; one of another kind has."""
    check = _CHECKS.get(kind)
    return check is None or check(content)


def is_count(value: object) -> bool:
    """Whether it is a whole number that can be stored, and not below 0."""
    return type(value) is int and 0 <= value <= LARGEST


def is_number(value: object) -> bool:
    """Whether it is a number, or the text that stands for one that JSON does not know: `nan`, `inf`, `-inf`."""
    if type(value) is float:
        return True
    try:
        return type(value) in (int, str) and float(value) is not None  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return False


def is_artifact_path(path: object) -> bool:
    """Whether it leads to a file within a run's folder of artifacts."""
    if not isinstance(path, str) or "\0" in path:
        return False
    place = PurePosixPath(path)
    return bool(place.name) and not place.is_absolute() and ".." not in place.parts


def _is_point(content: Content) -> bool:
    return (
        isinstance(content.get("key"), str)
        and is_number(content.get("value"))
        and is_count(content.get("step"))
        and is_count(content.get("timestamp_ms"))
    )


def _is_tags(content: Content) -> bool:
    tags = content.get("tags")
    return isinstance(tags, dict) and all(isinstance(value, str) for value in tags.values())


def _is_status(content: Content) -> bool:
    return content.get("status") in STATUSES and is_count(content.get("time_ms"))


def _is_datasets(content: Content) -> bool:
    sets = content.get("sets")
    if not isinstance(sets, dict) or not isinstance(content.get("source"), str):
        return False
    return all(isinstance(each, dict) and {"name", "size", "fingerprint"} <= each.keys() for each in sets.values())


def _is_model(content: Content) -> bool:
    texts = all(isinstance(content.get(key), str) for key in ("uri", "sha256", "run_id"))
    values = content.get("metrics")
    return texts and is_count(content.get("step")) and isinstance(values, dict) and all(map(_is_pair, values.values()))


def _is_pair(value: object) -> bool:
    """A value, and when it was measured."""
    return isinstance(value, list) and len(value) == 2 and is_number(value[0]) and is_count(value[1])


_CHECKS: Mapping[str, Callable[[Content], bool]] = {
    "point": _is_point,
    "tags": _is_tags,
    "artifact": lambda content: is_artifact_path(content.get("path")),
    "status": _is_status,
    "datasets": _is_datasets,
    "model": _is_model,
}
