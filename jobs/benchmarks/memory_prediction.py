"""How far `paceline plan`'s prediction of the peak memory is from what training takes.

    uv run --group bench python jobs/benchmarks/memory_prediction.py

24 configs of four models on a CPU, or 30 of five where there is a CUDA device; and ten of models from timm and
transformers, which have to be installed. All of them are predicted first; then each is measured in a fresh process: by
the profiler's memory events on a CPU, `torch.cuda.max_memory_allocated` on CUDA. Either is the peak of the second
optimizer step. Takes about 15 minutes on a CPU.

accelerate   what `accelerate estimate-memory` says of training the model with Adam: four times its weights, or twice
             with mixed precision, whatever the batch. Left out where accelerate is not installed.

The exit code is 1 when the mean error is above 3 %, or one is above 8 %.
"""

import statistics
import sys
from collections.abc import Sequence
from typing import Any

from harness import Benchmark, Part, Target, exactly

from paceline.config.experiment import validate
from paceline.memory.measuring import measure_peak
from paceline.memory.predicting import ask

MEAN_ERROR, WORST_ERROR = 0.03, 0.08

Row = dict[str, Any]
Tree = dict[str, Any]

IMAGES = {"name": "synthetic", "shape": [3, 64, 64], "num_samples": 256, "num_validation_samples": 8}
LARGE_IMAGES = {"name": "synthetic", "shape": [3, 224, 224], "num_samples": 512, "num_validation_samples": 8}
TEXT = {"name": "text_file"}
LONG_TEXT = {"name": "text_file", "context_length": 1024}
GPT2 = {"name": "gpt", "vocab_size": 50304, "context_length": 1024, "num_layers": 12, "num_heads": 12}
LANGUAGE: Tree = {"task": {"name": "language_modeling"}}

ON_CPU: dict[str, tuple[Tree, int]] = {
    "cnn": ({"model": {"name": "cnn"}, "data": {"name": "mnist5k"}}, 256),
    "resnet18": ({"model": {"name": "resnet18", "num_classes": 10}, "data": IMAGES}, 16),
    "gpt": ({"model": {"name": "gpt"}, "data": TEXT, **LANGUAGE}, 16),
    "convnext": ({"model": {"name": "convnext_tiny", "num_classes": 10}, "data": IMAGES}, 8),
}
"""By model: its sections of the config, and a micro batch size."""
ON_CUDA: dict[str, tuple[Tree, int]] = {
    "resnet50": ({"model": {"name": "resnet50"}, "data": LARGE_IMAGES}, 64),
    "vit_b_16": ({"model": {"name": "vit_b_16"}, "data": LARGE_IMAGES}, 64),
    "convnext": ({"model": {"name": "convnext_tiny"}, "data": LARGE_IMAGES}, 64),
    "gpt2": ({"model": {**GPT2, "embedding_dim": 768}, "data": LONG_TEXT, **LANGUAGE}, 8),
    "efficientnet": ({"model": {"name": "efficientnet_b0"}, "data": LARGE_IMAGES}, 64),
}
THIRD_PARTY: tuple[tuple[str, Tree, int, str, str, str, int], ...] = (
    # data, model or its arguments, micro batch, precision, activation checkpointing, optimizer, accumulation
    ("timm", {"model_name": "resnet26d"}, 16, "32-true", "none", "sgd", 1),
    ("timm", {"model_name": "mobilenetv3_small_100"}, 32, "bf16-mixed", "none", "adamw", 1),
    ("timm", {"model_name": "efficientnet_b0"}, 16, "32-true", "none", "adamw", 2),
    ("timm", {"model_name": "vit_tiny_patch16_224", "img_size": 64}, 32, "bf16-mixed", "full", "adamw", 1),
    ("timm", {"model_name": "convnext_atto"}, 16, "32-true", "none", "sgd", 4),
    ("transformers", {"kind": "gpt2"}, 8, "32-true", "none", "adamw", 1),
    ("transformers", {"kind": "bert"}, 8, "bf16-mixed", "none", "adamw", 1),
    ("transformers", {"kind": "distilbert"}, 16, "32-true", "full", "sgd", 1),
    ("transformers", {"kind": "llama"}, 8, "bf16-mixed", "none", "sgd", 2),
    ("transformers", {"kind": "t5"}, 8, "32-true", "none", "adamw", 1),
)
ARMS = (
    # precision, activation checkpointing, optimizer, accumulation, micro batches as large as the first one's times
    ("32-true", "none", "sgd", 1, 1),
    ("bf16-mixed", "none", "adamw", 1, 2),
    ("32-true", "full", "adamw", 2, 1),
    ("bf16-mixed", "full", "sgd", 1, 2),
    ("32-true", "selective", "lamb", 1, 1),
    ("bf16-mixed", "none", "sgd", 4, 1),
)


def tree_of(name: str, parts: Tree, size: int, techniques: tuple[str, str, str, int], on_cuda: bool) -> Tree:
    """One config.

    Args:
        parts: sections of the model and its data.
        size: samples of a micro batch.
        techniques: precision, activation checkpointing, optimizer and accumulation.
    """
    precision, checkpointing, optimizer, accumulation = techniques
    return {
        **parts,
        "name": name,
        "data": {**parts["data"], "micro_batch_size": size},
        "optimizer": {"name": optimizer},
        "trainer": {
            "precision": precision,
            "activation_checkpointing": checkpointing,
            "gradient_accumulation_steps": accumulation,
        },
        "scaling": {"num_workers": 0, "use_gpu": on_cuda},
    }


def cases(on_cuda: bool) -> dict[str, Tree]:
    """The configs as trees, by name."""
    found: dict[str, Tree] = {}
    for model, (parts, size) in (ON_CUDA if on_cuda else ON_CPU).items():
        for precision, checkpointing, optimizer, accumulation, factor in ARMS:
            name = f"{model} {size * factor} x {accumulation} {precision} {checkpointing} {optimizer}"
            techniques = precision, checkpointing, optimizer, accumulation
            found[name] = tree_of(model, parts, size * factor, techniques, on_cuda)
    return found


def third_party_cases(on_cuda: bool) -> dict[str, Tree]:
    """The configs of models from timm and transformers."""
    found: dict[str, Tree] = {}
    for library, args, size, precision, checkpointing, optimizer, accumulation in THIRD_PARTY:
        if library == "timm":
            model = {"path": "timm:create_model", "args": {**args, "num_classes": 10}}
            parts: Tree = {"model": model, "data": IMAGES}
        else:
            model = {"path": "third_party_models:build", "args": args}
            data = {"path": "third_party_models:texts", "args": args}
            parts = {"model": model, "data": data, "task": {"name": "model_loss"}}
        name = f"{library} {next(iter(args.values()))} {size} x {accumulation} {precision} {checkpointing} {optimizer}"
        techniques = precision, checkpointing, optimizer, accumulation
        found[name] = tree_of("third-party", parts, size, techniques, on_cuda)
    return found


def errors(rows: Sequence[Row]) -> tuple[float, float]:
    """The mean and the largest of the errors without their signs."""
    sizes = [abs(row["error"]) for row in rows]
    return statistics.fmean(sizes), max(sizes)


def predicted(name: str, tree: Tree, on_cuda: bool) -> Row:
    """The prediction of one config, by its parts."""
    config = validate(tree)
    memory = ask(config, [{}], on_cuda, facts=False)["points"][0]["memory"]
    total = sum(memory.values())
    return {"config": name, "predicted_bytes": total, "memory": memory, "accelerate_bytes": accelerate_bytes(config)}


def accelerate_bytes(config: Any) -> int | None:
    """What accelerate says; None where it is not installed."""
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


def report(rows: Sequence[Row]) -> Part:
    """The table of all configs."""
    mean, worst = errors(rows)
    targets = [
        Target("mean error of the prediction", exactly(mean), most=MEAN_ERROR),
        Target("worst error of the prediction", exactly(worst), most=WORST_ERROR),
    ]
    peers = [row["accelerate_bytes"] / row["measured_bytes"] - 1 for row in rows if row["accelerate_bytes"]]
    notes = [f"accelerate: mean error {statistics.fmean(map(abs, peers)):.0%}"] if peers else []
    failures = {each.text: each.verdict for each in targets if each.verdict != "met"}
    columns = ("config", "measured MiB", "predicted MiB", "error", "accelerate MiB")
    sizes = ("measured_bytes", "predicted_bytes", "accelerate_bytes")
    mib = [[f"{row[key] / 2**20:,.1f}" if row[key] else "-" for key in sizes] for row in rows]
    table = [(row["config"], *each[:2], f"{row['error']:+.2%}", each[2]) for row, each in zip(rows, mib, strict=True)]
    return Part(columns, table, targets, failures, notes, raw=rows)


def main() -> int:
    """Predict, measure, and print the table."""
    import torch

    models = sorted({*ON_CPU, *ON_CUDA, "timm", "transformers"})
    benchmark = Benchmark("memory_prediction", __doc__, ("torch", "accelerate", "paceline"), parts=models)
    args = benchmark.parse()
    on_cuda = torch.cuda.is_available()
    every = {**cases(on_cuda), **third_party_cases(on_cuda)}
    trees = {name: tree for name, tree in every.items() if name.split()[0] in (args.parts or models)}
    names = list(trees)[: 1 if args.quick else None]
    if not names:
        benchmark.parser.error("--parts names no model of this device")
    rows = [predicted(name, trees[name], on_cuda) for name in names]
    for row in rows:
        row["measured_bytes"] = measure_peak(validate(trees[row["config"]]), use_gpu=on_cuda)
        row["error"] = row["predicted_bytes"] / row["measured_bytes"] - 1
        benchmark.say(f"{row['config']}: {row['error']:+.2%}")
    return benchmark.finish({"memory": report(rows)})


if __name__ == "__main__":
    sys.exit(main())
