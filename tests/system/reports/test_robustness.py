"""Reports of hostile, secret, damaged and odd content, and the file that is written."""

import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import run
from paceline.errors import ConfigError, EnvironmentFault
from paceline.runs.finding import FoundRun
from paceline.runs.report.report import report_of, write_report
from paceline.tracking import metrics
from paceline.tracking.journal import Journal
from support.golden import Golden
from support.reports.folders import curve, made_run, made_sweep, page_of, recorded, some_trials, trial

SCRIPT = "<script>alert('x')</script>"
HOSTILE = f"{SCRIPT}<img src=x onerror=alert(1)>\"' javascript:alert(2)"


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
    assert page.text.count(SCRIPT) >= 5
    assert "<script>" in page.all("span", title=None)[0].attributes["title"]


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
    assert page.text.count(SCRIPT) >= 8
    assert page.one("tr", data_metric="val/<script>x</script>")
    file = found.tracking / "record.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "uri": "javascript:alert(1)//"}))
    page_of(found)  # no link leads there


def test_secrets_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary, other = "canary-5ac1d0-secret", "hidden-9f8e7d-value"
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", canary)
    reason = f"cannot reach https://me:{other}@host/x?token={other}: password={other} and {canary}"
    trials = [*some_trials()[:4], trial(4, None, "failed", reason, **{"optimizer.lr": 0.3, "data.args.api_key": other})]
    found = made_sweep(tmp_path, trials, uri=f"http://me:{other}@mlflow.example:5000", reason=reason)
    best = found.folder / "best.yaml"
    best.write_text(f"{best.read_text()}\npassword: {other}\n")
    log = (found.folder / "log.jsonl").read_text()
    text = report_of(found).decode()
    assert "***" in text
    for secret in (canary, other):
        assert secret in log
        assert secret not in text


# Whatever state the folder is in


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308])
def test_values_that_are_hardly_numbers(tmp_path: Path, value: float) -> None:
    trials = some_trials()[:4]
    trials[:2] = [trial(number, value, **trials[number].params) for number in range(2)]
    page_of(made_sweep(tmp_path, trials))
    points = [*curve(value, (10, 20)), *curve(0.3, (30, 40)), *curve(value, (10, 20), "val/accuracy")]
    page_of(made_run(tmp_path, points))


def test_torn_damaged_and_missing_files(tmp_path: Path, golden: Golden) -> None:
    found = made_sweep(tmp_path, some_trials()[:6])
    folders = [found.folder / "trials" / f"000{number}" / "tracking" for number in range(5)]
    with (folders[0] / "journal.jsonl").open("ab") as file:
        file.write(b'{"n":99,"kind":"point","key":"train/lo')
    (folders[1] / "record.json").unlink()
    (folders[2] / "record.json").write_bytes(b'{"run_id": 3')
    damaged = b'\x00\xff{]\n[]\nnull\n{"kind":"point"}\n{"kind":"tags","tags":[]}\n' * 3
    (folders[3] / "journal.jsonl").write_bytes(damaged)
    for each in folders[4].iterdir():
        if each.is_file():
            each.unlink()
    with (found.folder / "log.jsonl").open("ab") as file:
        file.write(b'{"n":99,"kind":"trial","id":"00')
    assert page_of(found).all(role="alert") == []
    told = []
    for folder in folders[1:4]:
        (warning,) = page_of(FoundRun("trial", folder.parent)).all(role="alert")
        told.append(warning.text)
    assert "15" in told[-1]
    golden("\n".join(told))
    with pytest.raises(EnvironmentFault) as caught:
        report_of(FoundRun("trial", folders[4].parent))
    assert caught.value.code == "no-record"


def test_a_folder_that_cannot_be_understood_is_an_error(tmp_path: Path) -> None:
    found = made_sweep(tmp_path, some_trials()[:2])
    log, text = found.folder / "log.jsonl", (found.folder / "log.jsonl").read_bytes()
    log.write_bytes(text + b'{"n":99,"kind":"trial","id":"0099","params":{},"colour":"blue"}\n')
    with pytest.raises(EnvironmentFault, match=re.escape(str(found.folder))):  # as of another version
        report_of(found)
    log.unlink()
    log.mkdir()
    with pytest.raises(EnvironmentFault, match=re.escape(str(log))):
        write_report(found)
    log.rmdir()
    log.write_bytes(text)
    content = json.loads((found.folder / "sweep.json").read_text())
    (found.folder / "sweep.json").write_text(json.dumps({**content, "config": {"name": 3}}))
    with pytest.raises(ConfigError):
        report_of(found)
    (found.folder / "sweep.json").write_text("{")
    with pytest.raises(EnvironmentFault, match=re.escape(str(found.folder))):
        report_of(found)


def test_unusual_and_long_names(tmp_path: Path) -> None:
    name = "Größe 模型 \u202e gnirts \ud800 \x00 " + "long" * 3000
    trials = [*some_trials()[:4], trial(4, 0.2, **{"optimizer.lr": 0.3, "data.args.text": name})]
    trials.append(trial(5, None, "failed", "why " * 5000, **{"optimizer.lr": 0.4}))
    page = page_of(made_sweep(tmp_path, trials, tags={metrics.COMMAND: "模型" * 3000}))
    assert "模型" in page.text
    assert "Größe" in page_of(made_run(tmp_path, curve(0.2), name=name.replace("\ud800", ""))).text


# The file


@pytest.fixture
def found(tmp_path: Path) -> FoundRun:
    return made_run(tmp_path / "runs", curve(0.2))


def test_the_command_writes_into_the_runs_folder_or_elsewhere(
    found: FoundRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", "compare", "--storage", str(tmp_path / "runs")]) == 0
    place = found.folder / "report.html"
    assert capsys.readouterr().out == f"{place}\n"
    assert place.read_bytes() == report_of(found)
    place = tmp_path / "new" / "page.html"
    assert run(["report", str(found.folder), "--output", str(place), "--json"]) == 0
    told = {"report": str(place), "kind": "run", "folder": str(found.folder), "size_bytes": place.stat().st_size}
    assert json.loads(capsys.readouterr().out) == told
    assert run(["report", "nothing", "--storage", str(tmp_path)]) == 3
    assert "nothing" in capsys.readouterr().err


def test_a_pipe_takes_the_report_and_stays(found: FoundRun, tmp_path: Path) -> None:
    pipe, link, taken = tmp_path / "pipe", tmp_path / "to the pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: taken.append(pipe.read_bytes()), daemon=True)
    reader.start()
    link.symlink_to(pipe)
    assert write_report(found, link) == link
    reader.join(60)
    assert taken == [report_of(found)]
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_a_link_stays_and_its_target_is_written(found: FoundRun, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.html").symlink_to(tmp_path / "elsewhere" / "page.html")
    for _ in range(2):
        write_report(found, tmp_path / "link.html")
        assert (tmp_path / "link.html").is_symlink()
        assert (tmp_path / "elsewhere" / "page.html").read_bytes() == report_of(found)


def test_a_place_that_cannot_be_written_is_named(found: FoundRun, tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "link")
    codes = {".": "output-not-usable", "file/report.html": "output-not-written", "link": "output-not-written"}
    for name, code in codes.items():
        with pytest.raises(EnvironmentFault) as caught:
            write_report(found, tmp_path / name)
        assert (caught.value.code, caught.value.fields) == (code, {"path": tmp_path / name})
        golden(str(caught.value), name)
