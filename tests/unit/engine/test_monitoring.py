"""Memory, the machines, energy and the conditions of the measured speed, as a run reports them."""

import json
import mmap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.engine.meter import Meter, memory_bytes
from paceline.engine.monitoring import energy, machines, own_time, stragglers
from paceline.engine.monitoring.energy import ProcessorEnergy
from paceline.engine.monitoring.gpus import GPU_METRICS, Gpu, joules_of, own_gpus
from paceline.engine.monitoring.host import HOST_METRICS, OtherLoad, Reading
from paceline.engine.monitoring.machines import SAMPLED_BY_ALL, Rhythm, fields_of
from paceline.engine.monitoring.own_time import DeviceTime, HostTime
from paceline.engine.monitoring.slots import Slots
from paceline.engine.monitoring.stamp import Card
from paceline.engine.monitoring.stragglers import StragglerWatch, slowest
from paceline.engine.reporter import MemoryReporter
from paceline.tracking import metrics
from support.toys import Points, fit, toy_config

CPU = torch.device("cpu")


# --- what a run reports ------------------------------------------------------------------------------------------


def test_every_log_has_the_memory_and_the_first_and_last_the_machine() -> None:
    _, outcome, reporter = fit(toy_config())
    now, peak = reporter.values("memory_bytes"), reporter.values("peak_memory_bytes")
    assert len(now) == len(peak) == 12
    assert all(1e6 < each <= most for each, most in zip(now, peak, strict=True))
    of_machine = [(step, {key for key in values if key.startswith("system/")}) for step, values in reporter.points]
    expected = {metrics.system_metric(name) for name in metrics.HOST_METRICS}
    assert [(step, keys) for step, keys in of_machine if keys] == [(1, expected), (12, expected)]
    assert not [key for key in outcome.metrics if key.startswith("system/")]  # what the machine did is no result


def test_memory_is_that_of_now() -> None:
    _, before = memory_bytes(CPU)
    with mmap.mmap(-1, 100 << 20) as block:  # what torch allocates may be memory that was freed, and is resident still
        block.write(bytes(100 << 20))
        peak, with_block = memory_bytes(CPU)
    assert with_block - before > 90 << 20
    assert memory_bytes(CPU)[1] < with_block - (90 << 20)
    assert memory_bytes(CPU)[0] > peak - (2 << 20)  # the kernel is not exact to the page


@pytest.mark.parametrize("stop_at", [None, 4])
def test_the_overall_speed_comes_last(stop_at: int | None) -> None:
    config = toy_config(trainer__log_every_n_steps=3)
    _, outcome, reporter = fit(config, reporter=MemoryReporter(stop_at_step=stop_at))
    assert outcome.stopped == (stop_at is not None)
    (overall,) = reporter.values("samples_per_second_overall")
    assert overall == outcome.samples_per_second > 0
    assert reporter.points[-1][0] == outcome.step
    assert "samples_per_second_overall" in reporter.points[-1][1] or not outcome.stopped


def test_a_meter_counts_the_steps_that_its_speed_is_over() -> None:
    meter = Meter()
    assert meter.stretches()["measured_steps"] == 0
    assert meter.overall() == {}
    for steps in (2, 3, 4):
        for _ in range(steps):
            meter.count(8)
        meter.read(0.0)
        if steps == 2:
            assert (meter.stretches()["warm_up_steps"], meter.stretches()["measured_steps"]) == (0, 2)
    counted = meter.stretches()
    assert (counted["warm_up_steps"], counted["measured_steps"]) == (2, 7)
    assert meter.overall_rate() == pytest.approx(7 * 8 / counted["measured_seconds"])


def test_work_that_is_queued_on_the_device_counts_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what an evaluation has queued counts as evaluation."""
    now, queued = [100.0], [0.0]

    def drain() -> None:
        now[0] += queued[0]
        queued[0] = 0.0

    monkeypatch.setattr("paceline.engine.meter.perf_counter", lambda: now[0])
    meter = Meter(drain)
    meter.count(80)
    queued[0] = 4.0
    with meter.excluded("evaluation"):
        now[0] += 1.0
        queued[0] = 2.0
    assert meter.read(0.0)["samples_per_second"] == 20.0
    meter.end_loop(100.0)
    assert meter.split() == {"training": 4.0, "evaluation": 3.0, "closing": 0.0}


def test_the_names_of_the_metrics_are_those_that_are_declared() -> None:
    assert HOST_METRICS == metrics.HOST_METRICS
    assert GPU_METRICS == metrics.GPU_METRICS
    assert machines.gpu_field(3, GPU_METRICS[0]) == metrics.gpu_metric(3, GPU_METRICS[0])


# --- the stamp ---------------------------------------------------------------------------------------------------


def test_a_stamp_comes_at_the_beginning_and_at_the_end() -> None:
    _, _, reporter = fit(toy_config(trainer__log_every_n_steps=2))
    kinds = [kind for kind, _ in reporter.events]
    first, last = (details for kind, details in reporter.events if kind == "stamp")
    assert kinds.index("stamp") == kinds.index("plan") + 3  # after `datasets` and `ranks`, before training
    assert first.keys() == last.keys()
    assert json.loads(json.dumps(last)) == last
    assert all(not isinstance(value, dict | list) for value in last.values())
    assert (first["measured_steps"], first["warm_up_steps"]) == (0, 0)
    assert (last["warm_up_steps"], last["measured_steps"]) == (2, 10)
    assert (last["workers"], last["gpus"], last["nodes"]) == (1, 0, 1)
    assert (last["threads_per_worker"], last["torch"]) == (torch.get_num_threads(), torch.__version__)
    assert type(last["torch"]) is str, "a TorchVersion would have the coordinator import torch"
    assert last["device"] == last["cpu"] != ""


def test_other_programs_are_all_that_are_busy_but_this_run() -> None:
    load = OtherLoad(cores=4)
    load.see(Reading(10.0, 100.0, 50.0))
    assert load.at_start is load.at_end is None
    load.see(Reading(12.0, 106.0, 54.0))  # 6 of 8 core seconds, 4 of them the run's
    assert load.at_start == load.at_end == pytest.approx(0.25)
    load.see(Reading(14.0, 108.0, 56.0))
    load.see(Reading(14.5, 110.0, 56.0))  # too short for itself: 2 + 0 others in 2.5 s
    assert (load.at_start, load.at_end) == (pytest.approx(0.25), pytest.approx(0.2))
    load.see(Reading(15.0, 110.0, 90.0))
    assert load.at_end == 0.0


# --- the exchange ------------------------------------------------------------------------------------------------


def test_the_slots_of_all_ranks_come_out_of_the_sum() -> None:
    slots = Slots([["a", "b"], ["a"], ["a", "c"]])
    values = [{"a": 1.0, "b": 2.0}, {"a": 0.1}, {"a": 4.0}]
    vectors = [slots.pack(rank, each) for rank, each in enumerate(values)]
    assert slots.unpack([sum(column) for column in zip(*vectors, strict=True)]) == values


def card(host: str, *gpus: int, count: int = 0) -> Card:
    return Card(host, "device", 1, 2, 2, None, tuple((f"GPU-{number}", number) for number in gpus), None, count)


def test_each_machine_and_each_gpu_is_reported_once() -> None:
    cards = [card("a", 0, count=1), card("a", 0, count=1), card("a", 1, count=1), card("b", 0, count=1)]
    fields = [[*fields_of(rank, cards, system=True)] for rank in range(4)]
    assert [HOST_METRICS[0] in names for names in fields] == [True, False, False, True]
    assert [names.count("busy_core_seconds") for names in fields] == [1, 0, 0, 1]
    gpus = [sorted({name.split("_")[1] for name in names if name.startswith("gpu_")}) for names in fields]
    assert gpus == [["0"], [], ["1"], ["0"]]
    assert ["joules" in names for names in fields] == [True, False, True, True]
    assert all(len(set(names)) == len(names) for names in fields)
    without_gpus = [card("a"), card("a"), card("b")]
    assert ["joules" in fields_of(rank, without_gpus, system=True) for rank in range(3)] == [True, False, True]
    assert fields_of(1, without_gpus, system=False) == [*SAMPLED_BY_ALL]


@pytest.mark.parametrize(
    ("seconds", "logs", "looks"), [(0.1, 200, [0, 50, 100, 150]), (30.0, 5, [0, 2, 3, 4])], ids=["often", "rarely"]
)
def test_the_machines_are_looked_at_every_five_seconds_or_at_each_log_if_those_are_rarer(
    seconds: float, logs: int, looks: list[int]
) -> None:
    rhythm, found = Rhythm(), []
    for log in range(logs):
        if rhythm.is_due:
            found.append(log)
        rhythm.note(1000.0 + seconds * log, rhythm.is_due)
    assert found == looks


# --- stragglers --------------------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> StragglerWatch:
    """A watch for which three logs are enough, however short."""
    monkeypatch.setattr(stragglers, "SECONDS", 0.0)
    return StragglerWatch()


def test_a_straggler_is_named_at_the_third_log_in_a_row_and_once(patient: StragglerWatch) -> None:
    found = [patient.see([1.0, 1.1, 1.5, 0.9]) for _ in range(6)]
    assert [each is not None for each in found] == [False, False, True, False, False, False]
    assert found[2] is not None
    assert (found[2].rank, found[2].factor, found[2].seconds) == (2, 1.5, 1.5)
    pair = slowest([1.25, 1.0])
    assert pair is not None
    assert (pair.rank, pair.factor) == (0, 1.25)


@pytest.mark.parametrize("seconds", [[1.0, 1.2], [1.0, 1.15, 1.0], [0.0, 0.0], [1.0, float("nan")], [3.0]])
def test_ranks_that_are_about_equal_or_not_known_are_not_named(seconds: list[float], patient: StragglerWatch) -> None:
    assert not any(patient.see(seconds) for _ in range(10))


def test_a_streak_that_breaks_starts_again(patient: StragglerWatch) -> None:
    slow, fair, other = [1.0, 2.0], [1.0, 1.0], [2.0, 1.0]
    assert not any(patient.see(seconds) for seconds in [slow, slow, fair, slow, slow, other, slow, slow])
    assert patient.see(slow) is not None


@pytest.mark.parametrize("start", [0.0, 60.0])
def test_three_logs_within_a_hiccup_are_not_enough(start: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the start took, in which the model is built and the data are loaded."""
    now = [1000.0]
    monkeypatch.setattr(stragglers, "perf_counter", lambda: now[0])
    watch = StragglerWatch()
    now[0] += start
    for _ in range(9):
        assert watch.see([1.0, 2.0]) is None
        now[0] += 0.1
    now[0] += 0.2
    assert watch.see([1.0, 2.0]) is not None


# --- a rank's own time -------------------------------------------------------------------------------------------


def test_the_own_time_is_that_between_start_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(own_time, "perf_counter", lambda: now[0])
    mine = HostTime()
    for _ in range(2):
        mine.start()
        now[0] += 1
        mine.start()  # it is running already
        assert mine.stop()
        assert not mine.stop()
        now[0] += 10
        mine.end_step()
    assert mine.read() == 1.0
    assert mine.read() != mine.read()  # NaN: no step since


class Mark:
    """Instead of a mark in a GPU's queue: the moment that it was made at, on a clock of seconds."""

    clock = 0.0
    is_done = True

    def __init__(self) -> None:
        self.at = Mark.clock

    def query(self) -> bool:
        return Mark.is_done

    def elapsed_time(self, end: "Mark") -> float:
        return (end.at - self.at) * 1000


def test_on_a_gpu_only_the_armed_step_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_time, "_mark", Mark)
    mine = DeviceTime()

    def step(is_armed: bool) -> None:
        if is_armed:
            mine.arm()
        mine.start()
        Mark.clock += 1
        assert mine.stop() == is_armed
        Mark.clock += 10  # waiting for others
        mine.start()
        Mark.clock += 2
        mine.stop()
        mine.end_step()

    step(False)
    assert mine.read() != mine.read()
    step(True)
    step(False)
    assert mine.read() == pytest.approx(3.0)
    step(True)
    monkeypatch.setattr(Mark, "is_done", False)
    assert mine.read() != mine.read()  # it would have to wait


# --- energy and GPUs ---------------------------------------------------------------------------------------------


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder where Linux has its energy counters."""
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    return tmp_path


def zone(folder: Path, path: str, name: str, microjoules: int) -> Path:
    """An energy counter; its file."""
    (folder / path).mkdir()
    (folder / path / "name").write_text(f"{name}\n")
    (folder / path / "max_energy_range_uj").write_text("1000000000\n")
    (folder / path / "energy_uj").write_text(f"{microjoules}\n")
    return folder / path / "energy_uj"


def test_energy_is_counted_over_packages_and_memory_and_through_an_overflow(powercap: Path) -> None:
    package = zone(powercap, "intel-rapl:0", "package-0", 990_000_000)
    memory = zone(powercap, "intel-rapl:0:1", "dram", 5_000_000)
    cores = zone(powercap, "intel-rapl:0:0", "core", 0)  # part of the package
    (powercap / "intel-rapl:1").mkdir()  # one that may not be read
    counted = ProcessorEnergy()
    assert counted.joules() == 0.0
    package.write_text("10000000")  # overflowed at 1,000 J
    memory.write_text("7000000")
    cores.write_text("900000000")
    assert counted.joules() == pytest.approx(20 + 2)
    package.unlink()
    assert counted.joules() == pytest.approx(22)


def test_energy_is_a_metric_of_the_run(powercap: Path) -> None:
    assert ProcessorEnergy().joules() is None
    assert not fit(toy_config(trainer__max_steps=2))[2].values("energy_joules")
    counter = zone(powercap, "intel-rapl:0", "package-0", 1_000_000)

    class Burning(Points):
        def __getitem__(self, index: int) -> Any:
            counter.write_text(str(int(counter.read_text()) + 1_000_000))
            return super().__getitem__(index)

    burning = toy_config(data__path=lambda: (Burning(16), Points(4)), trainer__epochs=3)
    _, outcome, reporter = fit(burning)
    found = reporter.values("energy_joules")  # 16 J a step; the machine is looked at for the first and the last log
    assert found == [pytest.approx(16), pytest.approx(16), pytest.approx(48)]
    assert outcome.metrics["energy_joules"] == pytest.approx(48)

    without = fit(burning.with_overrides({"tracking.system_metrics": False}))[2]
    assert not [key for _, values in without.points for key in values if key.startswith(("system/", "energy"))]
    assert without.values("memory_bytes")


class Library:
    """Instead of NVIDIA's library, which is not there without a GPU: one GPU, number 5 of its machine."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1

    class NVMLError(Exception):
        """As there."""

    millijoules = 7_000

    def __init__(self, gives_energy: bool = True) -> None:
        self.gives_energy = gives_energy

    def __getattr__(self, name: str) -> Any:
        if not self.gives_energy and ("Energy" in name or "Power" in name):
            return self._refuse
        answers = {
            "nvmlDeviceGetHandleByUUID": lambda identity: identity,
            "nvmlDeviceGetIndex": lambda handle: 5,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=2e9, total=8e9),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=80),
            "nvmlDeviceGetPowerUsage": lambda handle: 150_000,
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 300_000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
            "nvmlDeviceGetClockInfo": lambda handle, clock: 1700,
            "nvmlDeviceGetMaxClockInfo": lambda handle, clock: 1980,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self.millijoules,
        }
        return answers[name]

    def _refuse(self, handle: str) -> Any:
        raise self.NVMLError


def test_a_gpu_is_reported_in_the_units_of_its_names() -> None:
    library = Library()
    gpu = Gpu(library, "GPU-x")
    assert (gpu.identity, gpu.number, gpu.max_clock()) == ("GPU-x", 5, 1980.0)
    assert gpu.sample() == dict(zip(GPU_METRICS, (25.0, 2000.0, 80.0, 150.0, 50.0, 61.0, 1700.0), strict=True))
    library.millijoules = 9_500
    assert gpu.joules() == 2.5
    assert own_gpus(CPU, all_seen=True) == []


def test_values_that_a_gpu_does_not_give_are_left_out() -> None:
    gpu = Gpu(Library(gives_energy=False), "GPU-x")
    assert set(GPU_METRICS) - gpu.sample().keys() == {"power_usage_watts", "power_usage_percentage"}
    assert gpu.joules() is None
    assert joules_of([Gpu(Library(), "GPU-x"), gpu]) is None
    assert joules_of([]) is None
