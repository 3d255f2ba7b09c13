"""An entry of a sweep's log."""

from collections.abc import Mapping
from typing import Any

LogEntry = tuple[str, Mapping[str, Any]]
"""Kind and content."""
