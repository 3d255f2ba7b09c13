"""The engine reports what `tracking.metrics` declares, which it does not import."""

import inspect
import re
from pathlib import Path

import pytest

from paceline.engine import build
from paceline.engine.dist_context import DistContext
from paceline.engine.monitoring import energy
from paceline.tracking import metrics
from support.precision import scaled
from support.ranks import run_ranks
from support.toys import fit, toy_config

METRICS, _, _ = inspect.getsource(metrics).partition("# --- tags")
TASK_METRICS = {"loss", "accuracy"}


def declared(source: str) -> dict[str, str]:
    """Name to key of the constants in a part of the module, but for prefixes of keys."""
    return dict(re.findall(r'^([A-Z0-9_]+) = "(.*[^/])"$', source, re.MULTILINE))


def keys_of_two_ranks(ranks: DistContext) -> set[str]:
    """The keys that rank 0 of two reports."""
    _, _, reporter = fit(toy_config(scaling__num_workers=2, trainer__max_steps=2), ranks)
    return set().union(*(values for _, values in reporter.points))


def test_metrics_of_the_engine_are_declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With everything on that adds one: clipping, loss scaling, AdaScale, an energy counter, and a second rank."""
    monkeypatch.setattr(build, "Precision", scaled("32-true"))
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    (tmp_path / "intel-rapl:0").mkdir()
    for name, content in {"name": "package-0", "max_energy_range_uj": "1000", "energy_uj": "1"}.items():
        (tmp_path / "intel-rapl:0" / name).write_text(content)
    adascale = {"optimizer__lr_scaling": "adascale", "trainer__gradient_accumulation_steps": 2}
    _, _, reporter = fit(toy_config(trainer__max_grad_norm=1.0, **adascale))
    reported = set().union(*(values for _, values in reporter.points)) | run_ranks(keys_of_two_ranks, 2)[0]

    made = {metrics.val_metric(name) for name in TASK_METRICS}
    made |= {metrics.rank_seconds(figure) for figure in metrics.RANK_FIGURES}
    made |= {metrics.system_metric(name) for name in metrics.HOST_METRICS}
    assert reported - made - set(declared(METRICS).values()) == set()
    assert made - reported == set()


def test_a_name_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="mean"):
        metrics.rank_seconds("mean")
    with pytest.raises(ValueError, match="joy"):
        metrics.gpu_metric(0, "joy")
