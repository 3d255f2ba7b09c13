"""What the tests of the exhaustive search have in common: techniques that a played bench makes faster or worse."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from paceline.study.tuneup.arms import Arm
from support.toys import toy_config

from .played_bench import PlayedBench, PlayedClock

ROOT = Path(__file__).resolve().parents[3]
BENCHMARKS = ROOT / "jobs" / "benchmarks"

SEARCH = {"config": {"name": "t"}, "combinations": ["a", "b", "c"]}


def module(name: str) -> Any:
    return importlib.import_module(f"exhaustive_{name}")


def arm(name: str, family: str, **overrides: Any) -> Arm:
    return Arm(name, {key.replace("__", "."): value for key, value in overrides.items()}, family, "why")


FASTER = arm("faster", "keeping", checkpoint__keep=5)
SLOWER = arm("slower", "failing", scaling__max_failures=7)
SPOILS = arm("spoils", "decay", optimizer__weight_decay=0.5)


def plain() -> Any:
    section = {"metric": "val/accuracy", "margin": 0.01, "seeds": 5}
    return toy_config().with_overrides({"scaling.num_workers": 1, "tuneup": section})


def speed(tree: dict[str, Any]) -> float:
    """25 % faster, 60 % slower, and twice as fast where the model comes out worse."""
    factor = 1.25 if tree["checkpoint"]["keep"] == 5 else 1.0
    factor *= 0.4 if tree["scaling"]["max_failures"] == 7 else 1.0
    return 1000 * factor * (2.0 if tree["optimizer"]["weight_decay"] == 0.5 else 1.0)


def accuracy(tree: dict[str, Any]) -> float:
    return 0.95 - (0.05 if tree["optimizer"]["weight_decay"] == 0.5 else 0.0)


def played(**options: Any) -> PlayedBench:
    return PlayedBench(PlayedClock(), speed, accuracy, **options)


def ignored(line: str) -> None:
    pass
