"""Findings of a tune-up as they may come out, with each kind of verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.tuneups.outcome import Beside, Findings, Quality, TechniqueResult

EQUIVALENT = Quality("equivalent", "val/accuracy", -0.001, (-0.004, 0.002), 5, True, 0.01)
WORSE = Quality("worse", "val/accuracy", -0.04, (-0.05, -0.03), 5, False, 0.01)


def technique(name: str, family: str, verdict: Any, speed: float, **others: Any) -> TechniqueResult:
    plain = TechniqueResult(
        name, {f"own.{name}": 1}, verdict, f"what {name} does", family, speed, (speed - 0.02, speed + 0.02)
    )
    return replace(plain, **{"pairs": 6, "builds": 4, "quality": Quality("same"), **others})


def findings(prefix: str = "") -> Findings:
    """Caching and bf16 are recommended together; bf16 shows nothing alone.

    Args:
        prefix: what all names begin with.
    """
    cache, bf16 = f"{prefix}cache", f"{prefix}bf16"
    techniques = (
        technique(cache, "loading", "gain", 2.74, peak_memory_ratio=1.0, is_recommended=True),
        technique(f"{prefix}loader-2", "loading", "gain", 1.13, peak_memory_ratio=1.0),
        technique(bf16, "precision", "no gain", 1.01, peak_memory_ratio=0.61, is_recommended=True, quality=EQUIVALENT),
        technique(f"{prefix}channels-last", "layout", "no gain", 0.99, predicted_memory_ratio=1.04),
        technique(f"{prefix}seldom-logged", "logging", "gain", 1.03),
        technique(
            f"{prefix}compile", "compile", "regression", 0.88, build_seconds=7.5, warnings=("it breaks the graph",)
        ),
        technique(f"{prefix}halves", "accumulation", "regression", 0.87, peak_memory_ratio=0.56),
        technique(f"{prefix}batch", "batch", "regression", 1.9, quality=WORSE),
        TechniqueResult(
            f"{prefix}fp16", {"trainer.precision": "16-mixed"}, "not applicable", f"{prefix}it is for GPUs"
        ),
    )
    beside = (
        Beside(bf16, (cache,), "helps", "faster", 1.33, (1.3, 1.34), 8),
        Beside(f"{prefix}channels-last", (cache,), "helps", "slower", 0.95, (0.94, 0.96), 8),
        Beside(f"{prefix}compile", (cache, bf16), "helps", "not measured", reason="there was no time for it"),
        Beside(f"{prefix}seldom-logged", (cache, bf16), "needed", "similar", 1.0, (0.99, 1.01), 40),
    )
    return Findings(
        techniques=techniques,
        noise=0.004,
        recommended={"data.cache": "memory", "trainer.precision": "bf16-mixed", "data.micro_batch_size": None},
        speedup=3.61,
        speedup_interval=(3.5, 3.7),
        builds=4,
        quality=EQUIVALENT,
        peak_memory_ratio=0.62,
        split={"data": 0.62, "transfer": 0.0004, "forward": 0.2, "backward": 0.18},
        recommended_split={"data": 0.04, "forward": 0.5, "backward": 0.46},
        bottleneck="data: a step waits 3.38 ms for its data, 62% of its time",
        beside=beside,
        notes=(f"{prefix}a note",),
    )
