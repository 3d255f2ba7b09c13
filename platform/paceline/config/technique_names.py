"""Names allowed in `tuneup.only` and `tuneup.skip`: the techniques of `paceline tuneup`, and fixes of bottlenecks."""

import re

TECHNIQUES = (
    *(f"loader-{processes}" for processes in (1, 2, 4, 8, 16, 32)),
    *(f"prefetch-{batches}" for batches in (4, 8)),
    *("cache-memory", "cache-device", "pin-memory"),
    *(f"batch-x{factor}" for factor in (2, 4, 8, 16, 32, 64)),
    *(f"micro-batch-x{factor}" for factor in (2, 4, 8, 16, 32, 64)),
    *("bf16", "fp16", "tf32", "all-cores"),
    *("channels-last", "compile", "cudnn-benchmark", "no-redundant-bias", "fused-optimizer"),
    *("set-to-none", "log-every-50"),
    *("exchange-bf16", "exchange-fp16", "buckets-5", "buckets-100", "static-graph", "bucket-view", "fsdp"),
    *("checkpointing-selective", "checkpointing-full", "accumulation-2"),
)
"""All techniques, including those that are not applicable to most models."""
BOTTLENECKS = ("data", "small-batch", "synchronisation", "communication", "straggler", "logging", "compute")
"""Bottlenecks that fixes are named after: the first fix of `data` is `fix-data-1`."""
_FIX = re.compile(rf"fix-({'|'.join(BOTTLENECKS)})-[1-9][0-9]*")


def is_technique(name: str) -> bool:
    """Return True if a technique can have this name, on any model and machine."""
    return name in TECHNIQUES or _FIX.fullmatch(name) is not None


def all_names() -> list[str]:
    """Return all known names, for hints about misspelt ones."""
    return [*TECHNIQUES, *(f"fix-{kind}-1" for kind in BOTTLENECKS)]
