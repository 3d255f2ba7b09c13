"""Python's garbage collector pauses for an import, and is then as it was."""

import gc

import pytest

from paceline.garbage_collection import collector_paused


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_then_as_it_was(was_enabled: bool) -> None:
    (gc.enable if was_enabled else gc.disable)()
    try:
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == was_enabled
    finally:
        gc.enable()
