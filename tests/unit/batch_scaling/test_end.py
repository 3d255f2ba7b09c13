"""The end of a study, where its answer cannot be written."""

from contextlib import closing
from pathlib import Path

import pytest

from paceline.batch_scaling.folder import ScaleFolder
from paceline.batch_scaling.scale import ScaleLaunch, _end
from paceline.bench.job_log import JobLog
from paceline.bench.resumable_bench import SpentTime
from paceline.bench.study_launch import StudyPlace
from paceline.config.overrides import override_texts
from paceline.errors import EnvironmentFault
from support.batch_scaling.findings import findings
from support.toys import toy_config
from support.tuneup.simulated_bench import RecordingListener


def test_where_the_folder_is_gone_the_error_has_the_answer(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    gone, found = ScaleFolder(tmp_path / "file" / "gone"), findings()
    launch = ScaleLaunch("new", None, 0.0, None)
    with closing(JobLog(tmp_path, in_process=True)) as log:
        place = StudyPlace(toy_config(), gone, log, "", 0.0)
        with pytest.raises(EnvironmentFault) as caught:
            _end(place, found, launch, RecordingListener(), SpentTime(0.0))
    assert caught.value.code == "findings-not-written"
    assert caught.value.fields == {"recommended": found.recommended, "speedup": found.speedup}
    for change in override_texts(found.recommended):
        assert change in str(caught.value)
