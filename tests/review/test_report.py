"""`paceline report`: one HTML file that tells what a run or a sweep came to."""

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run
from paceline.errors import ConfigError, EnvironmentFault
from paceline.review.finding import FoundRun
from paceline.review.report.report import report_of, write_report
from paceline.tracking import metrics
from paceline.tracking.costs import COST_FILE, SWEEP_PARTS, Ledger
from paceline.tracking.journal import Journal
from review.report_folders import MLFLOW_ID, config, curve, made_run, made_sweep, page_of, recorded, some_trials, trial

LEDGER = Ledger(
    "core",
    100.0,
    dict.fromkeys(SWEEP_PARTS, 0.0) | {"finished": 80.0, "pruned": 20.0},
    price_per_hour=36.0,
    kinds=SWEEP_PARTS,
)
STAMP = {
    "device": "cpu",
    "device_type": "cpu",
    "nodes": 1,
    "workers": 1,
    "gpus": 0,
    "threads_per_worker": 2,
    "usable_cores": 2,
    "cpu": "some",
    "torch": "2",
    "measured_steps": 50,
    "warm_up_steps": 5,
    "other_load_start": 0.01,
    "other_load_end": 0.0,
}


# What is told


def test_a_sweep_answers_first(tmp_path: Path) -> None:
    page = page_of(made_sweep(tmp_path, some_trials()))
    answer = "Best: lr=0.2, global_batch_size=32 val/accuracy 0.8685 ± 0.00071 (2 seeds)"
    assert answer in page.words
    assert "It beats 4 other finished settings: next is lr=0.2, global_batch_size=64 with 0.8365" in page.words
    assert page.words.index(answer) < page.words.index("Ranking", page.words.index(answer))
    assert page.titles == ["ranking", "pictures", "best", "unfinished", "cost", "speeds", "origin"]


def test_the_ranking_has_every_setting_with_links_to_its_trials(tmp_path: Path) -> None:
    page = page_of(made_sweep(tmp_path, some_trials()))
    table = page.words[page.words.index("peak memory seeds trials") :]
    assert table.startswith("peak memory seeds trials 1 0.2 32 0.8685 ± 0.00071")
    assert "0010 pruned" in table
    assert "0011 out of memory" in table
    address = f"http://mlflow.example:5000/#/experiments/4/runs/{MLFLOW_ID}"
    assert any(each["href"].partition("?")[0] == address for each in page.all("a"))


def test_a_sweep_tells_why_trials_did_not_finish_and_how_to_train_the_best(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    page = page_of(found)
    assert "1 out of memory CUDA out of memory" in page.words
    assert "1 pruned asha: 0.3 is not among the best third" in page.words
    assert f"paceline train {found.folder / 'best.yaml'}" in page.words
    assert "name: compare-best" in page.words


def test_the_best_config_is_compared_with_the_sweeps_own(tmp_path: Path) -> None:
    words = page_of(made_sweep(tmp_path, some_trials())).words
    changes = words[words.index("What it has otherwise") :]
    assert "data.global_batch_size 64 32" in changes
    assert "optimizer.lr 0.1 0.2" in changes
    assert "seed 0 1" in changes
    assert "model.name" not in changes[: changes.index("The whole config")]


def test_the_ledger_is_told(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials(), artifacts={COST_FILE: json.dumps(LEDGER.to_json())})
    words = page_of(found).words
    assert "finished trials 80.0 1 min 20 s 80 % 0.8" in words
    assert "all 100.0 1 min 40 s 100 % 1" in words
    assert "finished trials 80.0" not in page_of(made_sweep(tmp_path, some_trials())).words


def test_the_ledger_of_a_killed_sweep_is_told(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials(), written="running", status=None)
    (found.folder / "tracking" / COST_FILE).write_text(json.dumps(LEDGER.to_json()))
    assert "finished trials 80.0 1 min 20 s 80 % 0.8" in page_of(found).words


def test_a_newer_ledger_counts_and_tells_of_other_devices(tmp_path: Path) -> None:
    cores = Ledger("core", 50.0, {**dict.fromkeys(SWEEP_PARTS, 0.0), "pruned": 50.0}, kinds=SWEEP_PARTS)
    found = made_sweep(tmp_path, some_trials(), artifacts={COST_FILE: json.dumps(cores.to_json())})
    (found.folder / "tracking" / COST_FILE).write_text(json.dumps(replace(LEDGER, unit="GPU").after(cores).to_json()))
    words = page_of(found).words
    assert "also spent 50 core-seconds: 100 % pruned trials" in words
    assert "finished trials 80.0 1 min 20 s 80 %" in words


def test_there_is_a_picture_of_each_kind(tmp_path: Path) -> None:
    page = page_of(made_sweep(tmp_path, some_trials()))
    drawn = [each["aria-label"] for each in page.all("svg") if "aria-label" in each]
    assert drawn[:3] == ["train/loss", "val/accuracy", "Pareto front"]
    assert drawn[3].startswith("val/accuracy over ")
    # one for each setting that is named, since it has two seeds
    assert sum("band" in each.get("class", "") for each in page.all("path")) == 2 * 5


def test_a_recorded_picture_of_what_matters_is_shown_rather_than_worked_out_again(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials(), artifacts={"importance.png": "PNG"})
    assert [each["src"] for each in page_of(found).all("img")] == ["data:image/png;base64,UE5H"]


def test_speeds_are_compared_by_their_stamps(tmp_path: Path) -> None:
    assert "Not known: fewer than two" in page_of(made_sweep(tmp_path, some_trials())).words
    found = made_sweep(tmp_path, some_trials(), trial_options={"later": {metrics.SPEED_STAMP: json.dumps(STAMP)}})
    assert "9 of 9 finished trials can be compared with 0005" in page_of(found).words
    other = found.folder / "trials" / "0002" / "tracking"
    Journal(other / "journal.jsonl").append(
        [("tags", {"tags": {metrics.SPEED_STAMP: json.dumps({**STAMP, "device": "H100"})}})]
    )
    words = page_of(found).words
    assert "8 of 9 finished trials can be compared with 0005" in words
    assert "1 trial (0002): they ran on different devices: cpu and H100" in words


def test_a_run_tells_its_outcome_metrics_and_origin(tmp_path: Path) -> None:
    points = [*curve(0.2), *curve(0.1, (50, 100), "val/loss")]
    tags = {metrics.COMMAND: "paceline train some.yaml", metrics.GIT_COMMIT: "abc123", metrics.HOST: "node7"}
    page = page_of(made_run(tmp_path, points, tags=tags, params={"derived.world_size": 2}))
    assert "Finished after 100 optimizer steps" in page.words
    assert "train/loss 0.2357 0.2357 100 0.2357 0.9165 10" in page.words
    assert "git checkout abc123 paceline train some.yaml" in page.words
    assert "machine node7" in page.words
    assert "world size 2" in page.words
    assert "global_batch_size: 64" in page.words
    assert page.titles == ["metrics", "curves", "checkpoints", "config", "again", "origin"]


def test_a_run_that_failed_tells_why(tmp_path: Path) -> None:
    points = [*curve(0.2), *curve(float("nan"), (110,))]
    page = page_of(made_run(tmp_path, points, "failed", status="FAILED", reason="rank 1: out of disk"))
    assert "Failed after 110 optimizer steps" in page.words
    assert "train/loss is not finite at step 110" in page.words
    assert "rank 1: out of disk" in page.words


def test_a_straggler_and_the_stamp_are_told(tmp_path: Path) -> None:
    later = {metrics.STRAGGLER: "rank 3 on node7: 1.4 times", metrics.SPEED_STAMP: json.dumps(STAMP)}
    words = page_of(made_run(tmp_path, curve(0.2), later=later)).words
    assert "straggler rank 3 on node7: 1.4 times" in words
    assert "threads per worker 2" in words


def test_a_trial_has_a_report_of_its_own(tmp_path: Path) -> None:
    sweep = made_sweep(tmp_path, some_trials(), trial_options={"later": {metrics.TRIAL_STATE: "pruned"}})
    page = page_of(FoundRun("trial", sweep.folder / "trials" / "0003"))
    assert "Pruned after 100 optimizer steps" in page.words
    assert "val/accuracy" in page.words


def test_a_report_of_the_same_is_the_same(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    assert report_of(found) == report_of(found)


# What users write is text, and secrets are hidden

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"' javascript:alert(2)"


def test_what_users_write_into_a_sweep_is_shown_as_text(tmp_path: Path) -> None:
    trials = [trial(number, 0.5, **{"model.name": f"{number}{HOSTILE}", "optimizer.lr": 0.1}) for number in range(3)]
    trials.append(trial(3, None, "failed", HOSTILE, **{"<script>": HOSTILE}))
    options: dict[str, Any] = {"tags": {metrics.COMMAND: HOSTILE, metrics.HOST: HOSTILE}, "reason": HOSTILE}
    found = made_sweep(tmp_path, [], name=HOSTILE, **options)
    log = Journal(found.folder / "log.jsonl")
    log.append([("trial", vars(each)) for each in trials])  # the best one is no valid config
    log.close()
    recorded(found.folder / "trials" / "0000" / "tracking", curve(0.3), name=HOSTILE)
    (found.folder / "best.yaml").write_text(f"# {HOSTILE}\nname: x\n")
    page = page_of(found)
    assert page.words.count("<script>alert('x')</script>") >= 5
    assert "<script>" in next(each["title"] for each in page.all("span") if "title" in each)


def test_what_users_write_into_a_run_is_shown_as_text(tmp_path: Path) -> None:
    found = made_run(
        tmp_path,
        [*curve(0.3), *curve(0.3, key="val/<script>x</script>")],
        name=HOSTILE,
        tags={metrics.COMMAND: HOSTILE, metrics.version_tag("torch"): HOSTILE},
        params={HOSTILE: HOSTILE, "derived.<script>": HOSTILE},
        artifacts={"config.yaml": f"name: {HOSTILE}", "environment.txt": HOSTILE},
        later={
            metrics.CHANGED_PARAMS: HOSTILE,
            metrics.STRAGGLER: HOSTILE,
            metrics.SPEED_STAMP: json.dumps({HOSTILE: HOSTILE}),
        },
        reason=HOSTILE,
        status="FAILED",
    )
    page = page_of(found)
    assert page.words.count("<script>alert('x')</script>") >= 8
    assert "val/<script>x</script>" in page.words


def test_an_address_that_is_none_of_the_web_is_no_link(tmp_path: Path) -> None:
    found = made_run(tmp_path, curve(0.3))
    file = found.tracking / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "uri": "http://javascript:alert(1)//"}))
    page_of(found)


def test_secrets_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary, other = "canary-5ac1d0-secret", "hidden-9f8e7d-value"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", canary)
    reason = f"cannot reach https://me:{other}@host/x?token={other}: password={other} and {canary}"
    trials = [*some_trials()[:4], trial(4, None, "failed", reason, **{"optimizer.lr": 0.3, "data.args.api_key": other})]
    found = made_sweep(tmp_path, trials, uri=f"http://me:{other}@mlflow.example:5000", reason=reason)
    best = found.folder / "best.yaml"
    best.write_text(f"{best.read_text()}\npassword: {other}\n")
    log = (found.folder / "log.jsonl").read_text()
    assert canary in log
    assert other in log
    text = report_of(found).decode()
    assert canary not in text
    assert other not in text
    assert "***" in text


# Whatever state the folder is in


def test_a_sweep_in_which_nothing_has_finished(tmp_path: Path) -> None:
    where = {"optimizer.lr": 0.1, "data.global_batch_size": 32}
    page = page_of(made_sweep(tmp_path, [trial(0, 0.4, "running", **where)], written="running"))
    assert "No best setting yet" in page.words
    assert "best" not in page.titles


def test_a_sweep_without_trials(tmp_path: Path) -> None:
    words = page_of(made_sweep(tmp_path, [])).words
    assert "No trial has begun." in words
    assert "Too little has been measured to draw anything." in words


def test_a_sweep_of_one_trial(tmp_path: Path) -> None:
    own = config(sweep={"space": {"optimizer.lr": [0.1]}, "metric": "val/accuracy"})
    page = page_of(made_sweep(tmp_path, [trial(0, 0.7, **{"optimizer.lr": 0.1})], own=own))
    assert "There is no other finished setting to compare it with." in page.words


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 5e-324, 0.0])
def test_values_that_are_hardly_numbers(tmp_path: Path, value: float) -> None:
    trials = some_trials()
    trials[0] = trial(0, value, **trials[0].overrides)
    trials[1] = trial(1, value, **trials[1].overrides)
    page_of(made_sweep(tmp_path, trials))
    points = [*curve(value, (10, 20)), *curve(0.3, (30, 40)), *curve(value, (10, 20), "val/accuracy")]
    page_of(made_run(tmp_path, points))


def test_torn_damaged_and_missing_files(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    folders = [found.folder / "trials" / f"000{number}" / "tracking" for number in range(5)]
    with (folders[0] / "journal.jsonl").open("ab") as file:
        file.write(b'{"n":99,"kind":"point","key":"train/lo')
    (folders[1] / "record.json").unlink()
    (folders[2] / "record.json").write_bytes(b'{"run_id": 3')
    (folders[3] / "journal.jsonl").write_bytes(
        b'\x00\xff{]\n[]\nnull\n{"kind":"point"}\n{"kind":"tags","tags":[]}\n' * 3
    )
    for file_of_it in folders[4].iterdir():
        if file_of_it.is_file():
            file_of_it.unlink()
    with (found.folder / "log.jsonl").open("ab") as file:
        file.write(b'{"n":99,"kind":"trial","id":"00')
    page_of(found)
    assert "5 entries" not in page_of(found).words
    words = page_of(FoundRun("trial", folders[3].parent)).words
    assert "15 entries of the journal are damaged, and left out" in words
    assert "record.json is damaged" in page_of(FoundRun("trial", folders[2].parent)).words
    assert "there is no record.json" in page_of(FoundRun("trial", folders[1].parent)).words
    with pytest.raises(EnvironmentFault, match="there is nothing to tell of the trial"):
        report_of(FoundRun("trial", folders[4].parent))


def test_a_journal_of_another_version_is_an_error_in_words(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    with (found.folder / "log.jsonl").open("ab") as file:
        file.write(b'{"n":99,"kind":"trial","id":"0099","overrides":{},"colour":"blue"}\n')
    with pytest.raises(EnvironmentFault, match="another version of Paceline"):
        report_of(found)


def test_a_damaged_status_file_and_a_config_that_is_none_are_errors_in_words(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    content = json.loads((found.folder / "sweep.json").read_text())
    (found.folder / "sweep.json").write_text(json.dumps({**content, "config": {"name": 3}}))
    with pytest.raises(ConfigError, match="cannot be read"):
        report_of(found)
    (found.folder / "sweep.json").write_text("{")
    with pytest.raises(EnvironmentFault, match="is damaged"):
        report_of(found)


def test_unusual_and_long_names(tmp_path: Path) -> None:
    name = "Größe 模型 \u202e gnirts \ud800 \x00 " + "long" * 3000
    trials = [*some_trials()[:4], trial(4, 0.2, **{"optimizer.lr": 0.3, "data.args.text": name})]
    trials.append(trial(5, None, "failed", "why " * 5000, **{"optimizer.lr": 0.4}))
    page = page_of(made_sweep(tmp_path, trials, tags={metrics.COMMAND: "模型" * 3000}))
    assert "模型" in page.words
    assert "Größe" in page_of(made_run(tmp_path, curve(0.2), name=name.replace("\ud800", ""))).words


def test_a_run_that_is_still_going_on(tmp_path: Path) -> None:
    page = page_of(made_run(tmp_path, curve(0.2), "running", status=None))
    assert "Running after 100 optimizer steps" in page.words


# The command


def test_the_command_writes_into_the_runs_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made_sweep(tmp_path, some_trials())
    assert run(["report", "compare", "--storage", str(tmp_path)]) == 0
    place = found.folder / "report.html"
    assert capsys.readouterr().out == f"{place}\n"
    assert place.read_bytes() == report_of(found)


def test_the_command_writes_elsewhere_and_answers_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made_run(tmp_path / "runs", curve(0.2))
    place = tmp_path / "new" / "page.html"
    assert run(["report", str(found.folder), "--output", str(place), "--json"]) == 0
    size = place.stat().st_size
    told = {"report": str(place), "kind": "run", "folder": str(found.folder), "size_bytes": size}
    assert json.loads(capsys.readouterr().out) == told


def test_what_is_no_regular_file_takes_the_report_and_stays(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    taken: list[bytes] = []
    reader = threading.Thread(target=lambda: taken.append(pipe.read_bytes()), daemon=True)
    reader.start()
    (tmp_path / "to the pipe").symlink_to(pipe)
    assert write_report(found, tmp_path / "to the pipe") == tmp_path / "to the pipe"
    reader.join(20)
    assert taken == [report_of(found)]
    assert pipe.is_fifo()
    assert (tmp_path / "to the pipe").is_symlink()


def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "elsewhere" / "page.html")
    for _ in range(2):
        write_report(found, tmp_path / "link.html")
        assert (tmp_path / "link.html").is_symlink()
        assert (tmp_path / "elsewhere" / "page.html").read_bytes() == report_of(found)


def test_a_link_to_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(EnvironmentFault, match="the report cannot be written"):
        write_report(made_sweep(tmp_path, some_trials()), tmp_path / "link")


def test_a_journal_that_cannot_be_opened_is_told_with_its_place(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials())
    (found.folder / "log.jsonl").unlink()
    (found.folder / "log.jsonl").mkdir()
    with pytest.raises(EnvironmentFault, match=r"log\.jsonl cannot be read: Is a directory; make it readable"):
        write_report(found)


@pytest.mark.parametrize(("key", "value"), [("price_per_hour", "x"), ("joules", [1]), ("allocated_seconds", 1e999)])
def test_a_ledger_that_is_none_is_left_out(tmp_path: Path, key: str, value: object) -> None:
    found = made_sweep(tmp_path, some_trials())
    for file in (found.tracking / COST_FILE, found.tracking / "artifacts" / COST_FILE):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({**LEDGER.to_json(), key: value}))
    assert "Where it went" not in page_of(found).words


def test_what_cannot_be_written_or_found_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "nothing", "--storage", str(tmp_path)]) == 3
    assert "there is no run 'nothing'" in capsys.readouterr().err
    found = made_run(tmp_path, curve(0.2))
    with pytest.raises(EnvironmentFault, match="is a folder"):
        write_report(found, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        write_report(found, tmp_path / "file" / "report.html")
