"""Tune-ups in real time, of a training in which techniques of known effect are planted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tuneups.display import SilentWatcher
from paceline.tuneups.outcome import Findings, TechniqueResult
from paceline.tuneups.texts import measured_text, noise_text, speed_text
from paceline.tuneups.tuneup import tuneup
from support.tuneup.planted import planted_config

RIGHT = {"nothing": "no gain", "faster": "gain", "slower": "regression", "spoils": "regression"}
SMALL = {"nothing": 1.0, "faster": 1.05, "slower": 1 / 1.05, "spoils": 1.1}
"""By how many times each is as fast as the baseline."""
SEEDS = range(10)
BUDGET_SECONDS = 95.0


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
