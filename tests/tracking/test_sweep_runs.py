"""A sweep in MLflow: a parent run with a child for each trial, and what the parent's page says."""

import csv
import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.tracking import metrics, remote, shipping
from paceline.tracking.cursor import CURSOR_FILE, ShipReport
from paceline.tracking.points import Point
from paceline.tracking.record import TAG_LENGTH, RunRecord, sweep_tags, trial_state_tags, trial_tags
from paceline.tracking.recorder import TRIAL_STATUS, Recorder
from paceline.tracking.sweep_note import Objective, TrialRow, sweep_note, sweep_points
from paceline.tracking.trials_table import trials_csv

MakeRecord = Callable[..., RunRecord]
MakePoints = Callable[..., list[Point]]
Stored = Callable[..., list[tuple[str, int, float, int]]]
RunsOf = Callable[[RunRecord], list[str]]

ACCURACY = [Objective("val/accuracy", "max")]
ENDINGS = {"finished": "FINISHED", "failed": "FAILED", "oom": "FAILED", "diverged": "FAILED", "pruned": "KILLED"}


def trial(about: RunRecord, number: int, **changes: object) -> RunRecord:
    """The record of a sweep's trial, as the sweep makes it."""
    given = {
        "run_id": f"{about.run_id}/{number:04}",
        "name": f"{number:04} global_batch_size={64 * number}",
        "title": about.name,
        "parent": about.run_id,
        "picture": False,
        "params": {f"key.{index}": index for index in range(110)},
        "tags": trial_tags(about.run_id, f"{number:04}"),
        "artifacts": {"config.yaml": f"name: {number}"},
    }
    return RunRecord(**{"uri": about.uri, "experiment": about.experiment, **given, **changes})  # type: ignore[arg-type]


def row(number: int, state: str = "finished", accuracy: float | None = None, **changes: object) -> TrialRow:
    values = {} if accuracy is None else {"val/accuracy": accuracy}
    given = {"id": f"{number:04}", "setting": {"lr": number}, "state": state, "metrics": values}
    return TrialRow(**{**given, **changes})  # type: ignore[arg-type]


def run_trial(folder: Path, about: RunRecord, points: list[Point], state: str) -> ShipReport:
    recorder = Recorder(folder, about)
    recorder.set_tags(trial_state_tags("running"))
    recorder.start_shipping()
    recorder.append(points)
    recorder.set_tags(trial_state_tags(state))
    return recorder.close(TRIAL_STATUS.get(state, "KILLED"), None if state == "finished" else f"it was {state}")


def check_a_sweep(folder: Path, about: RunRecord, points: MakePoints, stored: Stored, runs_of: RunsOf) -> None:
    """Record a sweep with a trial of each state, crash, open everything again, and look at what MLflow has."""
    parent = Recorder(folder / "tracking", about)
    parent.start_shipping()
    reports = [
        run_trial(folder / state, trial(about, number), points(1, 5 + number), state)
        for number, state in enumerate(ENDINGS, 1)
    ]
    rows = [row(number, state, 0.5) for number, state in enumerate(ENDINGS, 1)]
    best = {"val/accuracy": 0.5}
    for count in range(1, 6):
        parent.append(sweep_points(dict.fromkeys(list(ENDINGS)[:count], 1), best, 1_000 + count))
    # as after a crash: the parent was never closed, and the steps are computed again
    parent = Recorder(folder / "tracking", about)
    parent.append(sweep_points(dict.fromkeys(ENDINGS, 1), best, 9_000))
    (folder / "finished" / CURSOR_FILE).unlink()
    again = [
        run_trial(folder / state, trial(about, number), points(1, 5 + number), state)
        for number, state in enumerate(ENDINGS, 1)
    ]
    parent.add_artifact("trials.csv", trials_csv(rows).encode())
    closed = parent.close("FINISHED", note=sweep_note("mnist", "finished", None, ACCURACY, rows))

    assert [(one.unsent, one.error) for one in [*reports, *again, closed]] == [(0, None)] * 11
    assert [one.run_id for one in again] == [one.run_id for one in reports]
    assert sorted(runs_of(about)) == sorted(str(one.run_id) for one in [closed, *reports])
    client = remote.connect(about.uri)
    children = client.search_runs([str(closed.experiment_id)], f"tags.`mlflow.parentRunId` = '{closed.run_id}'")
    assert {run.info.run_id for run in children} == {one.run_id for one in reports}
    for number, (state, status) in enumerate(ENDINGS.items(), 1):
        run = client.get_run(str(reports[number - 1].run_id))
        assert run.info.status == status
        assert run.info.run_name == f"{number:04} global_batch_size={64 * number}"
        assert len(run.data.params) == 110
        tags = {key: run.data.tags[key] for key in (metrics.KIND, metrics.TRIAL_STATE, metrics.NAME)}
        assert tags == {metrics.KIND: "trial", metrics.TRIAL_STATE: state, metrics.NAME: about.name}
        assert run.data.tags[metrics.STATUS_REASON] == ("" if state == "finished" else f"it was {state}")
        assert f"## {number:04} global\\_batch\\_size={64 * number}" in run.data.tags[metrics.NOTE]
        assert [step for _, step, _, _ in stored(about.uri, run.info.run_id)] == list(range(1, 5 + number))
        assert {item.path for item in client.list_artifacts(run.info.run_id)} == {"config.yaml"}
    found = client.get_run(str(closed.run_id))
    assert metrics.PARENT_RUN not in found.data.tags
    assert found.data.tags[metrics.NOTE].startswith("## mnist\n\n**Best: lr=1** with val/accuracy 0.5 (1 seed).")
    assert found.data.metrics.pop(metrics.LAG_SECONDS) > 0
    assert found.data.metrics == {
        "best/val/accuracy": 0.5,
        "trials/finished": 1,
        "trials/failed": 3,
        "trials/pruned": 1,
    }
    steps = [(step, stamp) for key, step, _, stamp in stored(about.uri, closed.run_id) if key == "trials/failed"]
    assert steps == [(step, 1_000 + step) for step in range(1, 6)]
    assert [item.path for item in client.list_artifacts(str(closed.run_id))] == ["trials.csv"]


def test_a_sweep_in_a_database(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, stored: Stored, runs_of: RunsOf
) -> None:
    about = record(sqlite_uri, tags=sweep_tags("s"), picture=False)
    check_a_sweep(tmp_path / "sweep", about, points, stored, runs_of)
    names = {experiment.name for experiment in remote.connect(sqlite_uri).search_experiments()}
    assert names == {"Default", about.experiment}


def test_a_sweep_on_a_server(
    tmp_path: Path, server_uri: str, record: MakeRecord, points: MakePoints, stored: Stored, runs_of: RunsOf
) -> None:
    check_a_sweep(tmp_path / "sweep", record(server_uri, tags=sweep_tags("s")), points, stored, runs_of)


def test_a_child_waits_for_its_parent(tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints) -> None:
    about = record(sqlite_uri)
    child = Recorder(tmp_path / "child", trial(about, 1))
    child.append(points(1, 3))
    child.start_shipping()
    time.sleep(1.0)
    assert child.report().run_id is None
    parent = Recorder(tmp_path / "parent", about)
    parent.start_shipping()
    report = child.close("FINISHED")
    assert (report.unsent, report.error) == (0, None)
    run = remote.connect(sqlite_uri).get_run(str(report.run_id))
    assert run.data.tags[metrics.PARENT_RUN] == parent.close("FINISHED").run_id


def test_a_parent_that_never_comes_is_an_error_and_no_hanging(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, runs_of: RunsOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "PARENT_SECONDS", 0.3)
    about = record(sqlite_uri)
    child = Recorder(tmp_path / "child", trial(about, 1))
    report = child.close("FINISHED", timeout_seconds=3)
    assert f"the parent run {about.run_id!r} is not in MLflow" in str(report.error)
    assert report.run_id is None
    assert runs_of(about) == []


def test_a_parent_that_was_deleted_in_mlflow_gets_its_later_children(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints
) -> None:
    about = record(sqlite_uri)
    parent = Recorder(tmp_path / "parent", about)
    parent.start_shipping()
    first = run_trial(tmp_path / "1", trial(about, 1), points(1, 3), "finished")
    client = remote.connect(sqlite_uri)
    client.delete_run(client.get_run(str(first.run_id)).data.tags[metrics.PARENT_RUN])
    parent.append([Point(metrics.trials_metric("finished"), 1.0, 1, 1)])
    report = parent.close("FINISHED")
    later = run_trial(tmp_path / "2", trial(about, 2), points(1, 3), "finished")
    assert client.get_run(str(later.run_id)).data.tags[metrics.PARENT_RUN] == report.run_id


def test_a_child_takes_few_requests(
    tmp_path: Path, sqlite_uri: str, record: MakeRecord, points: MakePoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    about = record(sqlite_uri)
    parent = Recorder(tmp_path / "parent", about)
    parent.start_shipping()
    run_trial(tmp_path / "1", trial(about, 1), points(1, 3), "finished")
    parent.close("FINISHED")  # its thread would make requests of its own meanwhile
    calls: list[str] = []

    def counted(name: str) -> Callable[..., object]:
        inner = getattr(MlflowClient, name)

        def call(client: MlflowClient, *args: object, **kwargs: object) -> object:
            if client.tracking_uri == sqlite_uri:  # recorders that other tests left as after a crash still try theirs
                calls.append(name)
            return inner(client, *args, **kwargs)

        return call

    for name in ("get_experiment_by_name", "search_runs", "create_run", "log_batch", "get_run", "set_terminated"):
        monkeypatch.setattr(MlflowClient, name, counted(name))
    recorder = Recorder(tmp_path / "2", trial(about, 2))
    recorder.append(points(1, 31, since=int(time.time() * 1000) - 31))
    assert recorder.close("FINISHED").unsent == 0
    assert calls == ["search_runs", "create_run", "log_batch", "set_terminated"]


def test_a_record_of_an_older_version_is_read(tmp_path: Path) -> None:
    RunRecord("r", "n", "http://h", "e").save(tmp_path)
    content = json.loads((tmp_path / "record.json").read_text())
    for key in ("parent", "title", "picture"):
        del content[key]
    (tmp_path / "record.json").write_text(json.dumps(content))
    record = RunRecord.load(tmp_path)
    assert (record.parent, record.title, record.picture) == ("", "", True)
    assert (record.tags[metrics.NAME], record.tags[metrics.KIND]) == ("n", "run")


def test_a_run_is_not_its_own_parent() -> None:
    with pytest.raises(ValueError, match="another run"):
        RunRecord("r", "n", "http://h", "e", parent="r")
    with pytest.raises(ValueError, match="another run"):
        RunRecord("r", "n", "http://h", "e", parent="a' or '1")


# --- the parent's note --------------------------------------------------------------------------------------------


def seeded(lr: float, *accuracies: float) -> list[TrialRow]:
    more = {"setting": {"optimizer.lr": lr}, "samples": 1000, "samples_per_second": 500.0, "seconds": 2.0, "workers": 2}
    return [row(int(lr * 1000) + seed, accuracy=value, **more) for seed, value in enumerate(accuracies)]


def test_the_note_begins_with_the_answer_and_ranks_the_settings() -> None:
    rows = [*seeded(0.1, 0.90, 0.92), *seeded(0.2, 0.95, 0.93), *seeded(0.4, 0.5)]
    note = sweep_note("mnist", "finished", None, ACCURACY, rows, command="paceline train best.yaml")
    assert note.splitlines()[2] == (
        "**Best: optimizer.lr=0.2** with val/accuracy 0.94 ± 0.014 (2 seeds). Compared with 2 other finished "
        "settings: next is optimizer.lr=0.1 with 0.91 ± 0.014; last is optimizer.lr=0.4 with 0.5."
    )
    assert "```\npaceline train best.yaml\n```" in note
    assert "| 1 | optimizer.lr=0.2 | 0.94 ± 0.014 | 500 | finished | 2 |" in note
    assert "| 3 | optimizer.lr=0.4 | 0.5 | 500 | finished | 1 |" in note
    assert "Spent on 5 trials: 5,000 samples and 20 worker-seconds." in note
    lowest = sweep_note("mnist", "finished", None, [Objective("val/accuracy", "min")], rows)
    assert "**Best: optimizer.lr=0.4** with val/accuracy 0.5" in lowest
    chosen = sweep_note("mnist", "finished", None, ACCURACY, rows, best="0100")
    assert "**Best: optimizer.lr=0.1**" in chosen


def test_the_note_tells_what_did_not_finish_and_what_it_cost() -> None:
    rows = [
        *seeded(0.1, 0.9),
        *(row(number, "pruned", 0.99, reason="worse than half", seconds=3.0, samples=10) for number in (1, 2)),
        row(3, "oom", reason="no memory", seconds=1.0, samples=5),
        row(4, "skipped", reason="the batch is too large"),
        row(5, "running"),
    ]
    note = sweep_note("n", "interrupted", "Ctrl-C", ACCURACY, rows)
    assert "**Best: optimizer.lr=0.1**" in note  # a pruned trial's value is no result
    assert "Sweep **interrupted**: Ctrl-C" in note
    assert "- 2 **pruned** (0001, 0002): worse than half" in note
    assert "- 1 **oom** (0003): no memory" in note
    assert "- 1 **skipped** (0004): the batch is too large" in note
    assert "1,025 samples and 11 worker-seconds; of these 5 samples and 1 worker-seconds on 1 failed" in note
    assert "of these 20 samples and 6 worker-seconds on 2 pruned." in note


def table_of(note: str) -> list[list[str]]:
    """The cells of the note's table, without its head."""
    lines = [line for line in note.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


def test_what_did_not_finish_is_shown_below_without_a_rank() -> None:
    pruned = {"state": "pruned", "setting": {"lr": 0.3}, "samples_per_second": 40.0}
    rows = [
        row(1, "failed"),
        row(2, accuracy=0.99, **pruned),
        row(3, accuracy=0.75, **pruned),
        row(4, accuracy=0.25, setting={"lr": 0.4}),
        row(5, "pruned", 0.5, setting={"lr": 0.4}),
    ]
    assert table_of(sweep_note("n", "finished", None, ACCURACY, rows)) == [
        ["1", "lr=0.4", "0.25", "", "1 finished, 1 pruned", "2"],
        ["", "lr=0.3", "0.99, 0.75", "40", "pruned", "2"],
        ["", "lr=1", "", "", "failed", "1"],
    ]
    many = [row(number, accuracy=number / 10, **pruned) for number in range(5)]
    assert table_of(sweep_note("n", "finished", None, ACCURACY, many))[0][2] == "0, 0.1, 0.2, ..."


def test_the_values_of_a_setting_are_short() -> None:
    rows = [row(1, accuracy=0.5, setting={"lr": 0.012345678901234567, "wide": True, "size": 123456})]
    note = sweep_note("n", "finished", None, ACCURACY, rows)
    assert "**Best: lr=0.01235, wide=true, size=123456**" in note
    assert "0.012345678901234567" in trials_csv(rows)


def test_the_rate_has_one_column() -> None:
    rows = [row(1, accuracy=0.5, samples_per_second=40.0)]
    fast = [Objective("samples_per_second", "max")]
    measured = [row(1, metrics={"samples_per_second": 40.0}, samples_per_second=40.0)]
    assert [len(cells) for cells in table_of(sweep_note("n", "finished", None, ACCURACY, rows))] == [6]
    note = sweep_note("n", "finished", None, fast, measured)
    assert table_of(note) == [["1", "lr=1", "40", "finished", "1"]]
    assert "samples/s |" not in note


def test_quotes_show_as_themselves() -> None:
    reason = """no trial reports 'val/acc', it's "val/accuracy" & <b>'s"""
    note = sweep_note("n", "failed", reason, ACCURACY, [])
    assert """no trial reports 'val/acc', it's "val/accuracy" &amp; &lt;b&gt;'s""" in note


def test_without_a_result_the_note_says_so() -> None:
    rows = [row(1, "failed"), row(2, accuracy=float("nan"))]
    for given in (rows, []):
        assert "**No best setting yet**" in sweep_note("n", "failed", None, ACCURACY, given)


def test_what_users_typed_stays_in_its_cell() -> None:
    hostile = "a|b\n| 9 | <script>alert(1)</script> [x](http://evil.example) www.evil.example me@evil.example `c` **d**"
    rows = [
        row(1, accuracy=0.5, setting={hostile: hostile}),
        row(2, "failed", reason=hostile, setting={"k": hostile}),
    ]
    note = sweep_note(hostile, "failed", hostile, [Objective("val/accuracy", "max")], rows, command=f"```{hostile}")
    outside = "".join(note.split("```")[::2])
    table = [line for line in outside.splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {7}
    assert not re.search(r"<script|(?<!\\)\[|://\w|www\.|@\w|(?<!\\)`|\*\*d", outside)
    assert note.count("```") == 2


@pytest.mark.parametrize(("count", "length"), [(63, 3), (63, 5000), (300, 400)])
def test_a_long_note_is_cut_by_rows(count: int, length: int) -> None:
    rows = [row(number, accuracy=number / count, setting={"|" * length: number}) for number in range(count)]
    rows += [row(count + number, "failed", reason=f"{number}" + "|" * 5000, setting={"z": number}) for number in (1, 2)]
    note = sweep_note("x" * 5000, "finished", None, ACCURACY, rows)
    assert len(note) <= TAG_LENGTH
    shown = len(re.findall(r"^\| \d+ \|", note, re.MULTILINE))
    assert 1 <= shown <= 20
    assert f"... and {count + 2 - shown} more" in note
    assert "Spent on" in note


def test_the_points_of_the_parent_count_what_ended() -> None:
    endings = {"finished": 1, "oom": 1, "failed": 1, "skipped": 1, "pruned": 1}
    points = {point.key: (point.value, point.step) for point in sweep_points(endings, {"val/accuracy": 0.5}, 7)}
    assert points == {
        metrics.best_metric("val/accuracy"): (0.5, 5),
        metrics.trials_metric("finished"): (1.0, 5),
        metrics.trials_metric("failed"): (2.0, 5),
        metrics.trials_metric("pruned"): (1.0, 5),
    }
    with pytest.raises(ValueError, match="finished, failed, pruned"):
        metrics.trials_metric("oom")


def test_the_table_of_trials_has_a_column_for_each_key() -> None:
    rows = [row(1, accuracy=0.5), row(2, "failed", reason='a "b", c', setting={"scheduler.name": "step"})]
    first, second = csv.DictReader(io.StringIO(trials_csv(rows)))
    assert (first["lr"], first["scheduler.name"], first["val/accuracy"]) == ("1", "", "0.5")
    assert (second["lr"], second["scheduler.name"], second["reason"]) == ("", "step", 'a "b", c')
