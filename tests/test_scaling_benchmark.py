"""The benchmark of scaling: what it makes of hand-made figures, and its arms without Ray in processes of their own."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

BENCHMARKS = Path(__file__).resolve().parents[1] / "jobs" / "benchmarks"


@pytest.fixture
def scaling(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark of scaling as a module; what it is made of lies beside it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("scaling")


@pytest.mark.usefixtures("scaling")
def test_the_efficiency_is_that_of_each_worker_in_the_same_round() -> None:
    figures, workers = importlib.import_module("scaling_figures"), importlib.import_module("scaling_workers")

    def turn(mode: str, count: int, batch: int, seconds: float, number: int) -> Any:
        return workers.ScalingTurn(mode, count, batch, steps=10, seconds=seconds, round=number)

    # in each round the machine is half as fast as in the round before
    slow = (1.0, 2.0, 4.0)
    turns = [
        each
        for number, factor in enumerate(slow, 1)
        for each in (
            turn("weak", 1, 100, factor, number),
            turn("again", 1, 100, 1.25 * factor, number),
            turn("weak", 2, 200, 1.25 * factor, number),
            turn("strong", 2, 100, 0.625 * factor, number),
            turn("apart", 2, 200, factor / 0.9, number),
        )
    ]
    rows = figures.efficiency_rows(reversed(turns))
    assert [(row.mode, row.workers, row.global_batch_size) for row in rows] == [
        ("again", 1, 100),
        ("weak", 1, 100),
        ("weak", 2, 200),
        ("strong", 2, 100),
        ("apart", 2, 200),
    ]
    assert [row.efficiency.value for row in rows] == pytest.approx([0.8, 1.0, 0.8, 0.8, 0.9])
    # paired within the rounds, so that the drift is not in the interval
    assert all(row.efficiency.low == row.efficiency.high == pytest.approx(row.efficiency.value) for row in rows)
    assert [row.samples_per_second.value for row in rows] == pytest.approx([400.0, 500.0, 800.0, 800.0, 900.0])
    assert rows[2].step_seconds == pytest.approx(0.25)
    text = figures.efficiency_table(rows)
    assert text.splitlines()[3].split() == ["weak", "2", "200", "250.00", "800", "0.800", "(0.800-0.800)"]
    drawn = figures.picture(rows, "cnn on a $5 processor")
    assert drawn._repr_png_().startswith(b"\x89PNG")
    speeds, efficiencies = drawn.axes
    ideal = speeds.get_lines()[0]
    assert list(ideal.get_xdata()) == [1, 2]
    assert list(ideal.get_ydata()) == pytest.approx([500.0, 1000.0])
    assert [line.get_text() for line in efficiencies.get_legend().get_texts()] == [
        "ideal",
        "weak scaling",
        "strong scaling",
        "each for itself",
    ]


@pytest.mark.usefixtures("scaling")
def test_intervals_hold_the_scatter_of_rounds_and_launches() -> None:
    measuring = importlib.import_module("measuring")
    quiet, noisy = measuring.interval([1.0] * 20), measuring.interval([0.5] * 10 + [1.5] * 10)
    assert quiet == (1.0, 1.0, 1.0)
    assert (noisy.low, noisy.high) == (0.5, 1.5)
    apart = measuring.over_launches([[0.9] * 9, [1.1] * 9])
    assert apart == pytest.approx((1.0, 0.9, 1.1))
    assert measuring.over_launches([[1.0, 1.0, 9.0]]).value == 1.0
    assert measuring.ratios([2.0, 3.0], [4.0, 2.0]) == [0.5, 1.5]


@pytest.mark.usefixtures("scaling")
def test_ray_is_held_against_raw_ddp_in_the_same_round() -> None:
    figures, raw_arms = importlib.import_module("scaling_figures"), importlib.import_module("raw_arms")

    def launch(ratio: float, difference: float) -> Any:
        raw = [raw_arms.Window(seconds, 2 * seconds) for seconds in (1.0, 2.0, 8.0)]
        ray = [raw_arms.Window(ratio * each.seconds, each.cpu_seconds) for each in raw]
        return {"raw DDP": raw, "Paceline on Ray": ray}, {"raw DDP": 0.0, "Paceline on Ray": difference}

    raw, ray = figures.comparisons([launch(1.01, 0.0), launch(1.03, 1e-6)], steps=10)
    assert (raw.by_clock, raw.step_seconds, raw.weights_difference) == ((1.0, 1.0, 1.0), 0.2, 0.0)
    assert ray.by_clock == pytest.approx((1.02, 1.01, 1.03))
    assert ray.by_cpu_time == (1.0, 1.0, 1.0)
    assert figures.weights_text(raw) == "equal to the bit"
    assert figures.weights_text(ray) == "differ by 1.0e-06"
    table = figures.comparison_table
    assert table(figures.comparisons([launch(1.019, 0.0)], 10)).endswith("at most 1.02: met")
    assert table(figures.comparisons([launch(1.021, 0.0)], 10)).endswith("at most 1.02: not met")
    # a median below the bar proves nothing as long as the launches scatter about it
    apart = figures.comparisons([launch(1.0, 0.0), launch(1.001, 0.0), launch(1.05, 0.0)], 10)
    assert apart[1].by_clock.value < 1.02
    assert "not decided" in table(apart)


@pytest.mark.usefixtures("scaling")
def test_each_kind_of_turn_comes_once_a_round_and_its_warm_up_is_not_timed() -> None:
    workers = importlib.import_module("scaling_workers")
    keys = [("weak", 1), ("again", 1), ("weak", 2), ("strong", 2)]
    step_seconds = dict.fromkeys(keys, 0.01) | {("weak", 2): 0.02}
    turns = list(workers.schedule(keys, rounds=6, seconds=1.0, log_every=10, step_seconds=step_seconds))
    rounds = [[key for number, key, _ in turns if number == each] for each in range(7)]
    assert all(sorted(each) == sorted(keys) for each in rounds)
    assert len(set(map(tuple, rounds[1:]))) > 1
    assert {steps for number, key, steps in turns if number and key == ("weak", 2)} == {10 + 50}
    points = [(4, {"step_seconds": 9.0}), (8, {"step_seconds": 9.0}), (12, {"step_seconds": 9.0})]
    points += [(16, {"step_seconds": 0.5}), (16, {"val/loss": 1.0}), (18, {"step_seconds": 0.25})]
    assert workers.timed(points) == (6, 4 * 0.5 + 2 * 0.25)
    assert workers.together([(10, 1.0), (10, 2.0)]) == pytest.approx((10, 10 / 7.5))


def test_weak_scaling_keeps_the_batch_of_a_worker_and_strong_scaling_that_of_all(scaling: Any) -> None:
    from paceline.config.batch_sizes import batch_sizes

    workers = importlib.import_module("scaling_workers")
    config = scaling.choose_config(None, ["data.global_batch_size=64"], 1, has_gpus=False)
    sizes = {key: batch_sizes(each) for key, each in workers.settings(config, [1, 2, 4]).items()}
    assert {key: (each.global_batch_size, each.micro_batch_size) for key, each in sizes.items()} == {
        ("weak", 1): (64, 64),
        ("again", 1): (64, 64),
        ("weak", 2): (128, 64),
        ("strong", 2): (64, 32),
        ("apart", 2): (64, 64),
        ("weak", 4): (256, 64),
        ("strong", 4): (64, 16),
        ("apart", 4): (64, 64),
    }


def test_workers_double_up_to_the_gpus_or_the_cores(scaling: Any) -> None:
    from paceline.cluster.preflight import Resources

    assert scaling.numbers_of_workers(Resources(64.0, 8.0), 1) == [1, 2, 4, 8]
    assert scaling.numbers_of_workers(Resources(6.0, 0.0), 1) == [1, 2, 4]
    assert scaling.numbers_of_workers(Resources(6.0, 0.0), 3) == [1, 2]
    gpu = scaling.choose_config(None, ["trainer.log_every_n_steps=5"], 8, has_gpus=True)
    assert (gpu.model.describe(), gpu.data.num_samples, gpu.trainer.log_every_n_steps) == ("resnet50", 1024, 5)


@pytest.mark.parametrize(
    "override",
    ["trainer.max_grad_norm=1", "parallel.comm_hook=bf16", "data.micro_batch_size=32", "trainer.compile=default"],
)
def test_what_the_textbook_loop_does_not_do_is_refused(scaling: Any, override: str) -> None:
    from paceline.errors import ConfigError

    config = scaling.choose_config(None, [override], 2, has_gpus=False)
    with pytest.raises(ConfigError) as error:
        scaling.raw_config(config, 2, use_gpu=False, steps=10)
    assert error.value.problems[0].key in (override.partition("=")[0], "parallel")


SMALL = ["data.global_batch_size=16", "trainer.log_every_n_steps=2", "model.width=4"]


def work_of(scaling: Any, *overrides: str) -> Any:
    raw_arms = importlib.import_module("raw_arms")
    config = scaling.choose_config(None, [*SMALL, *overrides], 2, has_gpus=False)
    numbers = {"turns": 3, "warm_up": 1, "steps": 2}
    work = raw_arms.Work("", 2, False, **numbers)
    tree = scaling.raw_config(config, 2, use_gpu=False, steps=work.total_steps).model_dump_json()
    return raw_arms.Work(tree, 2, False, **numbers)


@pytest.mark.timeout(240)
def test_two_gloo_processes_of_each_arm_take_turns_and_compute_the_same(scaling: Any, tmp_path: Path) -> None:
    raw_arms, raw_ddp = importlib.import_module("raw_arms"), importlib.import_module("raw_ddp")
    names = [raw_arms.FIRST, raw_arms.LOOP]
    windows, differences = raw_ddp.launch(work_of(scaling), names, tmp_path, seed=0)
    assert {name: len(each) for name, each in windows.items()} == dict.fromkeys(names, 3)
    assert all(window.seconds > 0 for each in windows.values() for window in each)
    assert differences == dict.fromkeys(names, 0.0)
    untrained = scaling.choose_config(None, SMALL, 2, has_gpus=False).model.build().state_dict()
    save_file(untrained, tmp_path / "untrained")
    assert raw_ddp.max_difference(tmp_path / "untrained", tmp_path / "0" / raw_arms.WEIGHTS) > 1e-4


def test_the_difference_of_weights_is_the_largest_one(scaling: Any, tmp_path: Path) -> None:
    raw_ddp = importlib.import_module("raw_ddp")
    for name, value in (("one", 1.0), ("same", 1.0), ("other", 1.5)):
        save_file({"a": torch.zeros(3), "b": torch.tensor([0.0, value])}, tmp_path / name)
    save_file({"a": torch.zeros(3)}, tmp_path / "smaller")
    assert raw_ddp.max_difference(tmp_path / "one", tmp_path / "same") == 0.0
    assert raw_ddp.max_difference(tmp_path / "other", tmp_path / "one") == 0.5
    with pytest.raises(raw_ddp.ArmFailed, match="different models"):
        raw_ddp.max_difference(tmp_path / "one", tmp_path / "smaller")


def test_an_arm_that_fails_says_why_and_leaves_no_process(scaling: Any, tmp_path: Path) -> None:
    import psutil

    raw_arms, raw_ddp = importlib.import_module("raw_arms"), importlib.import_module("raw_ddp")
    broken = work_of(scaling, "model.in_channels=3")  # the digits have one
    before = {each.pid for each in psutil.Process().children(recursive=True)}
    with pytest.raises(raw_ddp.ArmFailed, match="channels"):
        raw_ddp.launch(broken, [raw_arms.FIRST], tmp_path, seed=0)
    after = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
    assert [each for each in after if "run_arm" in " ".join(each.cmdline())] == []


def test_an_arm_stands_still_while_others_have_their_turn(scaling: Any, tmp_path: Path) -> None:
    import psutil

    raw_arms, raw_ddp = importlib.import_module("raw_arms"), importlib.import_module("raw_ddp")
    arm = raw_ddp.RunningArm(raw_arms.FIRST, work_of(scaling), tmp_path / "arm")
    try:
        arm.await_gate()
        states = [process.status() for process in arm._tree()]
        with arm.standing_still():
            stopped = [process.status() for process in arm._tree()]
        assert stopped == [psutil.STATUS_STOPPED] * len(states)
        assert arm.take_turn().seconds > 0
    finally:
        arm.end()
    assert arm._tree() == []


def test_what_is_recorded_has_the_number_of_workers_as_step(scaling: Any) -> None:
    figures, record = importlib.import_module("scaling_figures"), importlib.import_module("scaling_record")
    value = importlib.import_module("measuring").Interval(0.9, 0.8, 1.0)
    rows = [figures.Row("weak", count, 8 * count, value, 0.1, value) for count in (1, 2)]
    compared = [figures.Comparison("Paceline on Ray", 0.1, value, value, 0.0)]
    found = {"efficiency": {"rows": rows}, "raw": {"comparisons": compared}}
    points = record.points_of(found, now_ms=1)
    assert [(p.step, p.value) for p in points if p.key == "weak/efficiency_high"] == [(1, 1.0), (2, 1.0)]
    assert [(p.step, p.value) for p in points if p.key == "raw/paceline_on_ray/ratio"] == [(0, 0.9)]
    told = json.loads(scaling.as_json({"efficiency": {"rows": rows}}, {"cores": 2}))
    assert told["efficiency"]["rows"][1]["efficiency"] == {"value": 0.9, "low": 0.8, "high": 1.0}


def test_the_benchmark_of_scaling_tells_its_options_without_ray_and_mlflow(tmp_path: Path) -> None:
    for name in ("ray", "mlflow", "torch"):
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    command = [sys.executable, str(BENCHMARKS / "scaling.py"), "--help"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for option in ("--workers", "--parts", "--rounds", "--launches", "--json", "CONFIG"):
        assert option in done.stdout


def test_the_workers_need_nothing_of_the_folder_of_the_benchmark(scaling: Any, tmp_path: Path) -> None:
    """A node of a cluster has Paceline, and what the driver has pickled."""
    from ray import cloudpickle

    workers = importlib.import_module("scaling_workers")
    cloudpickle.register_pickle_by_value(workers)
    try:
        (tmp_path / "serve").write_bytes(cloudpickle.dumps(workers.serve))
    finally:
        cloudpickle.unregister_pickle_by_value(workers)
    script = (
        "import pickle, sys; serve = pickle.load(open(sys.argv[1], 'rb'))\n"
        "turn = serve.__globals__['ScalingTurn']('weak', 2, 64, 10, 0.5, 1)\n"
        "print(turn.samples_per_second, list(serve.__globals__['schedule']([('weak', 1)], 0, 1.0, 10, {})))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "serve")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "1280.0 [(0, ('weak', 1), 20)]\n", done.stderr


WORKER = """
import json, sys
import torch.distributed as dist
sys.path.insert(0, sys.argv[1])
from scaling_config import choose_config
from scaling_workers import settings, take_turns, text_of
rank = int(sys.argv[3])
dist.init_process_group("gloo", f"file://{sys.argv[2]}", rank=rank, world_size=2)
config = choose_config(None, sys.argv[4:], 2, False)
trees = {text_of(key): each.model_dump_json() for key, each in settings(config, [1, 2]).items()}
take_turns({"settings": trees, "rounds": 2, "seconds": 0.01}, "cpu", lambda told: print(json.dumps(told), flush=True))
"""


@pytest.mark.timeout(200)
def test_a_group_trains_with_some_of_its_workers_in_turn(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(BENCHMARKS), str(tmp_path / "meeting")]
    ranks = [
        subprocess.Popen([*command, str(rank), *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=150) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    *turns, last = map(json.loads, outputs[0][0].splitlines())
    kinds = [("weak", 1, 16), ("weak", 2, 32), ("strong", 2, 16), ("apart", 2, 32), ("again", 1, 16)]
    told = [(turn["round"], turn["mode"], turn["workers"], turn["global_batch_size"]) for turn in turns]
    assert sorted(told) == sorted((number, *kind) for number in range(3) for kind in kinds), outputs[0][1]
    assert all(turn["steps"] > 0 and turn["seconds"] > 0 for turn in turns)
    assert last["stamp"]["workers"] == 2
    assert outputs[1][0] == ""
