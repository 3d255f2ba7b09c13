"""What each technique of the config brings: speed, peak memory, and whether the training is still the same.

    uv run python jobs/benchmarks/techniques.py                    # about ten minutes on a CPU
    uv run python jobs/benchmarks/techniques.py --parts loading    # one ladder
    uv run python jobs/benchmarks/techniques.py --record           # with a CUDA device: into docs/records/

A part is a ladder: one training config, its first arm, and arms that change fields of it: each technique alone, and all
together; one named `+ ...` comes on top of the arms above it. ladders.py has them all. Without a CUDA device:

resnet14   ResNet for 32 x 32 images, batch 32.
loading    JPEG files that take longer to decode than to train on, with a very small model.

With one:

resnet50   224 x 224 images, batch 256, on the device. Target on an H100: 4,000 images/s.
vit        ViT-B/16, batch 128: the negative control for channels_last, which has nothing to gain there.
gpt        GPT-2 124M, 1024 tokens a sample, 128 samples a step in micro batches of 32. Target on an H100: 50 % MFU.

Each arm trains in a process of its own, so that no technique leaks into another arm, by
`build_trainer(config).train_step()` as `paceline train` does. The processes are started one after the other; then they
take turns of `--turn` seconds. A turn begins with steps that are not timed, and on CUDA the device is waited for only
before and after the timed ones.

speed    samples/s over those of the first arm in the same round. The arm called `again` is the first one a second time
         (A/A): how far it is from 1 is the noise. On CPU also by the CPU time of the training process, which other load
         on the machine leaves alone; what loader processes compute is not in it.
peak     of the memory that tensors take in the second step, measured in a fresh process as memory_prediction.py does:
         weights, buffers, optimizer state, gradients, activations and the batch.
losses   of the first `--check` steps against the first arm's: equal to the bit (the weights too), within rounding (at
         most 0.01 apart; training makes rounding grow), or different by design, such as in a shorter number format, or
         when BatchNorm gets its statistics from smaller micro batches. Anything else is a failure: exit code 1.
MFU      share of the GPU's peak for dense bf16 that the model's own operations make use of: 6 N + 12 L d T
         floating-point operations a token (Chowdhery et al. 2022, arXiv:2204.02311, appendix B) for N parameters
         without position embeddings, L layers of width d, and T tokens of context. What is computed a second time for
         activation checkpointing does not count, and attention counts as if it were not causal.
"""

import math
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import yaml
from arm_process import ArmProcess, Turn
from harness import ArmFailed, Benchmark, Interval, Part, output_of, ratio, take_turns
from ladders import LADDERS, ON_CPU, ON_CUDA, Arm, Changes

from paceline.config.experiment import validate
from paceline.errors import PacelineError
from paceline.memory.measuring import measure_peak

ROUNDING = 0.01
PEAK_TFLOPS = {"NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H200": 989.4, "NVIDIA A100-SXM4-80GB": 312.0}
"""Dense bf16, by the manufacturer's data sheets."""


def run_ladder(name: str, args: Namespace, benchmark: Benchmark) -> Part:
    """Start all arms of a ladder, let them take turns, and compare them with the first one."""
    ladder = LADDERS[name]
    first = next(iter(ladder.arms))
    arms = {arm: each for arm, each in ladder.arms.items() if not args.arms or arm in (first, *args.arms)}
    running: dict[str, ArmProcess] = {}
    peaks: dict[str, int] = {}
    failures: dict[str, str] = {}
    try:
        for arm, each in arms.items():
            try:
                config = validate(ladder.config).with_overrides({**args.set, **each.changes})
                peaks[arm] = measure_peak(config, use_gpu=args.device == "cuda")
                running[arm] = ArmProcess(config.model_dump(mode="json"), args.device, args.threads, args.check)
            except (ArmFailed, PacelineError) as failure:
                failures[arm] = str(failure).partition("\n")[0]
            benchmark.say(f"{name}: {arm}: {failures.get(arm, 'ready')}")
        takes = {arm: partial(process.take_turn, args.turn) for arm, process in running.items()}
        turns, failed = take_turns(takes, args.rounds)
        failures |= failed
        if first in failures:
            raise SystemExit(f"{name}: the first arm failed: {failures[first]}")
    finally:
        for process in running.values():
            process.end()
    facts = {arm: {**running[arm].facts, "peak_bytes": peaks[arm]} for arm in turns}
    return report(ladder.arms, facts, turns, failures, args, {**ladder.config["model"], **of_model(args.set)})


def report(
    arms: Mapping[str, Arm],
    facts: Mapping[str, dict[str, Any]],
    turns: Mapping[str, Sequence[Turn]],
    failures: Mapping[str, str],
    args: Namespace,
    model: Changes,
) -> Part:
    """The table of a ladder; the first arm is the baseline."""
    first = next(iter(turns))
    on_cpu, has_mfu = args.device == "cpu", model.get("name") == "gpt" and args.peak_tflops is not None
    rows, wrong = [], dict(failures)
    for arm, mine in turns.items():
        compared, is_as_expected = compare(arms[arm].expected, facts[arm], facts[first])
        if not is_as_expected:
            wrong[arm] = compared
        rate = statistics.median(turn.samples / turn.seconds for turn in mine)
        milliseconds = 1000 * statistics.median(turn.seconds / turn.steps for turn in mine)
        row = [arm, f"{milliseconds:.1f}", f"{rate:.1f}", speed(mine, turns[first], lambda turn: turn.seconds)]
        row += [speed(mine, turns[first], lambda turn: turn.cpu_seconds)] * on_cpu
        row += [f"{facts[arm]['peak_bytes'] / 2**20:.1f}"]
        row += [f"{mfu_of(rate, facts[arm]['parameters'], model, args.peak_tflops):.1%}"] if has_mfu else []
        rows.append([*row, compared])
    columns = ["arm", "ms a step", "samples/s", "speed by clock", *["by CPU time"] * on_cpu, "peak MiB"]
    columns += [*["MFU"] * has_mfu, "losses"]
    notes = sorted({f"{arm}: {warning}" for arm, each in facts.items() for warning in each["warnings"]})
    raw = {"changes": {arm: each.changes for arm, each in arms.items()}, "facts": facts, "turns": turns}
    return Part(columns, rows, failures=wrong, notes=notes, raw=raw)


def speed(mine: Sequence[Turn], theirs: Sequence[Turn], seconds: Callable[[Turn], float]) -> Interval:
    """Samples per second relative to the other's in the same round."""
    return ratio([[seconds(turn) / turn.samples for turn in theirs]], [[seconds(turn) / turn.samples for turn in mine]])


def compare(expected: str, mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[str, bool]:
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


def mfu_of(samples_per_second: float, parameters: int, model: Changes, peak_tflops: float) -> float:
    """Model FLOPs utilization of a GPT, 0 to 1. Its `parameters` have the position embeddings, which do not count."""
    depth, width, context = model["num_layers"], model["embedding_dim"], model["context_length"]
    operations_per_token = 6 * (parameters - context * width) + 12 * depth * width * context
    return float(samples_per_second * context * operations_per_token / (peak_tflops * 1e12))


def of_model(changes: Changes) -> Changes:
    """The changes of the section `model`, without its name."""
    return {key.removeprefix("model."): value for key, value in changes.items() if key.startswith("model.")}


def main() -> int:
    """Measure, and print the tables."""
    names = sorted({arm for ladder in LADDERS.values() for arm in ladder.arms})
    benchmark = Benchmark("techniques", __doc__, ("torch", "torchvision", "paceline"), arms=names, parts=list(LADDERS))
    benchmark.number("--rounds", 5, 1, "of all arms of a ladder")
    benchmark.number("--turn", 1.0, 0.05, "seconds of an arm's turn, at least a step", least=0.01)
    benchmark.number("--check", 5, 3, "first steps whose losses are compared", least=3)
    benchmark.number("--threads", 1, 1, "of each arm")
    benchmark.parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="change all arms' config")
    benchmark.parser.add_argument("--peak-tflops", type=float, help="the GPU's peak for dense bf16 (H100 SXM: 989.4)")
    args = benchmark.parse()
    gpu = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").partition("\n")[0]
    args.device = "cuda" if gpu else "cpu"
    args.set = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in args.set)}
    args.peak_tflops = args.peak_tflops or PEAK_TFLOPS.get(gpu)
    if args.quick and not args.parts and not args.arms:
        args.parts, args.arms = ["resnet14"], ["full checkpointing"]
        args.set = {"data.shape": [3, 16, 16], "data.num_samples": 16, "data.global_batch_size": 8, **args.set}
    parts = args.parts or (ON_CUDA if gpu else ON_CPU)
    return benchmark.finish({name: run_ladder(name, args, benchmark) for name in parts})


if __name__ == "__main__":
    sys.exit(main())
