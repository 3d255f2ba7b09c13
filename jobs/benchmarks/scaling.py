"""How training scales over workers, and what Ray costs against raw DDP.

    uv run python jobs/benchmarks/scaling.py [CONFIG] [KEY=VALUE ...] [--workers 1,2] [--parts efficiency raw]
    ray job submit --runtime-env configs/runtime_env.yaml -- \\
        python jobs/benchmarks/scaling.py storage.path=/shared/runs tracking.uri=http://mlflow:5000

CONFIG is an experiment as for `paceline train`; by default configs/mnist_cnn.yaml, and where there are GPUs ResNet-50
on random images. Takes some ten minutes on two cores. What was found is printed, and recorded in MLflow as one run with
the tables, the configuration, the picture `scaling.png` and the stamp of what it was measured on.

efficiency   on the cluster, or on a private Ray: one group with as many workers as there are GPUs, or else CPU cores.
             In each turn the first 1, 2, 4, ... of them train by Paceline's engine, from scratch and in a process group
             of their own, while the others wait without computing; a round is a turn of each kind in random order.
             So what drifts, the machine's clock or other programs, meets all numbers of workers alike.
             weak: each worker has the batch that the config has in all, so the global batch grows. strong: the global
             batch stays. apart: each worker trains for itself, all at the same time: what they lose there they take
             from each other's memory, caches and clock, and not by the exchange of gradients. again: the fewest workers
             a second time; how far it is from 1 is the noise.
             samples/s and ms/step are those of the training loop, logs as configured included; the first steps of
             a turn, building the model, evaluation and checkpoints are left out.
             efficiency: samples/s of each worker over those of the fewest workers in the same round; median over the
             rounds with its 95 % bootstrap interval.
raw          on this machine only, by default left out in a submitted job: two processes by gloo, or NCCL with two
             GPUs. All arms are up at the same time and take turns of `--steps` steps, in random order, after some that
             are not timed. While an arm without Ray has its turn, all processes of Ray are stopped (SIGSTOP). The
             processes are started anew `--launches` times, since the layout of a process's memory makes it faster or
             slower for good.
             In the measured time: forward, backward, all-reduce, optimizer, learning rate, loading of the batch, and
             logging as configured, which in raw DDP is `loss.item()`, and on Ray goes to the recorder and to MLflow on
             SQLite. Not in it: starting, evaluation, checkpoints. What Ray and Paceline do by the
             clock, once a second and rarer, would come up to four times as often in short turns as without any: it is
             overdue whenever they go on. So turns last more than a second, after half a second that is not timed.
             raw DDP: `DistributedDataParallel`, zero_grad, forward, mean cross-entropy, backward, step. Samples, their
             order and the optimizer are Paceline's in all arms. Paceline without Ray: its engine in such processes.
             ratio: seconds of a step over those of raw DDP in the same round, mean over the launches of each one's
             median, with its 95 % bootstrap interval. Aimed at: an interval that ends at 1.02 at most. The final
             weights are compared.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import cpu_name
from scaling_config import choose_config, numbers_of_workers, raw_config

if TYPE_CHECKING:
    from scaling_figures import Comparison, Row

    from paceline.config.experiment import ExperimentConfig

PARTS = ("efficiency", "raw")
PACKAGES = ("torch", "ray", "mlflow", "paceline")


def measure_efficiency(
    args: argparse.Namespace, folder: Path, config: "ExperimentConfig", counts: list[int], use_gpu: bool
) -> dict[str, Any]:
    """The first part, on the Ray that this process is connected to."""
    from scaling_figures import efficiency_rows
    from scaling_workers import ScalingTurn, measure

    from paceline.cluster.session import on_cluster
    from paceline.config.imports import user_folders

    def tell(turn: ScalingTurn) -> None:
        kind = f"round {turn.round}: " if turn.round else "warming up: "
        say(f"{kind}{turn.mode} {turn.workers}: {turn.samples_per_second:,.0f} samples/s")

    folders = () if on_cluster(args.address) else user_folders()
    turns, stamp = measure(config, counts, use_gpu, args.rounds, args.seconds, folder / "ray", folders, tell)
    return {"rows": efficiency_rows(turns), "turns": [turn.__dict__ for turn in turns], "stamp": stamp}


def measure_raw(args: argparse.Namespace, config: "ExperimentConfig") -> dict[str, Any]:
    """The second part, on this machine.

    Raises:
        ConfigError: see `raw_config`.
        ArmFailed: an arm failed.
    """
    from dataclasses import replace

    import torch
    from raw_arms import ARMS, Work
    from raw_ddp import launch
    from scaling_figures import comparisons

    from paceline.cluster.preflight import local_resources, worker_threads
    from paceline.engine.observing.stamp import make_card, make_stamp

    has = local_resources()
    cuda = has.gpus >= 2 and config.scaling.use_gpu is not False
    workers = 2 if cuda or has.cpus >= 2 else 1
    work = Work("", workers, cuda, args.turns, args.warm_up, args.steps)
    tree = raw_config(config, workers, cuda, work.total_steps).model_dump_json()
    work = Work(tree, workers, cuda, args.turns, args.warm_up, args.steps)
    launches = []
    for number in range(args.launches):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            launches.append(launch(work, list(ARMS), Path(folder), number))
        found = comparisons(launches[-1:], args.steps)
        told = ", ".join(f"{each.arm} {each.by_clock.value:.3f}" for each in found[1:])
        say(f"launch {number + 1} of {args.launches}: raw DDP {1000 * found[0].step_seconds:.2f} ms a step; {told}")
    windows = [{name: [each._asdict() for each in mine] for name, mine in found.items()} for found, _ in launches]
    device = torch.device("cuda" if cuda else "cpu")
    card = replace(make_card(device, (), False), threads=worker_threads(config))
    stamp = make_stamp([card] * workers, device, None)
    return {"comparisons": comparisons(launches, args.steps), "windows": windows, "stamp": stamp}


def say(line: str) -> None:
    """How it goes, beside the result."""
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def surroundings(args: argparse.Namespace) -> dict[str, Any]:
    """Where, with what and when this was measured, as far as the stamp does not tell."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        **{name: getattr(args, name) for name in ("rounds", "seconds", "launches", "turns", "warm_up", "steps")},
    }


def table(found: dict[str, Any], where: dict[str, Any]) -> str:
    """The tables of both parts, and the surroundings under them."""
    from scaling_figures import comparison_table, efficiency_table

    lines = []
    if "efficiency" in found:
        lines += [efficiency_table(found["efficiency"]["rows"]), ""]
    if "raw" in found:
        lines += [comparison_table(found["raw"]["comparisons"]), ""]
    return "\n".join([*lines, ", ".join(f"{key} {value}" for key, value in where.items())])


def as_json(found: dict[str, Any], where: dict[str, Any]) -> str:
    """All figures, with every turn's times."""
    told: dict[str, Any] = {part: dict(values) for part, values in found.items()}
    for part, key in (("efficiency", "rows"), ("raw", "comparisons")):
        if part in told:
            told[part][key] = [_named(row) for row in told[part][key]]
    return json.dumps({**told, "surroundings": where}, indent=2)


def _named(row: "Row | Comparison") -> dict[str, Any]:
    """With the intervals as mappings, too."""
    return {key: value._asdict() if hasattr(value, "_asdict") else value for key, value in row._asdict().items()}


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; `config` and `overrides` are taken apart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="*", metavar="CONFIG KEY=VALUE", help="see above")
    parser.add_argument("--workers", metavar="1,2", help="numbers of workers (default: 1, 2, 4, ... as there is room)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="only these")
    parser.add_argument("--rounds", type=int, default=20, help="of the part efficiency (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn there, about (%(default)s)")
    parser.add_argument("--launches", type=int, default=4, help="of the part raw (%(default)s)")
    parser.add_argument("--turns", type=int, default=10, help="of each arm in a launch (%(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="timed steps of a turn (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=60, help="steps of a turn before these (%(default)s)")
    parser.add_argument("--address", metavar="A", help="address of a Ray cluster; default: a private local Ray")
    parser.add_argument("--json", action="store_true", help="print JSON, with every turn's times")
    args = parser.parse_intermixed_args(arguments)
    files = [each for each in args.given if "=" not in each]
    args.config, args.overrides = next(iter(files), None), [each for each in args.given if "=" in each]
    if len(files) > 1:
        parser.error(f"one CONFIG is enough: {' '.join(files)}")
    if min(args.rounds, args.launches, args.turns, args.steps, args.warm_up) < 1 or args.seconds <= 0:
        parser.error("--rounds, --launches, --turns, --steps and --warm-up must be at least 1, and --seconds above 0")
    try:
        args.workers = sorted({int(each) for each in args.workers.split(",")}) if args.workers else None
    except ValueError:
        parser.error(f"--workers takes numbers, such as 1,2: {args.workers}")
    if args.workers and args.workers[0] < 1:
        parser.error("--workers must be at least 1")
    return args


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure and record.

    Raises:
        PacelineError: the config is wrong, the environment lacks something, or a part failed.
    """
    from scaling_record import Record

    from paceline.cluster.preflight import check_resources, cluster_resources, local_resources
    from paceline.cluster.session import connected, on_cluster, prepare_environment
    from paceline.cluster.user_code import runtime_env
    from paceline.cluster.worker_output import only_worker_output

    away = on_cluster(args.address)
    parts = args.parts or (["efficiency"] if away else list(PARTS))
    has_gpus = not away and local_resources().gpus > 0
    config = choose_config(args.config, args.overrides, 2, has_gpus)  # wrong ones are told before anything is started
    found: dict[str, Any] = {}
    if "efficiency" in parts:
        prepare_environment()
        packed = runtime_env(config) if args.address else None
        say("connecting to Ray")
        with redirect_stdout(sys.stderr), connected(args.address, packed), only_worker_output():
            available = cluster_resources()
            counts = args.workers or numbers_of_workers(available, config.scaling.cpus_per_worker)
            config = choose_config(args.config, args.overrides, counts[-1], available.gpus > 0)
            where = "the cluster" if away else "this machine"
            use_gpu = check_resources(config.with_overrides({"scaling.num_workers": counts[-1]}), available, where)
            record = Record(config, args.address)
            found["efficiency"] = measure_efficiency(args, record.folder, config, counts, use_gpu)
    else:
        record = Record(config, args.address)
    if "raw" in parts:
        found["raw"] = measure_raw(args, config)
    where = surroundings(args)
    report = record.write(found, table(found, where), as_json(found, where))
    say(report)
    print(as_json(found, where) if args.json else table(found, where))
    return found


def main() -> None:
    """Measure, and print the tables."""
    args = parse_arguments(sys.argv[1:])
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    from raw_ddp import ArmFailed

    from paceline.errors import FAILED, PacelineError
    from paceline.tracking.redact import redact

    try:
        run(args)
    except (PacelineError, ArmFailed) as error:
        print(redact(getattr(error, "traceback_text", "")), file=sys.stderr)
        print(f"error: {redact(str(error))}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", FAILED))


if __name__ == "__main__":
    main()
