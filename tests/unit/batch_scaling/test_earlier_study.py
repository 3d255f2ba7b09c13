"""The newest scale study of a config, as it is found in the folder of its name."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch, expected_efficiency
from paceline.batch_scaling.earlier_study import EarlierStudy, earlier_study
from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.stored_findings import findings_json
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault
from paceline.tuneups.folder import TuneupFolder
from paceline.tuneups.tuneup import scale_study_of
from support.batch_scaling.findings import OWN, findings
from support.refusals import refused
from support.toys import toy_config

CONFIG = toy_config(data__global_batch_size=OWN)


def stored(
    home: Path, name: str, found: ScaleFindings, config: ExperimentConfig = CONFIG, status: str = "finished"
) -> None:
    folder = home / name
    folder.mkdir()
    (folder / "scale.json").write_text(json.dumps({"status": status, "config": config.model_dump(mode="json")}))
    (folder / "findings.json").write_text(json.dumps(findings_json(found)))


def with_critical(size: float) -> ScaleFindings:
    return replace(findings(), critical=CriticalBatch(size, size, size, ((0, size),)))


def found_in(home: Path, config: ExperimentConfig = CONFIG, study_id: str | None = None) -> EarlierStudy | None:
    return earlier_study(config, home, study_id)


def test_the_newest_finished_one_counts(tmp_path: Path) -> None:
    assert found_in(tmp_path) is None
    stored(tmp_path, "20260101-000000-aaaaaa", with_critical(100.0))
    stored(tmp_path, "20260102-000000-aaaaaa", with_critical(200.0))
    stored(tmp_path, "20260103-000000-aaaaaa", with_critical(300.0), status="running")
    stored(tmp_path, "20260104-000000-aaaaaa", replace(findings(), critical=None))
    (tmp_path / "20260105-000000-aaaaaa").mkdir()
    (tmp_path / "20260105-000000-aaaaaa" / "scale.json").write_text("{damaged")
    study = found_in(tmp_path)
    assert study is not None
    assert (study.study_id, study.critical_batch_size) == ("20260102-000000-aaaaaa", 200.0)
    first = found_in(tmp_path, study_id="20260101-000000-aaaaaa")
    assert first is not None
    assert first.critical_batch_size == 100.0


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"scale": {"seeds": 5}, "tuneup": {"seeds": 3}, "scaling.num_workers": 2}, True),
        ({"data.num_workers": 2, "trainer.log_every_n_steps": 7, "storage.path": "elsewhere"}, True),
        ({"trainer.epochs": 9}, False),
        ({"parallel.comm_hook": "bf16"}, False),
        ({"optimizer.lr": 0.5}, False),
        ({"data.global_batch_size": 2 * OWN}, False),
        ({"seed": 5}, False),
    ],
)
def test_a_study_of_another_config_does_not_count(tmp_path: Path, changes: dict[str, Any], counts: bool) -> None:
    stored(tmp_path, "20260101-000000-aaaaaa", findings())
    assert (found_in(tmp_path, CONFIG.with_overrides(changes)) is not None) == counts


def test_a_study_of_another_derived_batch_does_not_count(tmp_path: Path) -> None:
    """Without a global batch size, it is 32 for each worker."""
    alone = toy_config(data__global_batch_size=None)
    stored(tmp_path, "20260101-000000-aaaaaa", findings(), alone)
    assert found_in(tmp_path, alone) is not None
    assert found_in(tmp_path, alone.with_overrides({"scaling.num_workers": 4})) is None


def test_efficiency_rule_and_what_is_not_worth_trying() -> None:
    study = EarlierStudy("id", with_critical(300.0))
    assert study.efficiency(OWN) == 1
    assert study.efficiency(256) == pytest.approx(expected_efficiency(256, OWN, 300.0))
    assert study.rule(128) == "linear"
    assert study.why_not(512) == ""
    assert "300 samples" in study.why_not(1024)
    assert EarlierStudy("id", with_critical(inf)).why_not(10**6) == ""
    failed = replace(findings().branches[0], batch_size=128, loss=inf)
    broken = EarlierStudy("id", replace(with_critical(inf), branches=(failed,)))
    assert [bool(broken.why_not(size)) for size in (64, 128, 256)] == [False, True, True]


def test_a_tune_up_stays_with_the_study_of_its_first_launch(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    folder = TuneupFolder(tmp_path / "tuned")
    (folder.path / "tuneup.json").write_text(json.dumps({"config": {}}))
    stored(tmp_path, "20260101-000000-aaaaaa", with_critical(100.0))
    first = scale_study_of(CONFIG, folder)
    stored(tmp_path, "20260102-000000-aaaaaa", with_critical(200.0))
    assert scale_study_of(CONFIG, folder) == first
    assert first is not None
    assert first.study_id == "20260101-000000-aaaaaa"


def test_a_tune_up_whose_study_is_gone_says_so(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    folder = TuneupFolder(tmp_path / "tuned")
    (folder.path / "tuneup.json").write_text(json.dumps({"config": {}, "scale_study": "gone"}))
    error = refused(EnvironmentFault, scale_study_of, CONFIG, folder)
    assert (error.code, "gone" in str(error)) == ("tuneup-changed", True)


def test_a_tune_up_that_began_without_a_study_follows_none(tmp_path: Path) -> None:
    (tmp_path / "tuned").mkdir()
    folder = TuneupFolder(tmp_path / "tuned")
    (folder.path / "tuneup.json").write_text(json.dumps({"config": {}}))
    assert scale_study_of(CONFIG, folder) is None
    stored(tmp_path, "20260101-000000-aaaaaa", with_critical(100.0))
    assert scale_study_of(CONFIG, folder) is None
