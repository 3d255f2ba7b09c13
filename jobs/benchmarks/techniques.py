"""What each technique of the config brings: speed, peak memory, and whether the training is still the same.

    uv run python jobs/benchmarks/techniques.py                     # about ten minutes on a CPU
    uv run python jobs/benchmarks/techniques.py --ladders loading   # a part of it
    uv run python jobs/benchmarks/techniques.py --record            # with a CUDA device: into docs/records/

A ladder is one training config, its first arm, and arms that change fields of it: each technique alone, and all
together; one named `+ ...` comes on top of the arms above it. ladders.py has them all. Without a CUDA device:

resnet14   ResNet for 32 x 32 images, batch 32.
loading    JPEG files that take longer to decode than to train on, with a very small model.

With one:

resnet50   224 x 224 images, batch 256, on the device. Aimed at on an H100: 4,000 images/s.
vit        ViT-B/16, batch 128: the negative control for channels_last, which has nothing to gain there.
gpt        GPT-2 124M, 1024 tokens a sample, 128 samples a step in micro batches of 32. Aimed at on an H100: 50 % MFU.

Each arm trains in a process of its own, so that no technique leaks into another arm, by
`build_trainer(config).train_step()` as `paceline train` does. The processes are started one after the other; then they
take turns of `--turn` seconds. A round is a turn of every arm, in a new random order. A turn begins with steps that are
not timed, and on CUDA the device is waited for only before and after the timed ones.

speed      samples/s over those of the first arm in the same round: median over the rounds, with its 95 % bootstrap
           interval. The arm called `again` is the first one a second time: how far it is from 1 is the noise. On CPU
           also by the CPU time of the training process, which other load on the machine leaves alone; what loader
           processes compute is not in it.
peak       of the memory that tensors take in the second step: weights, buffers, optimizer state, gradients,
           activations and the batch, without data sets. On CUDA as torch.cuda.max_memory_allocated tells; on CPU as
           torch.profiler does: with the batches that have come from loader processes by then, and without memory that
           a library takes by itself.
losses     of the first `--check` steps against the first arm's: equal to the bit (the weights too), within rounding
           (at most 0.01 apart; training makes rounding grow), or different by design, such as in a shorter number
           format, or when BatchNorm gets its statistics from smaller micro batches. What is not as expected is written
           in capitals, and the exit code is 1.
MFU        share of the GPU's peak for dense bf16 that the model's own operations make use of: 6 N + 12 L d T
           floating-point operations a token (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) for N parameters
           without position embeddings, L layers of width d, and T tokens of context. What is computed a second time
           for activation checkpointing does not count, and attention counts as if it were not causal.
"""

import argparse
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import yaml
from ladders import LADDERS, ON_CPU, ON_CUDA, Arm, Changes
from measuring import bootstrap, cpu_name
from one_arm import Turn, serve

ROUNDING = 0.01
PEAK_TFLOPS = {"NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H200": 989.4, "NVIDIA A100-SXM4-80GB": 312.0}
"""Dense bf16, by the manufacturer's data sheets."""
FORKS = get_context("forkserver")
"""One server imports what is slow to import and computes nothing; each arm is a fork of it."""
RECORDS = Path(__file__).resolve().parents[2] / "docs" / "records"

Row = dict[str, Any]
Say = Callable[[str], None]


class ArmProcess:
    """An arm that has been started, and waits for its turns."""

    def __init__(self, tree: Changes, changes: Changes, args: argparse.Namespace) -> None:
        self.turns: list[Turn] = []
        self.facts: dict[str, Any] = {}
        self.failure = ""
        self._pipe, theirs = FORKS.Pipe()
        arguments = (theirs, tree, changes, args.device, args.threads, args.check)
        self._process = FORKS.Process(target=serve, args=arguments)
        start = perf_counter()
        self._process.start()
        theirs.close()
        self.facts = self._receive() or {}
        self.start_seconds = perf_counter() - start
        """Until the end of the first steps, compilation included."""

    def take_turn(self, seconds: float) -> None:
        """Train for about so long."""
        self._pipe.send(seconds)
        turn = self._receive()
        if turn is not None:
            self.turns.append(turn)

    def end(self) -> None:
        """End the process."""
        if not self.failure:
            self._pipe.send(None)
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            answer = "the process died"
        if isinstance(answer, str):
            self.failure = answer
            return None
        return answer


def run_ladder(name: str, args: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Start all arms of a ladder, let them take turns, and compare them with the first one."""
    tree = LADDERS[name].config
    arms = chosen_arms(name, args.arms)
    running: dict[str, ArmProcess] = {}
    try:
        for arm, each in arms.items():
            running[arm] = started = ArmProcess(tree, {**args.set, **each.changes}, args)
            say(f"{name}: {arm}: {started.failure or f'ready after {started.start_seconds:.0f} s'}")
            require_first(name, running)
        take_rounds(name, running, args, say)
    finally:
        for process in running.values():
            process.end()
    first = require_first(name, running)
    rows = [row_of(arm, arms[arm], process, first) for arm, process in running.items()]
    if tree["model"].get("name") == "gpt":
        add_mfu(rows, {**tree["model"], **model_changes(args.set)}, args.peak_tflops)
    return {"surroundings": surroundings(args), "config": tree, "set": args.set, "arms": rows}


def chosen_arms(ladder: str, names: list[str] | None) -> dict[str, Arm]:
    """The first arm of a ladder, and those of some names; None for all."""
    arms = LADDERS[ladder].arms
    return {name: arm for name, arm in arms.items() if names is None or name in (next(iter(arms)), *names)}


def require_first(ladder: str, running: dict[str, ArmProcess]) -> ArmProcess:
    """The arm that the others are compared with.

    Raises:
        SystemExit: it failed.
    """
    first = next(iter(running.values()))
    if first.failure:
        raise SystemExit(f"{ladder}: the first arm failed: {first.failure}")
    return first


def take_rounds(name: str, running: dict[str, ArmProcess], args: argparse.Namespace, say: Say) -> None:
    """All rounds. An arm that fails takes no more turns, and all of its turns are forgotten."""
    draw = random.Random(0)
    for number in range(1, args.rounds + 1):
        for arm in draw.sample(list(running), len(running)):
            if not running[arm].failure:
                running[arm].take_turn(args.turn)
        say(f"{name}: round {number} of {args.rounds}")


def row_of(name: str, arm: Arm, process: ArmProcess, first: ArmProcess) -> Row:
    """What is told of one arm."""
    if process.failure:
        return {"arm": name, "changes": arm.changes, "failure": process.failure, "is_as_expected": False}
    text, is_as_expected = compare(arm.expected, process.facts, first.facts)
    return {
        "arm": name,
        "changes": arm.changes,
        **process.facts,
        "samples_per_second": statistics.median(turn.samples / turn.seconds for turn in process.turns),
        "speed": speed(process.turns, first.turns, lambda turn: turn.seconds),
        "speed_by_cpu_time": speed(process.turns, first.turns, lambda turn: turn.cpu_seconds),
        "losses_compared": text,
        "is_as_expected": is_as_expected,
        "turns": [turn._asdict() for turn in process.turns],
    }


def speed(mine: list[Turn], theirs: list[Turn], seconds: Callable[[Turn], float]) -> dict[str, float]:
    """Samples per second relative to the other's in the same round: the median, with its interval."""
    ratios = [
        own.samples / seconds(own) * seconds(other) / other.samples for own, other in zip(mine, theirs, strict=True)
    ]
    low, high = bootstrap(ratios)
    return {"ratio": statistics.median(ratios), "low": low, "high": high}


def compare(expected: str, mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[str, bool]:
    """How the losses differ from the first arm's, in words, and whether that was to be expected."""
    differences = [abs(one - other) for one, other in zip(mine["losses"], theirs["losses"], strict=True)]
    if not all(map(math.isfinite, differences)):
        return f"NOT FINITE: {mine['losses']}", False
    difference = max(differences)
    if difference == 0 and mine["weights_sha256"] == theirs["weights_sha256"]:
        return "equal to the bit", True
    if expected == "design":
        return f"differ by design, {difference:.1e}", True
    if expected == "rounding" and difference <= ROUNDING:
        return f"equal but for rounding, {difference:.1e}", True
    return f"NOT EQUAL: {difference:.1e}", False


def add_mfu(rows: list[Row], model: Changes, peak_tflops: float | None) -> None:
    """Put the model FLOPs utilization into the rows of a GPT; none where the GPU's peak is not known."""
    depth, width, context = model["num_layers"], model["embedding_dim"], model["context_length"]
    for row in rows:
        if "failure" not in row and peak_tflops is not None:
            parameters = row["parameters"] - context * width
            tokens_per_second = row["samples_per_second"] * context
            row["mfu"] = mfu(tokens_per_second, parameters, depth, width, context, peak_tflops)


def mfu(
    tokens_per_second: float, parameters: int, num_layers: int, width: int, context: int, peak_tflops: float
) -> float:
    """Model FLOPs utilization (Chowdhery et al. 2022, arXiv:2204.02311, appendix B), 0 to 1.

    Args:
        parameters: of the model, without position embeddings.
        width: of the model: its heads times the width of each.
        context: tokens of a sample.
        peak_tflops: the device's peak in 10^12 operations a second.
    """
    operations_per_token = 6 * parameters + 12 * num_layers * width * context
    return tokens_per_second * operations_per_token / (peak_tflops * 1e12)


def model_changes(changes: Changes) -> Changes:
    """The changes of the section `model`, without its name."""
    return {key.removeprefix("model."): value for key, value in changes.items() if key.startswith("model.")}


def surroundings(args: argparse.Namespace) -> dict[str, Any]:
    """Where, with what and when this was measured."""
    device = torch.cuda.get_device_name() if args.device == "cuda" else "none"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": device,
        "driver": output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cpu": cpu_name(),
        "bf16_on_cpu": "in hardware" if cpu_has("avx512_bf16", "amx_bf16", "bf16") else "emulated",
        "cores": os.cpu_count(),
        "threads": args.threads,
        "load_average": round(os.getloadavg()[0], 2),
        "commit": output_of("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "cuda": torch.version.cuda if args.device == "cuda" else "none",
        "cudnn": torch.backends.cudnn.version() if args.device == "cuda" else "none",
        "rounds": args.rounds,
        "turn": args.turn,
        "check": args.check,
        "peak_tflops": args.peak_tflops,
        "command": " ".join(["techniques.py", *sys.argv[1:]]),
    }


def output_of(*command: str) -> str:
    """What a command prints; empty where it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def cpu_info(key: str) -> str:
    """A line of Linux's description of the first core; empty elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")


def cpu_has(*features: str) -> bool:
    """Whether the processor has one of some features, by Linux's names for them."""
    return bool({*cpu_info("flags").split(), *cpu_info("Features").split()} & set(features))


def table(name: str, result: dict[str, Any]) -> str:
    """The table of a ladder; warnings and surroundings under it."""
    rows = result["arms"]
    columns = ["speed"] if result["surroundings"]["gpu"] != "none" else ["speed", "speed_by_cpu_time"]
    heads = {"speed": "speed by clock", "speed_by_cpu_time": "by CPU time"}
    has_mfu = any("mfu" in row for row in rows)
    head = f"{name:19} {'ms/step':>8} {'samples/s':>10} {' '.join(f'{heads[column]:>20}' for column in columns)}"
    lines = [f"{head} {'peak MiB':>9}{'    MFU' * has_mfu}  losses", *(line_of(row, columns, has_mfu) for row in rows)]
    told = {f"{row['arm']}: {warning}" for row in rows for warning in row.get("warnings", [])}
    where = ", ".join(f"{key} {value}" for key, value in result["surroundings"].items() if value not in ("", None))
    changed = [f"set: {result['set']}"] if result["set"] else []
    return "\n".join([*lines, "", *sorted(told), *changed, where])


def line_of(row: Row, columns: list[str], has_mfu: bool) -> str:
    """One arm's line of the table."""
    if "failure" in row:
        return f"{row['arm']:19} FAILED: {row['failure']}"
    milliseconds = 1000 * statistics.median(turn["seconds"] / turn["steps"] for turn in row["turns"])
    ratios = " ".join(f"{'{ratio:.2f} ({low:.2f}-{high:.2f})'.format(**row[column]):>20}" for column in columns)
    share = f" {100 * row['mfu']:5.1f}%" if "mfu" in row else "       " * has_mfu
    rate, peak = row["samples_per_second"], row["peak_bytes"] / 2**20
    return f"{row['arm']:19} {milliseconds:8.1f} {rate:10.1f} {ratios} {peak:9.1f}{share}  {row['losses_compared']}"


def write_record(folder: Path, ladders: dict[str, dict[str, Any]], log: list[str]) -> Path:
    """Put tables, numbers and log into `<folder>/<date>_<gpu>/`; ladders that are there already stay.

    Returns:
        The folder of the record.
    """
    where = next(iter(ladders.values()))["surroundings"]
    gpu = re.sub(r"[^a-z0-9]+", "-", where["gpu"].lower()).strip("-")
    record = folder / f"{where['date'][:10]}_{gpu}"
    record.mkdir(parents=True, exist_ok=True)
    results = record / "results.json"
    whole = {**(json.loads(results.read_text()) if results.exists() else {}), **ladders}
    results.write_text(json.dumps(whole, indent=2) + "\n")
    tables = [f"```\n{table(name, result)}\n```\n" for name, result in whole.items()]
    head = f"# Techniques on {where['gpu']}, {where['date'][:10]}\n"
    text = (
        "The columns are explained in `jobs/benchmarks/techniques.py`; configs and raw numbers are in results.json.\n"
    )
    (record / "README.md").write_text("\n".join([head, text, *tables]))
    with (record / "log").open("a") as file:
        file.writelines(f"{line}\n" for line in log)
    return record


def parse_arguments() -> argparse.Namespace:
    """The command line; `device` is added."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ladders", nargs="+", choices=LADDERS, help="only these")
    parser.add_argument("--arms", nargs="+", help="only these arms of each ladder, and its first one")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument(
        "--turn", type=float, default=1.0, help="seconds of an arm's turn, at least a step (%(default)s)"
    )
    parser.add_argument(
        "--check", type=int, default=5, help="steps whose losses are compared, at least 3 (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each arm (%(default)s)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="change the config of all arms")
    parser.add_argument("--peak-tflops", type=float, help="the GPU's peak for dense bf16 (H100 SXM: 989.4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write configs and raw numbers there")
    parser.add_argument("--record", nargs="?", type=Path, const=RECORDS, metavar="FOLDER", help="record the run there")
    args = parser.parse_args()
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    args.ladders = args.ladders or (ON_CUDA if args.device == "cuda" else ON_CPU)
    args.set = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in args.set)}
    if args.peak_tflops is None and args.device == "cuda":
        args.peak_tflops = PEAK_TFLOPS.get(torch.cuda.get_device_name())
    if args.record and args.device == "cpu":
        parser.error("--record is for runs on a GPU, and there is no CUDA device")
    if args.rounds < 1 or args.check < 3 or args.threads < 1 or args.turn <= 0:
        parser.error("--rounds and --threads must be at least 1, --check at least 3, and --turn above 0")
    return args


def prepare_processes(threads: int) -> None:
    """Settings that the arms' processes start with."""
    FORKS.set_forkserver_preload(["torch", "torch.profiler", "paceline.engine.build"])
    os.environ["OMP_NUM_THREADS"] = str(threads)
    # the profiler warns of memory that was allocated before it began, and that there is no GPU
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def main() -> None:
    """Measure, and print the tables."""
    args = parse_arguments()
    prepare_processes(args.threads)
    log: list[str] = []
    results = {}

    def say(line: str) -> None:
        log.append(f"{datetime.now(UTC):%H:%M:%S} {line}")
        print(log[-1], file=sys.stderr, flush=True)

    for name in args.ladders:
        results[name] = run_ladder(name, args, say)
        print(f"{table(name, results[name])}\n", flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=2) + "\n")
        if args.record:
            say(f"recorded in {write_record(args.record, {name: results[name]}, log)}")
            log.clear()
    sys.exit(not all(row["is_as_expected"] for result in results.values() for row in result["arms"]))


if __name__ == "__main__":
    main()
