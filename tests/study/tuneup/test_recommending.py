"""The recommended config is a file that `train` accepts, and says why each line is as it is."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from paceline import load_config
from paceline.errors import EnvironmentFault
from paceline.study.tuneup.folder import TuneupFolder
from paceline.study.tuneup.job_log import JobLog
from paceline.study.tuneup.outcome import ArmResult, Findings, Quality
from paceline.study.tuneup.recommending import recommended_config, recommended_yaml
from paceline.study.tuneup.recording import figures, note_of
from paceline.study.tuneup.reporting import report_html
from paceline.study.tuneup.result import TuneupResult
from paceline.study.tuneup.resuming import SpentTime
from paceline.study.tuneup.tuneup import Prepared, _conclude
from support.toys import toy_config

from .played_bench import Recording

SAME = Quality("same")
CACHE = ArmResult(
    "cache-memory",
    {"data.cache": "memory", "data.num_workers": 0},
    "gain",
    "each sample is loaded once",
    "loading",
    2.6,
    (2.5, 2.8),
    8,
    quality=SAME,
    is_recommended=True,
)
BATCH = ArmResult(
    "batch-x8",
    {"data.global_batch_size": 256, "optimizer.lr_scaling": "linear"},
    "gain",
    "a global batch 8 times as large",
    "batch",
    1.4,
    (1.3, 1.5),
    8,
    quality=Quality("equivalent", "val/accuracy", -0.001, (-0.004, 0.002), 5, True),
    is_recommended=True,
)
IDLE = replace(CACHE, name="bf16", overrides={"trainer.precision": "bf16-mixed"}, is_recommended=False)


def findings(*arms: ArmResult) -> Findings:
    chosen = {key: value for arm in arms if arm.is_recommended for key, value in arm.overrides.items()}
    return Findings(arms, (0.95, 1.05), chosen, 5.35, (4.85, 6.0), BATCH.quality)


def config(**overrides: Any) -> Any:
    named = {"task": {"name": "classification"}, "model": {"name": "mlp"}, "data": {"name": "mnist5k"}}
    return toy_config(trainer__precision="32-true").with_overrides({**named, **overrides})


def test_the_file_is_the_recommended_config(tmp_path: Path) -> None:
    base = config(tuneup={"margin": 0.02})
    text = recommended_yaml(base, findings(CACHE, BATCH, IDLE))
    file = tmp_path / "recommended.yaml"
    file.write_text(text or "")
    loaded = load_config(file)
    assert loaded == recommended_config(base, findings(CACHE, BATCH, IDLE))
    assert loaded.data.cache == "memory"
    assert loaded.data.global_batch_size == 256
    assert loaded.trainer.precision == "32-true"
    assert loaded.tuneup is None


def test_what_was_found_out_is_told_where_the_folder_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    gone = TuneupFolder(tmp_path / "file" / "gone")
    with closing(JobLog(tmp_path, in_process=True)) as log, pytest.raises(EnvironmentFault) as caught:
        _conclude(config(), Prepared(gone, log, "", 0.0), findings(CACHE, BATCH), Recording(), SpentTime(0.0))
    assert "gone is not writable" in str(caught.value)
    assert 'data.cache="memory" data.num_workers=0 data.global_batch_size=256' in str(caught.value)
    assert "5.35 x (4.85-6.00)" in str(caught.value)


def test_what_was_found_out_is_told_where_the_folder_has_no_room_for_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: TuneupFolder, **changes: Any) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(TuneupFolder, "write", full)
    folder, silent = TuneupFolder(tmp_path), "http://127.0.0.1:1"
    with closing(JobLog(tmp_path, in_process=True)) as log, pytest.raises(EnvironmentFault) as caught:
        _conclude(config(), Prepared(folder, log, silent, 0.0), findings(CACHE, BATCH), Recording(), SpentTime(0.0))
    assert "is not writable: No space left on device; what was found out: " in str(caught.value)
    assert 'data.cache="memory"' in str(caught.value)


def test_each_changed_line_has_its_reason_above_it() -> None:
    lines = (recommended_yaml(config(), findings(CACHE, BATCH)) or "").splitlines()
    above = {
        line.strip(): lines[number - 1].strip() for number, line in reversed([*enumerate(lines)])
    }  # the first of each
    told = "# cache-memory: each sample is loaded once; alone 2.60 (2.50-2.80) x the speed"
    assert above["num_workers: 0"] == told
    assert above["cache: memory"] == "# cache-memory"
    assert above["global_batch_size: 256"].startswith("# batch-x8: a global batch 8 times as large")
    assert above["lr_scaling: linear"].startswith("# batch-x8")
    assert "5.35 x (4.85-6.00)" in lines[0]
    assert "equivalent" in lines[1]


def test_where_nothing_helps_the_file_says_so_and_is_the_config_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "recommended.yaml"
    file.write_text(recommended_yaml(config(), findings(IDLE)) or "")
    assert file.read_text().startswith("# What was measured of toy: nothing helps.")
    assert load_config(file) == config()


def test_where_there_was_no_time_nobody_is_told_that_nothing_helps(tmp_path: Path) -> None:
    found = findings(ArmResult("loader-1", {}, "not applicable", "there was no time for it"))
    result = TuneupResult("id", "toy", found, config(), "", "", tmp_path, 1.0, None, None)
    for told in (repr(result), dict(result.rows())["speed"], recommended_yaml(config(), found) or ""):
        assert "nothing was measured; give tuneup.budget_seconds more" in told


def test_the_report_has_the_answer_the_techniques_and_the_config_and_loads_nothing() -> None:
    import re

    bad = replace(IDLE, verdict="harm", speedup=0.9, speedup_interval=(0.0, float("inf")), reason="<b>no</b>")
    left_out = ArmResult("fp16", {}, "not applicable", "it is for <GPUs>")
    found = replace(findings(CACHE, BATCH, bad, left_out), notes=("there was <no> time",))
    html = report_html("toy", "20261122", found, recommended_yaml(config(), found), 361.0)
    assert "5.35 times as fast (4.85-6.00), val/accuracy equal" in html
    assert "it is for &lt;GPUs&gt;" in html
    assert "there was &lt;no&gt; time" in html
    assert "# batch-x8: a global batch 8 times as large" in html
    assert html.count('class="pill good">gain') == 2
    assert "inf" not in re.findall(r'[xy]2="([^"]*)"', html)
    assert not re.search(r'(?:src|href)="(?!#|data:)', html)


def test_the_result_shows_itself_as_text_table_and_frame(tmp_path: Path) -> None:
    found = findings(CACHE, BATCH, replace(IDLE, name="<b>"))
    result = TuneupResult("id", "toy", found, config(), "", "", tmp_path, 1.0, None, None)
    assert repr(result) == "<TuneupResult toy/id; cache-memory, batch-x8: 5.35 x (4.85-6.00)>"
    assert "<td>cache-memory</td><td>gain</td>" in result._repr_html_()
    assert "<td>&lt;b&gt;</td>" in result._repr_html_()
    assert result.df.loc[1, "speedup"] == 1.4
    assert result.recommended.data.global_batch_size == 256


def test_long_reasons_leave_room_for_the_others_in_the_note() -> None:
    told = "an exception says a lot\n" * 160
    broken = replace(CACHE, name="mine", verdict="not applicable", reason=told, is_recommended=False)
    others = [replace(broken, name=f"mine {number}") for number in range(3)]
    note = note_of("digits", replace(findings(broken, *others, CACHE), notes=("the last note",)))
    assert len(note) < 8000
    assert "the last note" in note
    assert "| cache-memory | gain |" in note
    assert broken.to_json()["reason"] == told


def test_mlflow_takes_the_speed_of_each_name_that_the_config_takes() -> None:
    from mlflow.utils.validation import _validate_metric_name

    arm = replace(CACHE, name="bf16 + compile=default")
    for key in figures(findings(arm)):
        _validate_metric_name(key)
