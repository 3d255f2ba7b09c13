"""How far `paceline plan`'s prediction of the peak memory is from what training takes.

    uv run --group bench python jobs/benchmarks/memory_prediction.py    # about ten minutes on a CPU
    ... --only cnn gpt                                                  # configs whose names hold one of these
    ... --json FILE                                                     # also write the figures down

24 configs on a CPU, or 30 where there is a CUDA device. All of them are predicted first, and with `--json` written to
the file; only then is each measured, in a fresh process: by the profiler's memory events on a CPU, by
`torch.cuda.max_memory_allocated` on CUDA. Either is the peak of the second optimizer step.

accelerate   what `accelerate estimate-memory` says of training the model with Adam: four times its weights, or twice
             with mixed precision, whatever the batch. Left out where accelerate is not installed.

The exit code is 1 when the mean error is above 3 %, or one is above 8 %.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from memory_cases import cases

from paceline.config.loading import validate
from paceline.study.memory.measuring import measure_peak
from paceline.study.memory.predicting import ask

MEAN_ERROR, WORST_ERROR = 0.03, 0.08

Row = dict[str, Any]


def main() -> int:
    """Predict, measure, print; returns the exit code."""
    args = _arguments()
    chosen = {
        name: tree
        for name, tree in cases(args.device == "cuda").items()
        if not args.only or any(part in name for part in args.only)
    }
    rows = [_predicted(name, tree, args.device == "cuda") for name, tree in chosen.items()]
    _write(args.json, rows)
    print(f"{'config':<48} {'measured':>10} {'predicted':>10} {'error':>8} {'accelerate':>11} {'error':>8}", flush=True)
    for row, tree in zip(rows, chosen.values(), strict=True):
        row["measured_bytes"] = measure_peak(validate(tree), use_gpu=args.device == "cuda")
        row["error"] = row["predicted_bytes"] / row["measured_bytes"] - 1
        print(_line(row), flush=True)
        _write(args.json, rows)
    mean, worst = errors(rows)
    print(f"mean error {mean:.2%}, worst {worst:.2%}")
    return int(mean > MEAN_ERROR or worst > WORST_ERROR)


def errors(rows: list[Row]) -> tuple[float, float]:
    """The mean and the largest of the errors without their signs."""
    sizes = [abs(row["error"]) for row in rows]
    return statistics.fmean(sizes), max(sizes)


def _predicted(name: str, tree: Row, on_cuda: bool) -> Row:
    config = validate(tree)
    memory = ask(config, [{}], on_cuda, facts=False)["points"][0]["memory"]
    return {
        "config": name,
        "predicted_bytes": sum(memory.values()),
        "memory": memory,
        "accelerate_bytes": _peer(config),
    }


def _peer(config: Any) -> int | None:
    try:
        from accelerate.commands.estimate import estimate_training_usage
        from accelerate.utils import calculate_maximum_sizes
    except ImportError:
        return None
    import torch

    with torch.device("meta"):
        total, _ = calculate_maximum_sizes(config.model.build())
    number_format = "float32" if config.trainer.precision == "32-true" else "bfloat16"
    return int(max(estimate_training_usage(total, number_format).values()))


def _line(row: Row) -> str:
    measured, peer = row["measured_bytes"], row["accelerate_bytes"]
    told = f"{peer / 2**20:>10,.1f}M {peer / measured - 1:>+8.1%}" if peer is not None else f"{'-':>11} {'-':>8}"
    sizes = f"{measured / 2**20:>9,.1f}M {row['predicted_bytes'] / 2**20:>9,.1f}M {row['error']:>+8.2%}"
    return f"{row['config']:<48} {sizes} {told}"


def _write(path: str | None, rows: list[Row]) -> None:
    if path:
        Path(path).write_text(json.dumps(rows, indent=1))


def _arguments() -> argparse.Namespace:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", default=[], metavar="TEXT", help="configs whose names hold one of these")
    parser.add_argument("--json", metavar="FILE", help="write the figures down")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
