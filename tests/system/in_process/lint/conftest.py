"""Lint looks through all objects for caches: here only through those of the test."""

import gc
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def real_unfreeze() -> Iterator[Callable[[], None]]:
    """Leave out what was there before. What lint calls to look at that too does nothing, unless it is put back."""
    unfreeze = gc.unfreeze
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        yield unfreeze
