"""Log records of a test, without pytest's own plugin.

That plugin walks through all loggers at each phase of each test, and fails where a thread makes a logger meanwhile
("dictionary changed size during iteration").
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class Logged(logging.Handler):
    """Collects the records that reach the root logger."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        """All records with their tracebacks, one after the other."""
        return "\n".join(map(self.format, self.records))

    @contextmanager
    def at_level(self, level: int, name: str = "") -> Iterator[None]:
        """Let a logger take records of this level and above."""
        logger = logging.getLogger(name)
        before = logger.level
        logger.setLevel(level)
        try:
            yield
        finally:
            logger.setLevel(before)
