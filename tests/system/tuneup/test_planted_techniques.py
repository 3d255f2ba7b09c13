"""Tune-ups in real time, of a training in which techniques of known effect are planted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import load_config
from paceline.config import ExperimentConfig
from paceline.tuneups.display import SilentWatcher
from paceline.tuneups.outcome import Findings, TechniqueResult
from paceline.tuneups.texts import measured_text, noise_text, speed_text
from paceline.tuneups.tuneup import tuneup
from support.tuneup.planted import planted_config

RIGHT = {"nothing": "no gain", "faster": "gain", "slower": "regression", "spoils": "regression"}
SMALL = {"nothing": 1.0, "faster": 1.05, "slower": 1 / 1.05, "spoils": 1.1}
"""By how many times each is as fast as the baseline."""
SEEDS = range(10)
BUDGET_SECONDS = 240.0
NULLS = {f"null {number}": {"checkpoint.keep": number} for number in range(4, 16)}
"""Techniques that do nothing while a model trains."""


def planted(found: Findings) -> dict[str, TechniqueResult]:
    return {technique.name: technique for technique in found.techniques if technique.name in RIGHT}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_planted_techniques_of_five_percent_get_their_verdicts_in_ten_tune_ups(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    wrong, recommended = [], []
    for seed in SEEDS:
        found = tuneup(planted_config(tmp_path, seed, BUDGET_SECONDS, SMALL), listener=SilentWatcher()).findings
        record_property(f"seed {seed}, A/A", noise_text(found.noise))
        for name, technique in planted(found).items():
            speed = speed_text(technique.speedup, technique.speedup_interval)
            told = f"{technique.verdict}: {speed} in {measured_text(technique)}, quality {technique.quality.verdict}"
            record_property(f"seed {seed}, {name}", told)
            print(f"seed {seed}, {name}: {told}; A/A {noise_text(found.noise)}", flush=True)
            wrong += [(seed, name, told)] if technique.verdict != RIGHT[name] else []
            recommended += [name] if technique.is_recommended else []
    assert len(wrong) <= 0.05 * len(SEEDS) * len(RIGHT), wrong
    assert "spoils" not in recommended


def lean_config(home: Path, seed: int) -> ExperimentConfig:
    """`configs/mnist_naive.yaml` without what makes it naive, and with techniques that do nothing."""
    changes = {
        "seed": seed,
        "data.cache": "memory",
        "data.global_batch_size": 256,
        "trainer.log_every_n_steps": 50,
        "trainer.epochs": 2,
        "scaling.num_workers": 0,
        "storage.path": str(home / "runs"),
        "tracking.uri": f"sqlite:///{home}/mlflow.db",
        "tuneup": {"techniques": NULLS, "only": list(NULLS), "budget_seconds": 120.0},
    }
    return load_config(Path(__file__).parents[3] / "configs" / "mnist_naive.yaml").with_overrides(changes)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_techniques_that_do_nothing_none_is_recommended_in_six_tune_ups(tmp_path: Path) -> None:
    wrong = []
    for seed in range(6):
        found = tuneup(lean_config(tmp_path, seed), listener=SilentWatcher()).findings
        told = [each for each in found.techniques if each.name in NULLS and each.verdict in ("gain", "regression")]
        print(
            f"seed {seed}: {[(each.name, each.speedup_interval) for each in told]}, {noise_text(found.noise)}",
            flush=True,
        )
        assert found.recommended == {}
        wrong += [seed] if told else []
    assert len(wrong) <= 1
