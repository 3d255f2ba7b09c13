"""What system tests share: one Ray session."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

_ray = ExitStack()
"""Ends the shared Ray, where it runs."""


@pytest.fixture
def ray_session() -> None:
    """A private local Ray, shared: starting one takes longer than most tests.

    Files that use it end in `_on_ray.py`, which keeps them in one process. It begins before what a test sets up, and
    ends with the last of these files, since its processes compute also while nobody asks them for anything.
    """


@pytest.fixture(scope="session", autouse=True)
def _ray_is_ended(_no_process_is_left_behind: None) -> Iterator[None]:
    """End the shared Ray before the processes that are left are looked for, where no other test comes after it."""
    yield
    _ray.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    global _ray
    if "ray_session" not in getattr(item, "fixturenames", ()):
        return
    import ray

    from paceline.cluster.ray_session import connected

    if not ray.is_initialized():
        with ExitStack() as begun:
            begun.enter_context(connected(None))
            _ray = begun.pop_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    if _is_on_ray(item) and not _is_on_ray(nextitem):
        _ray.close()


def _is_on_ray(item: pytest.Item | None) -> bool:
    return item is not None and item.path.name.endswith("_on_ray.py")
