"""The configs that memory_prediction.py predicts and measures: 24 for a CPU, 30 for a GPU."""

from typing import Any

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
"""The parts of the configs by model, and a micro batch size."""
ON_CUDA: dict[str, tuple[Tree, int]] = {
    "resnet50": ({"model": {"name": "resnet50"}, "data": LARGE_IMAGES}, 64),
    "vit_b_16": ({"model": {"name": "vit_b_16"}, "data": LARGE_IMAGES}, 64),
    "convnext": ({"model": {"name": "convnext_tiny"}, "data": LARGE_IMAGES}, 64),
    "gpt2": ({"model": {**GPT2, "embedding_dim": 768}, "data": LONG_TEXT, **LANGUAGE}, 8),
    "efficientnet": ({"model": {"name": "efficientnet_b0"}, "data": LARGE_IMAGES}, 64),
}
ARMS = (
    # precision, activation checkpointing, optimizer, accumulation, micro batches as large as the first one's times
    ("32-true", "none", "sgd", 1, 1),
    ("bf16-mixed", "none", "adamw", 1, 2),
    ("32-true", "full", "adamw", 2, 1),
    ("bf16-mixed", "full", "sgd", 1, 2),
    ("32-true", "selective", "lamb", 1, 1),
    ("bf16-mixed", "none", "sgd", 4, 1),
)


def cases(on_cuda: bool) -> dict[str, Tree]:
    """The configs as trees, by a name that tells what they are."""
    found: dict[str, Tree] = {}
    for model, (parts, size) in (ON_CUDA if on_cuda else ON_CPU).items():
        for precision, checkpointing, optimizer, accumulation, factor in ARMS:
            name = f"{model} {size * factor} x {accumulation} {precision} {checkpointing} {optimizer}"
            found[name] = {
                **parts,
                "name": model,
                "data": {**parts["data"], "micro_batch_size": size * factor},
                "optimizer": {"name": optimizer},
                "trainer": {
                    "precision": precision,
                    "activation_checkpointing": checkpointing,
                    "gradient_accumulation_steps": accumulation,
                },
                "scaling": {"num_workers": 0, "use_gpu": on_cuda},
            }
    return found
