"""The lock of a name, which processes forked by its holder do not keep."""

import multiprocessing
from pathlib import Path

import pytest

from paceline.errors import EnvironmentFault
from paceline.storage.in_progress import lock_home


def test_a_loader_process_that_outlives_a_command_does_not_keep_its_name_locked(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    has_begun, may_end = context.Event(), context.Event()
    lock = lock_home(tmp_path)
    loader = context.Process(target=lambda: (has_begun.set(), may_end.wait()))
    loader.start()
    try:
        assert has_begun.wait(60)
        with pytest.raises(EnvironmentFault) as caught:
            lock_home(tmp_path)
        assert caught.value.code == "run-in-use", "the fork has not taken it away from its holder"
        lock.close()
        lock_home(tmp_path).close()
        assert loader.is_alive()
    finally:
        may_end.set()
        loader.join()
