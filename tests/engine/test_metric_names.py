"""The metrics that the engine writes are those that `tracking.metrics` declares; the rooms do not import each other."""

import inspect
import re
from pathlib import Path

import pytest
import torch

import paceline
from paceline.engine import build
from paceline.engine.precision import Precision
from paceline.tracking import metrics
from support.toys import fit, toy_config

PACKAGE = Path(paceline.__file__).parent
METRICS, _, TAGS = inspect.getsource(metrics).partition("# --- tags")
TASK_METRICS = {"loss", "accuracy"}


def declared(source: str) -> dict[str, str]:
    """Name to key of the constants in a part of the module."""
    return dict(re.findall(r'^([A-Z_]+) = "(.*)"$', source, re.MULTILINE))


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The keys that a run reports with everything on that adds one: clipping, fp16's loss scaling, and AdaScale."""

    class Scaled(Precision):
        def __init__(self, name: str, device: torch.device) -> None:
            super().__init__("32-true", device)
            self._scaler = torch.amp.GradScaler("cpu")  # fp16 has one, on CUDA

    monkeypatch.setattr(build, "Precision", Scaled)
    adascale = {"optimizer__lr_scaling": "adascale", "trainer__gradient_accumulation_steps": 2}
    _, _, reporter = fit(toy_config(trainer__max_grad_norm=1.0, **adascale))
    return set().union(*(values for _, values in reporter.points))


def test_what_is_reported_is_declared_and_what_is_declared_is_reported(reported: set[str]) -> None:
    assert reported == set(declared(METRICS).values())
    assert {key for key in reported if key.startswith("val/")} == {metrics.val_metric(name) for name in TASK_METRICS}


def test_every_tag_is_written_by_someone() -> None:
    code = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    written = set(re.findall(r"metrics\.([A-Z_]+)\b[\]:]", code))
    tags = set(declared(TAGS))
    assert len(tags) > 10
    assert tags - written == set()
