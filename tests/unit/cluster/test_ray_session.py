"""How this process meets Ray."""

import os
from pathlib import Path

import pytest
import ray

from paceline._compat.ray import UV_HOOK
from paceline.cluster import private_ray, ray_session
from paceline.cluster.ray_session import HEALTH_CHECKS, WATCHER, connected, is_private, prepare_environment, stay_in
from paceline.errors import EnvironmentFault
from support.golden import Golden
from support.refusals import refused

HEAD = "127.0.0.1:6379"


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The options that Ray was started with, and not ended since."""
    given: list[dict[str, object]] = []
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray"))
    monkeypatch.setattr(private_ray, "LONGEST_SOCKET", 1000)
    monkeypatch.setattr(ray_session, "answers", lambda address: address.endswith(HEAD))
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(given))
    monkeypatch.setattr(ray, "init", lambda **options: given.append(options))
    monkeypatch.setattr(ray, "shutdown", given.clear)
    return given


def connect(address: str | None, sent: dict[str, object] | None = None) -> None:
    with connected(address, sent):
        pass


def test_workers_are_not_started_through_uv_though_ray_was_imported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `uv run`, Ray's hook would make each worker process resolve and install the environment again."""
    from ray._private import ray_constants

    monkeypatch.delenv(UV_HOOK, raising=False)
    monkeypatch.setattr(ray_constants, UV_HOOK, True)
    prepare_environment()
    assert getattr(ray_constants, UV_HOOK) is False
    assert os.environ[UV_HOOK] == "0"


@pytest.mark.parametrize("private", [True, False])
def test_settings_of_a_private_ray_end_with_it(
    private: bool, started: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (WATCHER, HEALTH_CHECKS):
        monkeypatch.delenv(variable, raising=False)
    address = None if private else HEAD
    with connected(address), connected(None):
        assert started[0]["address"] == (address or "local")
        assert is_private() == private
        assert os.environ.get(WATCHER) == ("0" if private else None)
        assert os.environ.get(HEALTH_CHECKS) == ("0.5" if private else None)
        assert len(list((tmp_path / "ray").glob("*"))) == private
    assert not started
    assert not is_private()
    assert not {WATCHER, HEALTH_CHECKS} & os.environ.keys()
    assert not list((tmp_path / "ray").glob("*"))


@pytest.mark.parametrize("is_there", [False, True])
def test_the_token_that_ray_writes_is_the_users_alone(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    token = tmp_path / ".ray" / "auth_token"
    modes = []

    def init(**options: object) -> None:
        modes.append(token.stat().st_mode & 0o777 if is_there else token.parent.stat().st_mode & 0o777)
        if not is_there:
            token.write_text("secret")
            token.chmod(0o644)  # as Ray does

    if is_there:
        token.parent.mkdir()
        token.write_text("secret")
        token.chmod(0o644)
    monkeypatch.setattr(ray, "init", init)
    with connected(None):
        assert modes == [0o600 if is_there else 0o700]
        assert token.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_is_too_large_is_refused_before_ray_packs_it(
    tmp_path: Path, started: list[dict[str, object]], golden: Golden
) -> None:
    (tmp_path / "films").mkdir()
    with (tmp_path / "films" / "one").open("wb") as film:
        film.truncate(3 * 2**30)  # which takes no room
    sent = {"working_dir": str(tmp_path), "excludes": ["/runs"]}
    refusal = refused(EnvironmentFault, connect, HEAD, sent)
    assert (refusal.code, refusal.fields["largest"]) == ("folder-too-large", ["films"])
    golden(str(refusal))
    assert not started
    (tmp_path / ".rayignore").write_text("films\n")
    with connected(HEAD, sent):
        assert started


@pytest.mark.parametrize(("address", "code"), [(None, "ray-not-started"), (HEAD, "ray-unreachable")])
def test_a_ray_that_does_not_come_up_is_a_fault_of_the_environment(
    address: str | None, code: str, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    tried = []

    def init(**options: object) -> None:
        tried.append(options)
        raise Exception("The current node timed out during startup. This node may be overloaded.")  # as Ray does

    monkeypatch.setattr(ray, "init", init)
    refusal = refused(EnvironmentFault, connect, address)
    assert (refusal.code, refusal.fields["address"]) == (code, address)
    assert len(tried) == (2 if address is None else 1)
    golden(str(refusal))


def test_a_private_ray_that_times_out_is_started_again(
    started: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [Exception("The current node timed out during startup.")]

    def init(**options: object) -> None:
        if errors:
            raise errors.pop()
        started.append(options)

    monkeypatch.setattr(ray, "init", init)
    with connected(None):
        assert len(started) == 1


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("127.0.0.1:9", "ray-unreachable"),
        ("ray://127.0.0.1:9", "ray-unreachable"),
        (f"http://{HEAD}", "dashboard-address"),
    ],
)
def test_an_address_that_no_driver_reaches_is_reported_before_ray_tries_it(
    address: str, code: str, started: list[dict[str, object]], golden: Golden
) -> None:
    """Ray tries for more than ten minutes where nobody listens."""
    refusal = refused(EnvironmentFault, connect, address)
    assert (refusal.code, refusal.fields["address"]) == (code, address)
    assert not started
    golden(str(refusal))


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
