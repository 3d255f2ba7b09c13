"""The run that is meant by a name, an id or a folder."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline import evaluate, predict
from paceline.errors import EnvironmentFault, PacelineError
from paceline.runs.finding import find_run, runs_under, trials_of
from paceline.runs.reopening import summary_in
from support.golden import Golden
from support.refusals import refused

OLD, NEW, SWEEP = "20250101-000000-aaaaaa", "20250301-000000-bbbbbb", "20250201-000000-cccccc"


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`runs` in the working folder: two runs and a sweep of one name, another name, and what is no run."""
    monkeypatch.chdir(tmp_path)
    storage = tmp_path / "runs"
    for place in (f"mnist/{OLD}", f"mnist/{NEW}", f"other/{OLD}"):
        (storage / place / "checkpoints" / "step-3").mkdir(parents=True)
        (storage / place / "run.json").write_text("{}")
    for trial in ("0000", "0001", "0010"):
        (storage / "mnist" / SWEEP / "trials" / trial / "tracking").mkdir(parents=True)
    (storage / "mnist" / SWEEP / "sweep.json").write_text("{}")
    (storage / "mnist" / "20250401-half-made").mkdir()
    (storage / "mnist" / ".lock").write_text("")
    return storage


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("mnist", "run", f"mnist/{NEW}"),
        ("runs/mnist", "run", f"mnist/{NEW}"),
        (f"mnist/{OLD}", "run", f"mnist/{OLD}"),
        (f"runs/mnist/{OLD}/", "run", f"mnist/{OLD}"),
        (f"./runs/other/../mnist/{OLD}", "run", f"mnist/{OLD}"),
        (f"mnist/{SWEEP}", "sweep", f"mnist/{SWEEP}"),
        (f"mnist/{SWEEP}/0010", "trial", f"mnist/{SWEEP}/trials/0010"),
        (f"runs/mnist/{SWEEP}/trials/0001", "trial", f"mnist/{SWEEP}/trials/0001"),
    ],
)
def test_a_run_is_found_by_folder_name_and_id(storage: Path, text: str, kind: str, place: str) -> None:
    found = find_run(text)
    assert (found.kind, found.folder) == (kind, storage / place)
    assert (found.name, found.id) == ("mnist", Path(place).name)
    assert str(found) == f"{kind} {place.replace('/trials', '')}"
    assert find_run(storage / place) == found


def test_a_name_of_runs_and_sweeps_tells_what_else_it_means(storage: Path) -> None:
    """The run is newer than the sweep here, then a newer sweep is added."""
    run = find_run("mnist")
    assert run.passed_over == find_run(f"mnist/{SWEEP}")
    newer = storage / "mnist" / "20250302-000000-dddddd"
    (newer / "trials").mkdir(parents=True)
    (newer / "sweep.json").write_text("{}")
    sweep = find_run("mnist")
    assert (sweep.folder, sweep.passed_over) == (newer, run)
    assert (sweep.preferring("run"), sweep.preferring("sweep"), run.preferring("run")) == (run, sweep, run)
    assert f"mnist/{NEW}" in sweep.note


def test_python_calls_warn_of_a_name_of_runs_and_sweeps(storage: Path) -> None:
    calls: tuple[Callable[[str], object], ...] = (evaluate, predict)
    for call in calls:
        with pytest.warns(UserWarning, match=SWEEP) as caught, pytest.raises(PacelineError):
            call("mnist")  # whose folder holds no config
        assert caught[0].filename == __file__


@pytest.mark.parametrize("text", [f"mnist/{NEW}", "other"])
def test_nothing_else_is_told_where_only_one_can_be_meant(storage: Path, text: str) -> None:
    assert find_run(text).note == ""


def test_the_storage_may_be_elsewhere(storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    assert find_run("mnist", storage).folder == storage / "mnist" / NEW
    assert refused(EnvironmentFault, find_run, "mnist").code == "no-run"


def test_all_runs_and_trials_are_listed_in_order(storage: Path) -> None:
    assert [found.id for found in runs_under(storage)] == [OLD, SWEEP, NEW, OLD]
    trials = trials_of(storage / "mnist" / SWEEP)
    assert [(found.id, found.sweep) for found in trials] == [
        (number, storage / "mnist" / SWEEP) for number in ("0000", "0001", "0010")
    ]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("mnits", "no-run"),
        (f"mnist/{OLD[:-1]}", "no-run"),
        ("runs", "no-run"),
        (f"runs/mnist/{OLD}/checkpoints/step-3", "no-run"),
        (f"mnist/{SWEEP}/0007", "no-run"),
        ("f" * 32, "no-folder"),
        ("  ", "no-run"),
    ],
    ids=["name", "id", "storage", "checkpoint", "trial", "mlflow", "empty"],
)
def test_for_what_is_not_there_the_error_names_what_is(storage: Path, text: str, code: str, golden: Golden) -> None:
    refusal = refused(EnvironmentFault, find_run, text)
    assert (refusal.code, refusal.fields["run"]) == (code, text.strip())
    golden(str(refusal))


def test_a_run_is_found_by_its_id_in_mlflow(storage: Path) -> None:
    for place, number in ((f"mnist/{OLD}", 1), (f"mnist/{SWEEP}/trials/0001", 2)):
        tracking = storage / place / "tracking"
        tracking.mkdir(exist_ok=True)
        (tracking / "uploaded.json").write_text(json.dumps({"run_id": f"{number:032x}"}))
    assert find_run(f"{1:032x}").folder == storage / "mnist" / OLD
    assert find_run(f"{2:032x}").folder == storage / "mnist" / SWEEP / "trials" / "0001"


@pytest.mark.parametrize(
    ("status", "shown"), [("finished", "the best"), ("failed", "the best"), ("interrupted", ""), ("running", "")]
)
def test_a_summary_is_that_of_what_has_ended(status: str, shown: str) -> None:
    """One that was extended or resumed still has the summary of its earlier end."""
    assert summary_in({"status": status, "summary": "the best"}) == shown
    assert summary_in({"status": status}) == ""
