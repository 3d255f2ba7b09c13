"""Whether the speeds of two runs can be compared, by their stamps."""

import json
from typing import Any

import pytest

from paceline.engine.observing.observer import Observer
from paceline.engine.observing.own_time import HostTime
from paceline.engine.ranks import Ranks
from paceline.engine.reporter import MemoryReporter
from paceline.tracking import metrics
from paceline.tracking.comparing import differences, read_stamp

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


def test_runs_that_are_alike_can_be_compared() -> None:
    slightly = {"gpu_mhz": 1850.0, "cpu_mhz": 900.0, "measured_steps": 10, "warm_up_seconds": 9.0}
    assert differences(STAMP, STAMP | slightly) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "NVIDIA H200"}, "they ran on different devices: NVIDIA H100 and NVIDIA H200"),
        ({"workers": 1}, "they had a different number of workers: 2 and 1"),
        ({"gpus": 1}, "they had a different number of GPUs: 2 and 1"),
        ({"threads_per_worker": 1}, "torch had a different number of threads a worker: 4 and 1"),
        ({"usable_cores": 8}, "their processes could use a different number of cores: 16 and 8"),
        ({"torch": "2.14.0"}, "they ran with different versions of torch: 2.15.0 and 2.14.0"),
        ({"cuda": None}, "they ran with different versions of CUDA: 13.0 and not known"),
        ({"gpu_mhz": 1700.0}, "the clocks of their GPUs differ by more than 5%: 1,900 and 1,700 MHz"),
        ({"other_load_start": 0.25}, "other programs used 25% of the cores at the start of the second run"),
        ({"other_load_end": 0.5}, "other programs used 50% of the cores at the end of the second run"),
        ({"measured_steps": 9}, "the speed of the second run was measured over 9 steps, fewer than 10"),
        ({"warm_up_steps": 0}, "the speed of the second run includes its warm-up: it has a single point"),
        (
            {"other_load_start": None, "other_load_end": None},
            "how busy other programs kept the machine of the second run is not known: it was over too soon",
        ),
    ],
)
def test_each_reason_is_told_in_words(change: dict[str, Any], reason: str) -> None:
    assert differences(STAMP, STAMP | change) == [reason]
    assert len(differences(STAMP | change, STAMP)) == 1


def test_on_cpu_its_clock_counts() -> None:
    on_cpu = STAMP | {"device_type": "cpu", "gpus": 0, "gpu_mhz": None, "gpu_mhz_max": None}
    (reason,) = differences(on_cpu, on_cpu | {"cpu_mhz": 3000.0})
    assert reason == "the clocks of their processors differ by more than 5%: 2,400 and 3,000 MHz"
    assert differences(on_cpu, on_cpu | {"cpu_mhz": None}) == []


def test_several_reasons_are_all_told() -> None:
    other = STAMP | {"device": "cpu", "threads_per_worker": 1, "measured_steps": 0, "warm_up_steps": 0}
    assert len(differences(STAMP, other)) == 3


def test_a_run_without_a_stamp_cannot_be_compared() -> None:
    assert differences({}, STAMP) == ["the first run has no stamp"]
    assert differences(STAMP, {}) == ["the second run has no stamp"]
    assert len(differences({}, {})) == 2


@pytest.mark.parametrize("text", [None, "", "[1]", '{"device": '])
def test_a_missing_or_damaged_tag_is_no_stamp(text: str | None) -> None:
    assert read_stamp({} if text is None else {metrics.SPEED_STAMP: text}) == {}


def test_what_the_engine_reports_is_what_is_compared() -> None:
    reporter = MemoryReporter()
    observer = Observer(Ranks.current(), reporter, HostTime())
    observer.begin()
    (stamp,) = [details for kind, details in reporter.events if kind == "stamp"]
    assert stamp.keys() == STAMP.keys()
    read = read_stamp({metrics.SPEED_STAMP: json.dumps(stamp)})
    assert read == stamp
    measured = {"other_load_start": 0.0, "other_load_end": 0.0, "warm_up_steps": 10, "measured_steps": 100}
    assert differences(read | measured, read | measured) == []
