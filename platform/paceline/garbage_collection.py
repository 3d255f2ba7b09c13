"""Stretches without Python's garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector.

    An import of torch, of its compiler or of MLflow makes a million objects, none of which is garbage: to look through
    them again and again takes a fifth of its time. And what memory is traced by must not go at a random moment.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
