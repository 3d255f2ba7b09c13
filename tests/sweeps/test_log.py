"""A sweep's journal: what was written is read back, whatever became of the process that wrote."""

import math
from pathlib import Path

import pytest

from paceline.errors import EnvironmentFault
from paceline.sweeps.log import SweepLog, read_log
from paceline.sweeps.trials import Trial

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
)


def test_nothing_is_known_of_a_sweep_that_has_not_begun(tmp_path: Path) -> None:
    history = read_log(tmp_path / "none")
    assert (history.trials, history.rungs, history.decided, history.ended) == ({}, [], [], {})
    assert not (tmp_path / "none").exists()


def test_a_trial_comes_back_as_it_was(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    log.trial(Trial("0003", {}))
    log.trial(TRIAL)
    log.close()

    found = read_log(tmp_path).trials["0003"]
    assert math.isnan(found.metrics["train/loss"])
    assert str(found) == str(TRIAL)  # nan is not equal to itself


def test_a_line_that_a_crash_tore(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    log.trial(Trial("0000", {}, state="finished"))
    log.close()
    file = tmp_path / "log.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])

    again = SweepLog(tmp_path)
    assert list(again.history.ended) == ["0000"]
    again.trial(Trial("0001", {}))
    again.close()
    assert list(read_log(tmp_path).trials) == ["0000", "0001"]


def test_rungs_in_their_order(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    reached = [
        ("0001", {"samples": 10.0, "val/loss": math.nan}),
        ("0000", {"samples": 10.0}),
        ("0001", {"samples": 30.0}),
    ]
    for trial_id, values in reached:
        log.rung(trial_id, values)
    log.close()

    history = read_log(tmp_path)
    assert str(history.rungs) == str(reached)
    assert history.last_rungs == {"0000": {"samples": 10.0}, "0001": {"samples": 30.0}}


def test_a_rung_is_decided_once_it_is_answered_or_the_trial_has_ended(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    for trial_id in ("0000", "0001", "0002", "0003"):
        log.trial(Trial(trial_id, {}, state="running"))
        log.rung(trial_id, {"samples": 1.0})
    log.answer("0001")  # while others have come to theirs
    log.answer("0002")
    log.rung("0002", {"samples": 2.0})
    log.trial(Trial("0003", {}, state="pruned"))
    log.close()

    decided = read_log(tmp_path).decided
    assert decided == [("0001", {"samples": 1.0}), ("0002", {"samples": 1.0}), ("0003", {"samples": 1.0})]


def test_a_rung_that_was_asked_again_counts_once(tmp_path: Path) -> None:
    log = SweepLog(tmp_path)
    log.rung("0000", {"samples": 1.0})  # an interruption
    log.rung("0000", {"samples": 1.0})
    log.answer("0000")
    log.rung("0000", {"samples": 2.0})
    log.rung("0000", {"samples": 2.0})
    log.trial(Trial("0000", {}, state="failed"))
    log.close()

    assert read_log(tmp_path).decided == [("0000", {"samples": 1.0}), ("0000", {"samples": 2.0})]


@pytest.mark.parametrize(
    "line",
    [
        '{"n":9,"kind":"rung"}',
        '{"n":9,"kind":"rung","id":5,"values":{}}',
        '{"n":9,"kind":"rung","id":"0003","values":5}',
        '{"n":9,"kind":"rung","id":"0003","values":{"val/loss":"x"}}',
        '{"n":9,"kind":"answer"}',
        '{"n":9,"kind":"trial"}',
        '{"n":9,"kind":"trial","id":"0003"}',
        '{"n":9,"kind":"trial","id":"0003","overrides":5}',
        '{"n":9,"kind":"trial","id":"0003","overrides":{},"state":5}',
        '{"n":9,"kind":"trial","id":"0003","overrides":{},"steps":"x"}',
        '{"n":9,"kind":"trial","id":"0003","overrides":{},"metrics":{"val/loss":null}}',
        "[1]",
    ],
)
def test_a_line_that_is_no_entry_is_passed_over(tmp_path: Path, line: str) -> None:
    log = SweepLog(tmp_path)
    log.trial(TRIAL)
    log.rung("0003", {"val/loss": math.nan})
    log.close()
    file = tmp_path / "log.jsonl"
    first, second = file.read_text().splitlines()
    for lines in ([first, line, second], [first, second, line]):
        file.write_text("".join(f"{each}\n" for each in lines))
        history = read_log(tmp_path)
        assert str(history.trials["0003"]) == str(TRIAL)
        assert [trial_id for trial_id, _ in history.rungs] == ["0003"]
    again = SweepLog(tmp_path)
    again.answer("0003")
    again.close()
    assert read_log(tmp_path).answered == {"0003": 1}


@pytest.mark.parametrize("what", ['"colour":"blue"', '"state":"resting"'])
def test_what_another_version_has_written_is_told_and_not_passed_over(tmp_path: Path, what: str) -> None:
    (tmp_path / "log.jsonl").write_text(f'{{"n":1,"kind":"trial","id":"0003","overrides":{{}},{what}}}\n')
    with pytest.raises(EnvironmentFault, match="another version of Paceline"):
        read_log(tmp_path)
