"""The machine as it is."""

import multiprocessing
from time import process_time, sleep

import pytest

from paceline.engine.monitoring.host import Host, core_times, own_core_seconds


def _burn(seconds: float) -> None:
    until = process_time() + seconds
    while process_time() < until:
        pass


def test_core_seconds_of_loader_processes_stay_the_runs_own_when_they_have_ended() -> None:
    seen: list[float] = []
    busy, own = core_times().busy, process_time()
    seen.append(round(own_core_seconds(), 2))  # the kernel counts in hundredths
    loader = multiprocessing.get_context("fork").Process(target=_burn, args=(0.3,))
    loader.start()
    while loader.is_alive():
        seen.append(round(own_core_seconds(), 2))
        sleep(0.02)
    loader.join()
    seen.append(round(own_core_seconds(), 2))
    assert seen == sorted(seen)
    of_loader = seen[-1] - seen[0] - (process_time() - own)
    assert 0.27 < of_loader < 0.5
    assert core_times().busy - busy >= of_loader - 0.05


def test_the_machine_is_reported_under_the_names_of_mlflow() -> None:
    mlflow = pytest.importorskip("mlflow.system_metrics.metrics.cpu_monitor")
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    theirs: dict[str, float] = {}
    for monitor in (mlflow.CPUMonitor(), DiskMonitor(), NetworkMonitor()):
        monitor.collect_metrics()
        theirs |= monitor.aggregate_metrics()
    mine = Host().sample()
    assert mine.keys() == theirs.keys()
    for name in ("system_memory_usage_megabytes", "disk_usage_megabytes", "disk_usage_percentage"):
        assert mine[name] == pytest.approx(theirs[name], rel=0.05), name
