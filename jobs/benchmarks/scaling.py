"""How training scales over workers, and what Ray costs against raw DDP.

    uv run python jobs/benchmarks/scaling.py
    uv run python jobs/benchmarks/scaling.py configs/mnist_cnn.yaml data.global_batch_size=512 --parts efficiency
    ray job submit --runtime-env configs/deploy/runtime_env.yaml -- \\
        python jobs/benchmarks/scaling.py storage.path=/shared/runs --record /shared

CONFIG is an experiment as for `paceline train`, by default configs/mnist_cnn.yaml. Takes some ten minutes on two cores.

efficiency   on the cluster that it is submitted to, or on a private Ray: 1, 2, 4, ... workers, as many as there are
             GPUs or else CPU cores. Nodes share the folder `storage.path`. A turn is a worker group of its own, which
             trains by Paceline's engine from scratch for about `--seconds`.
             weak: each worker has the batch that the config has in all, so the global batch grows. strong: the global
             batch stays. again: the fewest workers a second time (A/A); how far it is from 1 is the noise.
             samples/s and ms a step are those of the training loop, logs as configured included; the first steps,
             building the model, evaluation and checkpoints are left out.
             efficiency: samples/s of each worker over those of the fewest workers in the same round. 1: twice as many
             workers are twice as fast.
raw          on this machine only, left out in a submitted job, and with configs/mnist_cnn.yaml: two gloo processes.
             All arms are up at the same time and take turns of `--steps` steps, after some that are not timed. While an
             arm without Ray has its turn, all processes of Ray are stopped (SIGSTOP). All of it is done `--processes`
             times, since the memory layout of a process makes it faster or slower for good.
             In the measured time: forward, backward, all-reduce, optimizer, learning rate, loading of the batch, and
             logging as configured, which in raw DDP is `loss.item()`, and on Ray goes to the recorder and to MLflow on
             SQLite. Not in it: starting, evaluation, checkpoints. Work of Ray and Paceline that is done by the clock,
             once a second and rarer, would come up to four times as often in short turns as without any: it is overdue
             whenever they continue. So turns last more than a second, after half a second that is not timed.
             raw DDP: `DistributedDataParallel`, zero_grad, forward, mean cross-entropy, backward, step. Samples, their
             order and the optimizer are Paceline's in all arms. Paceline without Ray: its engine in such processes.
             Shown are seconds of a step over those of raw DDP in the same round, and how far the final weights differ.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness import ArmFailed, Benchmark, Part, Target, estimate, loop_rows, ratio, take_turns

if TYPE_CHECKING:
    from scaling_ddp import Launch

    from paceline.config.experiment import ExperimentConfig

PARTS = ("efficiency", "raw")
MOST_RATIO = 1.02
"""Of the step time of raw DDP, for Paceline on Ray."""
WARM_UP_STEPS = 10
"""Of a turn of `efficiency`, at least; not timed."""
AGAIN = "again"
DEFAULT = Path(__file__).resolve().parents[2] / "configs" / "mnist_cnn.yaml"
Kind = tuple[str, int]
"""`weak`, `strong` or `again`, and the number of workers."""


def settings(config: "ExperimentConfig", counts: Sequence[int]) -> "dict[Kind, ExperimentConfig]":
    """The config of each kind of turn. The config's global batch is that of one worker, or of the fewest."""

    def with_workers(workers: int, global_batch_size: int) -> "ExperimentConfig":
        return config.with_overrides(
            {
                "scaling.num_workers": workers,
                "data.global_batch_size": global_batch_size,
                "data.drop_last": True,  # so that all steps are of the same size
                "trainer.epochs": None,
                "trainer.max_steps": 1,
                "trainer.evaluate_every_n_epochs": 0,
            }
        )

    batch, first = config.data.global_batch_size, min(counts)
    found = {("weak", first): with_workers(first, batch), (AGAIN, first): with_workers(first, batch)}
    for count in sorted(counts)[1:]:
        found["weak", count] = with_workers(count, batch * count // first)
        found["strong", count] = with_workers(count, batch)
    return found


def serve(order: dict[str, str]) -> None:
    """On each worker: a training from its start. Rank 0 writes down what was logged."""
    import ray.train.torch
    import torch

    from paceline.cluster.preflight import worker_threads
    from paceline.config.experiment import validate
    from paceline.config.imports import make_importable
    from paceline.engine.build import build_trainer
    from paceline.engine.dist_context import DistContext
    from paceline.engine.reporter import MemoryReporter

    make_importable([Path(folder) for folder in order["folders"]])
    config = validate(json.loads(order["config"]))
    torch.set_num_threads(worker_threads(config))
    reporter = MemoryReporter()
    ranks = DistContext.current(ray.train.torch.get_device())
    build_trainer(config, ranks, reporter).fit()
    if ranks.is_first:
        Path(order["file"]).write_text(json.dumps(reporter.points))


def step_seconds(config: "ExperimentConfig", use_gpu: bool, folder: Path, steps: int) -> float:
    """Seconds of a step after the warm-up, in a worker group of its own."""

    from paceline.cluster.ray_session import in_submitted_job
    from paceline.cluster.torch_trainer import ray_scaling, torch_trainer
    from paceline.config.imports import user_folders

    name = f"scaling-{time.time_ns()}"
    file = folder / f"{name}.json"
    config = config.with_overrides({"trainer.max_steps": steps})
    given = {"config": config.model_dump_json(), "file": str(file), "folders": user_folders()}
    trainer = torch_trainer(serve, given, ray_scaling(config, use_gpu), folder, name, config.parallel.timeout_seconds)
    trainer.private = not in_submitted_job()
    try:
        trainer.fit()
        return mean_step_seconds(json.loads(file.read_text()))
    except Exception as error:  # Ray raises many kinds
        raise ArmFailed(str(error)) from None


def mean_step_seconds(points: Sequence[tuple[int, Mapping[str, float]]]) -> float:
    """Of the steps after the warm-up, from the logged metrics."""
    steps, seconds, before = 0, 0.0, 0
    for step, values in points:
        if "step_seconds" not in values:
            continue
        if before >= WARM_UP_STEPS:
            steps += step - before
            seconds += values["step_seconds"] * (step - before)
        before = step
    return seconds / steps


def steps_for(seconds: float, of_a_step: float, log_every: int) -> int:
    """Steps of a turn: whole intervals between logs, since time is taken when the device has been waited for."""
    warm_up, timed = (log_every * max(1, -(-int(each) // log_every)) for each in (WARM_UP_STEPS, seconds / of_a_step))
    return warm_up + timed


def measure_efficiency(args: Namespace, benchmark: Benchmark) -> Part:
    """On the cluster of this job, or on a private Ray."""
    from paceline.cluster.ray_session import in_submitted_job, prepare_environment
    from paceline.config import load_config

    prepare_environment()
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    import ray

    away = in_submitted_job()
    config = load_config(args.config or DEFAULT, args.overrides)
    if away and not Path(config.storage.path or "").is_absolute():
        raise SystemExit(
            "storage.path is not set: name a folder that all nodes share, such as storage.path=/shared/runs"
        )
    private = {} if away else {"address": "local", "include_dashboard": False}
    ray.init(logging_level="ERROR", log_to_driver=False, **private)
    gpus = int(ray.cluster_resources().get("GPU", 0)) * (config.scaling.use_gpu is not False)
    cores = ray.cluster_resources()["CPU"] / config.scaling.cpus_per_worker
    most = max(args.workers or [gpus or max(1, int(cores))])
    counts = args.workers or [2**power for power in range(most.bit_length())]
    configs, log_every = settings(config, counts), config.trainer.log_every_n_steps
    with tempfile.TemporaryDirectory(dir=config.storage.path if away else None) as folder:
        arms: dict[str, Callable[[], float]] = {}
        for (mode, workers), each in configs.items():
            measure = partial(step_seconds, each, gpus > 0, Path(folder))
            seconds_of_one = measure(steps_for(args.seconds, 1.0, log_every))
            arms[f"{mode} {workers}"] = partial(measure, steps_for(args.seconds, seconds_of_one, log_every))
        seconds, failures = take_turns(arms, args.rounds, after_round=benchmark.say_round)
    ray.shutdown()
    return efficiency({kind: each.data.global_batch_size for kind, each in configs.items()}, seconds, failures)


def efficiency(batches: Mapping[Kind, int], seconds: Mapping[str, list[float]], failures: Mapping[str, str]) -> Part:
    """The table of all kinds of turns, compared with the fewest workers in the same round.

    Args:
        batches: global batch sizes.
        seconds: of a step, by `MODE WORKERS` and round.
    """
    rows, first = [], min(workers for _, workers in batches)
    one = [each * first / batches["weak", first] for each in seconds.get(f"weak {first}", [])]
    for (mode, workers), batch in batches.items():
        mine = seconds.get(f"{mode} {workers}")
        if mine and one:
            per_sample = [each * workers / batch for each in mine]  # of one worker
            rate = estimate([[batch / each for each in mine]]).value
            milliseconds = 1000 * statistics.median(mine)
            rows.append((mode, workers, batch, f"{milliseconds:.2f}", f"{rate:,.0f}", ratio([one], [per_sample])))
    return Part(
        ("scaling", "workers", "global batch", "ms a step", "samples/s", "efficiency"),
        rows,
        failures=failures,
        raw={"step_seconds": seconds},
    )


def measure_raw(args: Namespace, benchmark: Benchmark) -> Part:
    """On this machine."""
    from scaling_ddp import ARMS, WORKERS, Work, launch

    from paceline.config import load_config

    changes = {
        "scaling.num_workers": WORKERS,
        "scaling.use_gpu": False,
        "data.drop_last": True,
        "trainer.epochs": None,
        "trainer.max_steps": 1,
        "trainer.evaluate_every_n_epochs": 0,
        "checkpoint.every_n_epochs": 10**6,
    }
    config = load_config(DEFAULT).with_overrides(changes)
    launches = []
    for number in range(args.processes):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            work = Work(config, args.turns, args.warm_up, args.steps)
            launches.append(launch(work, list(ARMS), Path(folder), number))
        benchmark.say(f"launch {number + 1} of {args.processes} is done")
    return comparison(launches, args.steps)


def comparison(launches: "Sequence[Launch]", steps: int) -> Part:
    """The table of all arms of `raw`, against the first one."""
    rows = loop_rows(launches, steps)
    name, _, clock, *_ = rows[-1]
    columns = ("arm", "ms a step", "to raw DDP", "by CPU time", "final weights")
    return Part(columns, rows, [Target(f"{name}, step time to raw DDP", clock, most=MOST_RATIO)], raw=launches)


def main() -> int:
    """Measure, and print the tables."""
    benchmark = Benchmark("scaling", __doc__, ("torch", "ray", "mlflow", "paceline"), parts=PARTS)
    benchmark.parser.add_argument("given", nargs="*", metavar="CONFIG KEY=VALUE", help="see above")
    benchmark.parser.add_argument("--workers", nargs="+", type=int, metavar="N", help="default: 1, 2, 4, ...")
    benchmark.number("--rounds", 8, 1, "of the part efficiency")
    benchmark.number("--seconds", 4.0, 0.05, "of a turn there, about", least=0.01)
    benchmark.number("--processes", 4, 1, "launches of the part raw")
    benchmark.number("--turns", 10, 1, "of each arm in a launch")
    benchmark.number("--steps", 150, 4, "timed steps of a turn")
    benchmark.number("--warm-up", 60, 2, "steps of a turn before these")
    args = benchmark.parse()
    files, args.overrides = ([x for x in args.given if ("=" in x) == is_pair] for is_pair in (False, True))
    args.config = next(iter(files), None)
    if len(files) > 1 or min(args.workers or [1]) < 1:
        benchmark.parser.error("one CONFIG is enough, and --workers takes numbers above 0")
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    from paceline.cluster.ray_session import in_submitted_job

    measures = {"efficiency": measure_efficiency, "raw": measure_raw}
    parts = args.parts or (["efficiency"] if in_submitted_job() else PARTS)
    return benchmark.finish({part: measures[part](args, benchmark) for part in parts})


if __name__ == "__main__":
    sys.exit(main())
