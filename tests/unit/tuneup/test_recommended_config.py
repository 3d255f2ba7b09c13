"""The recommended config: a file that `train` accepts, with a reason above each line that it changes."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import load_config
from paceline.bench.job_log import JobLog
from paceline.bench.resumable_bench import SpentTime
from paceline.bench.study_launch import StudyPlace
from paceline.errors import EnvironmentFault
from paceline.tuneups.folder import TuneupFolder
from paceline.tuneups.outcome import Findings, Quality, TechniqueResult
from paceline.tuneups.recommended_config import recommended_config, recommended_yaml
from paceline.tuneups.tuneup import TuneupLaunch, _end
from support.golden import Golden
from support.toys import toy_config
from support.tuneup.findings import EQUIVALENT, technique
from support.tuneup.simulated_bench import RecordingListener

CACHE = replace(
    technique("cache-memory", "loading", "gain", 2.6, is_recommended=True),
    overrides={"data.cache": "memory", "data.num_workers": 0},
    reason="each sample is loaded once",
)
BATCH = replace(
    technique("batch-x8", "batch", "gain", 1.4, is_recommended=True, quality=EQUIVALENT),
    overrides={"data.global_batch_size": 256, "optimizer.lr_scaling": "linear"},
    reason="a global batch 8 times as large",
)
IDLE = replace(CACHE, name="bf16", overrides={"trainer.precision": "bf16-mixed"}, is_recommended=False)


def findings(*techniques: TechniqueResult) -> Findings:
    chosen = {
        key: value for technique in techniques if technique.is_recommended for key, value in technique.overrides.items()
    }
    return Findings(techniques, 0.012, chosen, 5.35, (4.85, 6.0), 4, BATCH.quality)


def config(**overrides: Any) -> Any:
    named = {"task": {"name": "classification"}, "model": {"name": "mlp"}, "data": {"name": "mnist5k"}}
    return toy_config(trainer__precision="32-true").with_overrides({**named, **overrides})


def test_the_file_is_the_recommended_config(tmp_path: Path) -> None:
    base, found = config(tuneup={"margin": 0.02}), findings(CACHE, BATCH, IDLE)
    file = tmp_path / "recommended.yaml"
    file.write_text(recommended_yaml(base, found) or "")
    loaded = load_config(file)
    assert loaded == recommended_config(base, found)
    assert (loaded.data.cache, loaded.data.global_batch_size) == ("memory", 256)
    assert (loaded.trainer.precision, loaded.tuneup) == ("32-true", None)


def test_each_changed_line_has_its_technique_above_it(golden: Golden) -> None:
    lines = [line.strip() for line in (recommended_yaml(config(), findings(CACHE, BATCH)) or "").splitlines()]
    above = {line: lines[number - 1] for number, line in reversed([*enumerate(lines)])}  # the first of each
    assert above["num_workers: 0"].startswith("# cache-memory: each sample is loaded once")
    assert above["cache: memory"] == "# cache-memory"
    assert above["global_batch_size: 256"].startswith("# batch-x8: a global batch 8 times as large")
    assert above["lr_scaling: linear"].startswith("# batch-x8")
    golden("\n".join(line for line in lines if line.startswith("#")))


@pytest.mark.parametrize(
    "measured", [IDLE, TechniqueResult("loader-1", {}, "not applicable", "there was no time for it")]
)
def test_without_a_recommendation_the_file_is_the_config_as_it_was(
    tmp_path: Path, measured: TechniqueResult, golden: Golden
) -> None:
    file = tmp_path / "recommended.yaml"
    file.write_text(recommended_yaml(config(), findings(measured)) or "")
    assert load_config(file) == config()
    golden(file.read_text().splitlines()[0])


def test_where_the_folder_is_gone_the_error_has_the_findings(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "file").touch()
    gone = TuneupFolder(tmp_path / "file" / "gone")
    found = replace(findings(CACHE, BATCH), quality=Quality("same"))
    launch = TuneupLaunch("new", None, 0.0, None)
    with closing(JobLog(tmp_path, in_process=True)) as log:
        place = StudyPlace(config(), gone, log, "", 0.0)
        with pytest.raises(EnvironmentFault) as caught:
            _end(place, found, launch, RecordingListener(), SpentTime(0.0))
    assert caught.value.code == "findings-not-written"
    assert caught.value.fields == {"recommended": found.recommended, "speedup": 5.35}
    golden(str(caught.value))
