"""The lease on a name: one holder at a time, as far as a store can tell."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from paceline.errors import EnvironmentFault
from paceline.storage import lease as leases
from paceline.storage.lease import Holder, Lease, is_held, read_holder
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import LeaseLost
from support.golden import Golden
from support.refusals import refused


def put(home: RemoteFolder, **changes: object) -> Holder:
    """A lease of another machine's."""
    holder = replace(Holder.here("theirs"), machine="another", host="elsewhere", **changes)  # type: ignore[arg-type]
    home.write(leases.FILE, json.dumps(asdict(holder)).encode())
    return holder


def expiry(home: RemoteFolder) -> float | None:
    holder = read_holder(home)
    return None if holder is None else holder.until


def quiet(text: str) -> None:
    pass


def test_a_name_is_held_and_released(remote: RemoteFolder) -> None:
    lease = Lease(remote, "mine")
    lease.take(quiet)
    lease.require()
    assert is_held(remote.address, "mine")
    assert not is_held(remote.address, "theirs")
    with pytest.raises(EnvironmentFault) as caught:
        Lease(remote, "theirs").take(quiet)
    assert (caught.value.code, caught.value.fields["process"]) == ("run-in-use", os.getpid())
    lease.release()
    assert not is_held(remote.address, "mine")
    Lease(remote, "theirs").take(quiet)


def test_a_process_of_this_machine_that_has_ended_holds_nothing(remote: RemoteFolder) -> None:
    code = (
        "import json, sys; from dataclasses import asdict; from paceline.storage.lease import Holder; "
        "print(json.dumps(asdict(Holder.here('dead'))))"
    )
    remote.write(leases.FILE, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not is_held(remote.address, "dead")
    told: list[str] = []
    Lease(remote, "mine").take(told.append)
    assert told == []  # nothing was waited for


def test_a_live_process_of_this_machine_is_at_work_though_its_lease_is_over(remote: RemoteFolder) -> None:
    """As after the machine has slept."""
    holder = replace(Holder.here("asleep"), until=time.time() - 60)
    remote.write(leases.FILE, json.dumps(asdict(holder)).encode())
    with pytest.raises(EnvironmentFault) as caught:
        Lease(remote, "mine").take(quiet)
    assert caught.value.code == "run-in-use"


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def time(self) -> float:
        return self.now

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_another_machine_is_waited_out(remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    clock = FakeTime()
    monkeypatch.setattr(leases, "time", clock)
    put(remote, until=clock.time() + 30.0)
    told: list[str] = []
    began = clock.now
    Lease(remote, "mine").take(told.append)
    assert clock.now - began >= 30
    (text,) = told
    golden(text)


def test_another_machine_that_is_heard_of_meanwhile_is_at_work(
    remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LOOK_SECONDS", 0.1)
    put(remote, until=time.time() + 60)
    with pytest.raises(EnvironmentFault) as caught:
        Lease(remote, "mine").take(lambda text: put(remote, until=time.time() + 61))
    assert (caught.value.code, caught.value.fields["host"]) == ("run-in-use", "elsewhere")
    holder = read_holder(remote)
    assert holder is not None
    assert holder.launch == "theirs"


def test_it_is_renewed_while_a_long_copy_is_made(remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    lease = Lease(remote, "mine")
    lease.take(quiet)
    first = expiry(remote)
    with lease.renewed():
        deadline = time.monotonic() + 60
        while expiry(remote) in (first, None):  # None: a local file is read while it is written
            assert time.monotonic() < deadline
            time.sleep(0.01)
    last = expiry(remote)
    assert last is not None
    time.sleep(0.2)
    assert expiry(remote) == last


def test_whoever_is_taken_over_during_a_copy_finds_out_at_its_end(
    remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    lease = Lease(remote, "mine")
    lease.take(quiet)

    def copy() -> None:
        with lease.renewed():
            for _ in range(50):  # the first may fall between a look of the holder's and its renewal
                put(remote)
                time.sleep(0.02)

    refused(LeaseLost, copy)
    assert not is_held(remote.address, "mine")


def test_whoever_was_taken_over_finds_out(remote: RemoteFolder) -> None:
    lease = Lease(remote, "mine")
    lease.take(quiet)
    put(remote)
    with pytest.raises(LeaseLost) as caught:
        lease.require()
    assert (caught.value.code, caught.value.fields["host"]) == ("lease-lost", "elsewhere")
    lease.release()
    assert remote.read(leases.FILE) is not None


def test_whoever_was_taken_over_finds_out_after_the_other_one_has_ended(remote: RemoteFolder) -> None:
    lease = Lease(remote, "mine")
    lease.take(quiet)
    put(remote)
    remote.remove(leases.FILE)
    assert refused(LeaseLost, lease.require).code == "lease-lost"


def test_of_two_that_ask_at_once_one_gets_it(remote: RemoteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(remote, "mine")
    write = lease.renew
    monkeypatch.setattr(lease, "renew", lambda: (write(), put(remote))[0])
    with pytest.raises(LeaseLost):
        lease.take(quiet)


@pytest.mark.parametrize("data", [b"{", b'{"launch": 1}'])
def test_a_damaged_lease_is_none(remote: RemoteFolder, data: bytes) -> None:
    remote.write(leases.FILE, data)
    assert read_holder(remote) is None
    Lease(remote, "mine").take(quiet)
