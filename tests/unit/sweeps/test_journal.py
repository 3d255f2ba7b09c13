"""A sweep's journal: what was written is read back, whatever became of the process that wrote."""

import math
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import EnvironmentFault
from paceline.sweeps.restart_state import RestartState, launch_entry
from paceline.sweeps.sweep_log import SweepHistory, SweepLog, answer_entry, read_log, rung_entry, trial_entry
from paceline.sweeps.trial import Trial

TRIAL = Trial(
    "0003",
    {"optimizer.lr": 0.1, "model": {"name": "mlp", "hidden": [4, 5]}, "seed": 2},
    state="diverged",
    reason="the loss is nan",
    metrics={"train/loss": math.nan, "val/loss": math.inf, "val/accuracy": 0.5},
    weights_sha256="ab",
    steps=3,
    total_steps=None,
    samples=12,
    seconds=1.5,
    attempts=2,
    checkpoint="step-3",
    mlflow_run_id="c0",
    violations={"val/f1 > 0.5": math.inf, "seconds < 60": -58.5},
)


def written(folder: Path, *entries: Any) -> SweepHistory:
    """Write trials, rungs `(trial, values)` and answers `"trial"`; returns what is read back."""
    log = SweepLog(folder)
    for entry in entries:
        if isinstance(entry, Trial):
            log.append([trial_entry(entry)])
        elif isinstance(entry, str):
            log.append([answer_entry(entry)])
        else:
            log.append([rung_entry(*entry)])
    log.close()
    return read_log(folder)


def test_trial_comes_back_as_it_was(tmp_path: Path) -> None:
    found = written(tmp_path, Trial("0003", {}), TRIAL).trials["0003"]
    assert str(vars(found)) == str(vars(TRIAL))  # nan is not equal to itself


def test_line_that_a_crash_tore_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, Trial("0000", {}, state="finished"))
    file = tmp_path / "log.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    history = written(tmp_path, Trial("0001", {}))
    assert (list(history.ended), list(history.trials)) == (["0000"], ["0000", "0001"])


def test_rungs_keep_their_order(tmp_path: Path) -> None:
    first, later = {"samples": 10.0, "val/loss": math.nan}, {"samples": 30.0}
    reached = [("0001", first), ("0000", {"samples": 10.0}), ("0001", later)]
    history = written(tmp_path, *reached)
    assert str(history.rungs) == str(reached)
    assert history.last_rungs == {"0000": {"samples": 10.0}, "0001": {"samples": 30.0}}


def test_rung_is_decided_once_it_is_answered_or_the_trial_has_ended(tmp_path: Path) -> None:
    first, second = {"samples": 1.0}, {"samples": 2.0}
    begun = [entry for n in range(4) for entry in (Trial(f"{n:04d}", {}, state="running"), (f"{n:04d}", first))]
    # answered while others have come to theirs
    history = written(tmp_path, *begun, "0001", "0002", ("0002", second), Trial("0003", {}, state="pruned"))
    assert history.decided == [("0001", first), ("0002", first), ("0003", first)]


def test_rung_that_was_asked_again_counts_once(tmp_path: Path) -> None:
    first, second = ("0000", {"samples": 1.0}), ("0000", {"samples": 2.0})
    history = written(tmp_path, first, first, "0000", second, second, Trial("0000", {}, state="failed"))
    assert history.decided == [first, second]


@pytest.mark.parametrize(
    "line",
    [
        '{"n":9,"kind":"rung"}',
        '{"n":9,"kind":"rung","id":5,"values":{}}',
        '{"n":9,"kind":"rung","id":"0003","values":{"val/loss":"x"}}',
        '{"n":9,"kind":"answer"}',
        '{"n":9,"kind":"trial","id":"0003"}',
        '{"n":9,"kind":"trial","id":"0003","params":5}',
        '{"n":9,"kind":"trial","id":"0003","params":{},"steps":"x"}',
        '{"n":9,"kind":"trial","id":"0003","params":{},"metrics":{"val/loss":null}}',
        '{"n":9,"kind":"trial","id":"0003","params":{},"violations":{"val/loss < 1":"x"}}',
        '{"n":9,"kind":"launch"}',
        '{"n":9,"kind":"slot","number":0}',
        '{"n":9,"kind":"slot","number":0,"shape":{"cores":1}}',
        '{"n":9,"kind":"attempt","trial_id":"0003","stopping":5}',
        '{"n":9,"kind":"worker","slot":0,"generation":1,"handle":"?"}',
        '{"n":9,"kind":"over","over":""}',
        "[1]",
    ],
)
def test_line_that_is_no_entry_is_passed_over(tmp_path: Path, line: str) -> None:
    SweepLog(tmp_path).append([launch_entry("launch")])
    written(tmp_path, TRIAL, ("0003", {"val/loss": math.nan}))
    file = tmp_path / "log.jsonl"
    launch, first, second = file.read_text().splitlines()
    for lines in ([launch, first, line, second], [launch, first, second, line]):
        file.write_text("".join(f"{each}\n" for each in lines))
        history = read_log(tmp_path)
        assert str(vars(history.trials["0003"])) == str(vars(TRIAL))
        assert [trial_id for trial_id, _ in history.rungs] == ["0003"]
        assert history.launch == RestartState("launch")
    assert written(tmp_path, "0003").answered == {"0003": 1}


def test_entry_of_another_version_is_an_error(tmp_path: Path, golden: Any) -> None:
    for field, unknown in (('"state":"resting"', "state resting"), ('"colour":"blue"', "colour")):
        (tmp_path / "log.jsonl").write_text(f'{{"n":1,"kind":"trial","id":"0003","params":{{}},{field}}}\n')
        with pytest.raises(EnvironmentFault) as caught:
            read_log(tmp_path)
        assert (caught.value.code, caught.value.fields["unknown"]) == ("other-version", unknown)
    golden(str(caught.value))
