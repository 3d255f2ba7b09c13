"""How this process meets Ray."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.cluster.session import WATCHER, connected, is_private, stay_in
from paceline.errors import EnvironmentFault

PROGRAM = """
import ray
from ray._private import ray_constants
assert ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV, "the case that this is about"
from paceline.cluster.session import prepare_environment
prepare_environment()
print(ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)
"""


def test_workers_are_not_started_through_uv_though_ray_was_imported_first() -> None:
    """Under `uv run`, Ray's hook would make each worker process resolve and install the environment again."""
    shown = subprocess.run([sys.executable, "-c", PROGRAM], env={}, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


@pytest.fixture
def head() -> Iterator[str]:
    """Host and port that take connections."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("private", [True, False])
def test_what_holds_for_a_private_ray_ends_with_it(head: str, private: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    address = None if private else head
    given: list[dict[str, object]] = []
    monkeypatch.delenv(WATCHER, raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(given))
    monkeypatch.setattr(ray, "init", lambda **options: given.append(options))
    monkeypatch.setattr(ray, "shutdown", given.clear)
    with connected(address), connected(None):
        assert given[0]["address"] == (address or "local")
        assert is_private() == private
        assert os.environ.get(WATCHER) == ("0" if private else None)
    assert not given
    assert not is_private()
    assert WATCHER not in os.environ


def test_a_folder_that_is_too_large_is_refused_before_ray_packs_it(
    head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def init(**options: object) -> None:
        raise AssertionError("it was to be refused before")

    monkeypatch.setattr(ray, "init", init)
    (tmp_path / "films").mkdir()
    with (tmp_path / "films" / "one").open("wb") as film:
        film.truncate(3 * 2**30)  # which takes no room
    sent = {"working_dir": str(tmp_path), "excludes": ["/runs"]}
    with pytest.raises(EnvironmentFault, match=r"has more than 2,048\.0 MiB to send.*films"), connected(head, sent):
        pass
    (tmp_path / ".rayignore").write_text("films\n")
    with (
        pytest.raises(EnvironmentFault, match="could not be reached: it was to be refused before"),
        connected(head, sent),
    ):
        pass


@pytest.mark.parametrize("private", [True, False])
def test_a_ray_that_does_not_come_up_is_a_fault_of_the_environment(
    head: str, private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    address = None if private else head

    def init(**options: object) -> None:
        raise Exception("The current node timed out during startup")  # as Ray does

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # other tests of this process may be connected
    monkeypatch.setattr(ray, "init", init)
    words = f"cluster at {head} could not be reached" if address else "could not be started.*other work"
    with pytest.raises(EnvironmentFault, match=words), connected(address):
        pass


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:{port}", "no Ray cluster answers at 127.0.0.1:{port}: start the cluster"),
        ("ray://127.0.0.1:{port}", "no Ray cluster answers at ray://127.0.0.1:{port}"),
        ("http://127.0.0.1:{port}", "is a dashboard's address.*such as 127.0.0.1:6379, or use `paceline submit`"),
    ],
)
def test_an_address_that_no_driver_reaches_is_told_before_ray_tries_it(
    address: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray goes on for more than ten minutes where nobody listens."""
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(EnvironmentFault, match=words.format(port=port)), connected(address.format(port=port)):
            pass


def test_a_working_folder_that_was_replaced_is_entered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    stay_in(folder)  # nothing is there yet, which is no error
    folder.mkdir()
    stay_in(folder)
    assert Path.cwd() == folder
    stay_in(tmp_path)
    assert Path.cwd() == folder  # still there: left alone
