"""What system tests share: one Ray session."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A private local Ray, shared: starting one takes longer than most tests.

    Files that use it end in `_on_ray.py`, which keeps them in one process.
    """
    from paceline.cluster.ray_session import connected

    with connected(None):
        yield
