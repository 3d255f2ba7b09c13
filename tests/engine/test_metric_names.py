"""What is recorded is what `tracking.metrics` declares, and the other way round; the engine does not import it."""

import inspect
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import paceline
from paceline.engine import build
from paceline.engine.observing import energy
from paceline.engine.precision import Precision
from paceline.engine.ranks import Ranks
from paceline.tracking import metrics
from support.ranks import run_ranks
from support.toys import fit, toy_config

PACKAGE = Path(paceline.__file__).parent
METRICS, _, TAGS = inspect.getsource(metrics).partition("# --- tags")
TASK_METRICS = {"loss", "accuracy"}


def declared(source: str) -> dict[str, str]:
    """Name to key of the constants in a part of the module, but for what keys begin with."""
    return dict(re.findall(r'^([A-Z0-9_]+) = "(.*[^/])"$', source, re.MULTILINE))


def written(source: str) -> set[str]:
    """The constants under which something is put: into a mapping, or as a point. To read is not to write."""
    ways = r"\bmetrics\.([A-Z0-9_]+): ", r"\[metrics\.([A-Z0-9_]+)\] = ", r"\bPoint\(metrics\.([A-Z0-9_]+),"
    return {name for way in ways for name in re.findall(way, source)}


def package() -> str:
    """All code that records: neither the declarations, nor what looks at runs afterwards."""
    readers = {Path(metrics.__file__), *(PACKAGE / "review").rglob("*.py")}
    return "\n".join(file.read_text() for file in PACKAGE.rglob("*.py") if file not in readers)


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """The keys that the engine reports with everything on that adds one: clipping, fp16's loss scaling, AdaScale, a
    machine that tells its energy, and a second rank."""

    class Scaled(Precision):
        def __init__(self, name: str, device: torch.device) -> None:
            super().__init__("32-true", device)
            self._scaler = torch.amp.GradScaler("cpu")  # fp16 has one, on CUDA

    monkeypatch.setattr(build, "Precision", Scaled)
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    (tmp_path / "intel-rapl:0").mkdir()
    for name, content in {"name": "package-0", "max_energy_range_uj": "1000", "energy_uj": "1"}.items():
        (tmp_path / "intel-rapl:0" / name).write_text(content)
    adascale = {"optimizer__lr_scaling": "adascale", "trainer__gradient_accumulation_steps": 2}
    _, _, reporter = fit(toy_config(trainer__max_grad_norm=1.0, **adascale))
    keys = set().union(*(values for _, values in reporter.points))
    return keys | run_ranks(keys_of_two_ranks, 2)[0]


def keys_of_two_ranks(ranks: Ranks) -> set[str]:
    """What rank 0 of two reports."""
    _, _, reporter = fit(toy_config(scaling__num_workers=2, trainer__max_steps=2), ranks)
    return set().union(*(values for _, values in reporter.points))


def made() -> set[str]:
    """The keys that the engine makes of parts, as they are declared."""
    validation = {metrics.val_metric(name) for name in TASK_METRICS}
    ranks = {metrics.rank_seconds(figure) for figure in metrics.RANK_FIGURES}
    return validation | ranks | {metrics.system_metric(name) for name in metrics.HOST_METRICS}


def test_what_the_engine_reports_is_declared(reported: set[str]) -> None:
    assert reported - made() - set(declared(METRICS).values()) == set()
    assert made() - reported == set()


def test_what_is_declared_is_reported_by_the_engine_or_written_by_someone_else(reported: set[str]) -> None:
    unreported = {name for name, key in declared(METRICS).items() if key not in reported}
    assert unreported - written(package()) == set()


def test_every_tag_is_written_by_someone() -> None:
    tags = set(declared(TAGS))
    assert len(tags) > 10
    assert tags - written(package()) == set()


@pytest.mark.parametrize(
    ("make", "unit"), [(metrics.rank_seconds, "mean"), (lambda name: metrics.gpu_metric(0, name), "joy")]
)
def test_a_name_that_is_not_declared_is_refused(make: Callable[[str], str], unit: str) -> None:
    with pytest.raises(ValueError, match=unit):
        make(unit)


def test_every_declared_name_says_what_it_is() -> None:
    lines = inspect.getsource(metrics).splitlines()
    undocumented = [
        line.partition(" = ")[0]
        for line, below in pairwise(lines)
        if re.match(r'^[A-Z0-9_]+ = ".*"$', line) and not below.startswith('"""')
    ]
    assert undocumented == []
