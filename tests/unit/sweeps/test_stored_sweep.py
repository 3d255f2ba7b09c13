"""Which sweep of a store a command resumes, on this machine or on another one, and what stands in its way."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.stored_runs import ClaimedStoredRun
from paceline.cluster.unfinished_runs import Intent
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError, EnvironmentFault
from paceline.storage import lease, run_keeper
from paceline.storage.address import RunStore
from paceline.storage.lease import Lease, read_holder
from paceline.storage.remote_folder import RemoteFolder
from paceline.sweeps import stored_sweep
from paceline.sweeps.extension import require_folder
from paceline.sweeps.stored_sweep import claim_stored_sweep, unfinished_content
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import SweepLog, read_log, trial_entry
from paceline.sweeps.trial import Trial
from support.storage.local_store import AWAY, FORBIDDEN, LocalStore
from support.storage.stores import STORAGE, go_to, play_store
from support.sweeps.configs import sweep_config

CONFIG = sweep_config()
OTHER = CONFIG.with_overrides({"optimizer.momentum": 0.5})
Claimed = ClaimedStoredRun[SweepFolder]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    for name in ("END_SECONDS", "LEAVE_SECONDS", "AGAIN_SECONDS", "LOOK_SECONDS"):
        monkeypatch.setattr(run_keeper, name, 0.01)
    return play_store(tmp_path, monkeypatch)


@pytest.fixture
def move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Go to the machine of this name."""
    return lambda machine: go_to(tmp_path / machine, monkeypatch)


def claim(config: ExperimentConfig = CONFIG, intent: Intent = "continue") -> Claimed:
    return claim_stored_sweep(config, STORAGE, intent, lambda text: None)


def home() -> RemoteFolder:
    return RemoteFolder(STORAGE / "run")


def note(claimed: Claimed, *trials: Trial) -> None:
    """Write trials into the sweep's log, and leave records of them and of the sweep."""
    log = SweepLog(claimed.folder.path)
    for trial in trials:
        log.append([trial_entry(trial)])
    log.close()
    for folder in (claimed.folder.path, *(claimed.folder.trials / trial.id for trial in trials)):
        (folder / "tracking").mkdir(parents=True, exist_ok=True)
        (folder / "tracking" / "journal.jsonl").touch()


def end(claimed: Claimed, status: str = "interrupted", *trials: Trial) -> list[str]:
    """End a launch as the driver does; returns what could not be stored."""
    told: list[str] = []
    note(claimed, *trials)
    claimed.folder.write(status=status)
    claimed.settle(told.append)
    claimed.release()
    return told


def kill(claimed: Claimed, stored: bool = True) -> None:
    """Leave a launch as SIGKILL does: its lease stays, but its process is gone."""
    if stored:
        claimed.keeper._copy.push()
    claimed.keeper._over.set()
    claimed.keeper._thread.join()
    claimed._lock.close()
    home().remove(".lease.json")


def content_there(claimed: Claimed) -> dict[str, Any]:
    return dict(json.loads((home() / claimed.folder.run_id).read("sweep.json") or b"{}"))


def place_of(claimed: Claimed) -> RunStore:
    assert claimed.store is not None
    return claimed.store


FINISHED = Trial("0000", {"optimizer.lr": 0.1}, "finished")


def test_an_empty_machine_resumes_what_another_one_has_left(move: Callable[[str], None]) -> None:
    first = claim()
    assert not first.resumed
    note(first, FINISHED)
    kill(first)
    move("other")
    second = claim(intent="resume")
    assert second.resumed
    assert second.folder.run_id == first.folder.run_id
    assert second.folder.path != first.folder.path
    assert read_log(second.folder.path).trials == {"0000": FINISHED}
    assert second.folder.read()["config"] == first.folder.read()["config"]
    assert place_of(second).trusted == ()
    assert content_there(second)["launch"] == place_of(second).launch != place_of(first).launch
    end(second, "finished")
    assert content_there(second)["status"] == "finished"
    assert read_holder(home()) is None
    move("third")
    third = claim()
    assert not third.resumed
    assert third.folder.run_id > first.folder.run_id
    third.release()


def test_what_is_on_this_machine_alone_counts_if_nobody_has_worked_on_it_since(move: Callable[[str], None]) -> None:
    first = claim()
    note(first, FINISHED)
    kill(first, stored=False)
    second = claim()
    assert place_of(second).trusted == (place_of(first).launch,)
    assert set(read_log(second.folder.path).trials) == {"0000"}
    kill(second, stored=False)
    move("other")
    kill(claim(), stored=False)
    move("cache")
    with pytest.raises(ConfigError):
        claim(OTHER, "resume")  # looks at the sweep, and leaves the working copy as it is
    fourth = claim()
    assert place_of(fourth).trusted == ()
    assert read_log(fourth.folder.path).trials == {}
    fourth.release()


@pytest.mark.parametrize("machine", ["cache", "other"])
def test_another_config_is_refused_once_a_trial_has_begun(move: Callable[[str], None], machine: str) -> None:
    first = claim()
    kill(first)
    second = claim(OTHER)
    assert second.folder.run_id != first.folder.run_id
    end(second, "interrupted", FINISHED)
    move(machine)
    with pytest.raises(ConfigError) as caught:
        claim()
    assert [problem.key for problem in caught.value.problems] == ["optimizer.momentum"]
    assert read_holder(home()) is None
    third = claim(OTHER)  # the working copy was not mistaken for one that is up to date
    assert (place_of(third).trusted != ()) == (machine == "cache")
    assert set(read_log(third.folder.path).trials) == {"0000"}
    third.release()
    fourth = claim(intent="new")
    assert not fourth.resumed
    fourth.release()


def test_only_an_unfinished_sweep_is_resumed_and_has_its_weights_pinned() -> None:
    with pytest.raises(ConfigError) as caught:
        claim(intent="resume")
    assert caught.value.code == "resume"
    assert unfinished_content(STORAGE, "run") == {}
    end(claim())
    assert unfinished_content(STORAGE, "run")["config"]["name"] == "run"
    end(claim(), "finished")
    assert unfinished_content(STORAGE, "run") == {}
    with pytest.raises(ConfigError):
        claim(intent="resume")
    assert read_holder(home()) is None


def test_two_machines_do_not_work_on_one_name(move: Callable[[str], None]) -> None:
    first = claim()
    move("other")
    with pytest.raises(EnvironmentFault) as caught:
        claim()
    assert caught.value.code == "run-in-use"
    assert first.lost == ""
    Lease(home(), "another").renew()
    told = end(first, "finished", FINISHED)
    assert first.lost
    assert told
    assert content_there(first)["status"] == "running"
    holder = read_holder(home())
    assert holder is not None
    assert holder.launch == "another"


@pytest.mark.parametrize(("fault", "code"), [(AWAY, "store-silent"), (FORBIDDEN, "access-denied")])
def test_a_store_that_cannot_be_used_is_reported(store: LocalStore, fault: str, code: str) -> None:
    store.fault = fault
    with pytest.raises(EnvironmentFault) as caught:
        claim()
    assert caught.value.code == code
    store.fault = ""
    claimed = claim()
    store.fault = fault
    assert end(claimed, "finished")
    store.fault = ""
    assert content_there(claimed)["status"] == "running"


def test_a_damaged_file_is_reported(store: LocalStore) -> None:
    claimed = claim()
    end(claimed)
    (home() / claimed.folder.run_id).write("sweep.json", b"{")
    with pytest.raises(EnvironmentFault) as caught:
        claim()
    assert caught.value.code == "run-file-damaged"
    assert read_holder(home()) is None


def test_the_place_of_a_trial_is_below_that_of_its_sweep() -> None:
    trial = RunStore("s3://bucket/runs?region=x", "net", "sweep-1", "s3://bucket/runs").trial("0003")
    assert trial.address.place == "bucket/runs/net/sweep-1/trials/0003"
    assert str(trial.shown_address()) == "s3://bucket/runs/net/sweep-1/trials/0003"
    assert trial.home.place == "bucket/runs/net"
    assert trial.folder.parts[-3:] == ("sweep-1", "trials", "0003")


def test_a_sweep_in_a_store_is_not_extended() -> None:
    with pytest.raises(ConfigError) as caught:
        require_folder(STORAGE)
    assert [(problem.code, problem.key) for problem in caught.value.problems] == [("extend", "storage.path")]


def test_the_lease_is_renewed_while_a_large_sweep_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.02)
    seen: list[float] = []

    def slow(*given: Any) -> Any:
        for _ in range(2):
            deadline = time.monotonic() + 60
            while (holder := read_holder(home())) is None or holder.until in seen:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            seen.append(holder.until)
        return choose(*given)

    choose = stored_sweep._choose
    monkeypatch.setattr(stored_sweep, "_choose", slow)
    claim().release()
    assert len(seen) == 2
