"""Whether the speeds of two runs can be compared, by the stamps that the engine leaves."""

import json
from typing import Any

import pytest

from paceline.engine.dist_context import DistContext
from paceline.engine.meter import Meter
from paceline.engine.monitoring.host_monitor import HostMonitor
from paceline.engine.monitoring.own_time import HostTime
from paceline.engine.reporter import MemoryReporter
from paceline.tracking import metrics
from paceline.tracking.speed_stamps import differences, read_stamp
from support.golden import Golden

STAMP: dict[str, Any] = {
    "device": "NVIDIA H100",
    "device_type": "cuda",
    "nodes": 1,
    "workers": 2,
    "gpus": 2,
    "threads_per_worker": 4,
    "usable_cores": 16,
    "machine_cores": 16,
    "cpu": "AMD EPYC",
    "cpu_mhz": 2400.0,
    "cpu_mhz_max": 3700.0,
    "gpu_mhz": 1900.0,
    "gpu_mhz_max": 1980.0,
    "torch": "2.15.0",
    "cuda": "13.0",
    "cudnn": 91000,
    "other_load_start": 0.02,
    "other_load_end": 0.09,
    "warm_up_steps": 10,
    "warm_up_seconds": 3.0,
    "measured_steps": 500,
    "measured_seconds": 60.0,
}
ON_CPU = STAMP | {"device_type": "cpu", "gpus": 0, "gpu_mhz": None, "gpu_mhz_max": None}


def found(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    """Code, key and run of each difference."""
    return [(each.code, each.key, each.run) for each in differences(first, second)]


def test_runs_that_are_alike_can_be_compared() -> None:
    slightly = {"gpu_mhz": 1850.0, "cpu_mhz": 900.0, "measured_steps": 10, "warm_up_seconds": 9.0}
    assert found(STAMP, STAMP | slightly) == []
    assert found(ON_CPU, ON_CPU | {"cpu_mhz": None}) == []


CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"device": "NVIDIA H200"}, "different", "device"),
    ({"nodes": 2}, "different", "nodes"),
    ({"workers": 1}, "different", "workers"),
    ({"gpus": 1}, "different", "gpus"),
    ({"threads_per_worker": 1}, "different", "threads_per_worker"),
    ({"usable_cores": 8}, "different", "usable_cores"),
    ({"cpu": "Intel"}, "different", "cpu"),
    ({"torch": "2.14.0"}, "different", "torch"),
    ({"cuda": None}, "different", "cuda"),
    ({"gpu_mhz": 1700.0}, "clock", "gpu_mhz"),
    ({"other_load_start": 0.25}, "load", "other_load_start"),
    ({"other_load_end": 0.5}, "load", "other_load_end"),
    ({"measured_steps": 9}, "few-steps", "measured_steps"),
    ({"warm_up_steps": 0}, "warm-up", "warm_up_steps"),
    ({"other_load_start": None, "other_load_end": None}, "no-load", "other_load"),
]


@pytest.mark.parametrize(("change", "code", "key"), CASES)
def test_each_difference_has_its_code_and_key(change: dict[str, Any], code: str, key: str) -> None:
    is_of_one_run = code not in ("different", "clock")
    assert found(STAMP, STAMP | change) == [(code, key, 1 if is_of_one_run else None)]
    assert found(STAMP | change, STAMP) == [(code, key, 0 if is_of_one_run else None)]


def test_each_difference_is_explained(golden: Golden) -> None:
    golden("\n".join(str(differences(STAMP, STAMP | change)[0]) for change, *_ in CASES))


def test_the_clock_of_the_processor_counts_on_cpu_alone() -> None:
    assert found(ON_CPU, ON_CPU | {"cpu_mhz": 3000.0}) == [("clock", "cpu_mhz", None)]
    assert found(STAMP, STAMP | {"cpu_mhz": 3000.0}) == []


@pytest.mark.parametrize("text", [None, "", "[1]", '{"device": '])
def test_a_run_without_a_readable_stamp_cannot_be_compared(text: str | None) -> None:
    none = read_stamp({} if text is None else {metrics.SPEED_STAMP: text})
    assert none == {}
    assert found(none, STAMP) == [("no-stamp", "", 0)]
    assert found(STAMP, none) == [("no-stamp", "", 1)]
    assert len(found(none, none)) == 2


def test_the_engine_reports_what_is_compared() -> None:
    reporter = MemoryReporter()
    monitor = HostMonitor(DistContext.current(), reporter, HostTime(), Meter())
    monitor.on_train_start(None)
    (stamp,) = [details for kind, details in reporter.events if kind == "stamp"]
    assert stamp.keys() == STAMP.keys()
    assert read_stamp({metrics.SPEED_STAMP: json.dumps(stamp)}) == stamp
    measured = {"other_load_start": 0.0, "other_load_end": 0.0, "warm_up_steps": 10, "measured_steps": 100}
    assert found(stamp | measured, stamp | measured) == []
