"""Which run is meant by what a person writes, and what is said when there is none."""

import json
import shutil
from pathlib import Path

import pytest

from paceline.errors import EnvironmentFault
from paceline.review.finding import find_run, runs_under, trials_of
from paceline.tracking.record import RunRecord
from paceline.tracking.recorder import Recorder

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
    assert find_run(storage / place) == found


def test_the_storage_may_lie_elsewhere(storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.chdir(away)
    assert find_run("mnist", storage).folder == storage / "mnist" / NEW
    with pytest.raises(EnvironmentFault, match=r"away/runs is not there; go to the folder that runs/ lies in"):
        find_run("mnist")


def test_a_folder_that_happens_to_have_the_name_does_not_hide_the_runs(storage: Path) -> None:
    Path("mnist").mkdir()
    assert find_run("mnist").folder == storage / "mnist" / NEW


def test_a_run_says_what_it_is(storage: Path) -> None:
    assert str(find_run(f"mnist/{OLD}")) == f"run mnist/{OLD}"
    trial = find_run(f"mnist/{SWEEP}/0001")
    assert str(trial) == f"trial mnist/{SWEEP}/0001"
    assert trial.sweep == storage / "mnist" / SWEEP
    assert trial.tracking == storage / "mnist" / SWEEP / "trials" / "0001" / "tracking"


def test_all_runs_and_trials_are_listed_in_order(storage: Path) -> None:
    assert [found.id for found in runs_under(storage)] == [OLD, SWEEP, NEW, OLD]
    assert [found.id for found in trials_of(storage / "mnist" / SWEEP)] == ["0000", "0001", "0010"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mnits", "runs holds the runs of mnist, other; write NAME for the newest, or NAME/ID"),
        (f"mnist/{OLD[:-1]}", f"runs/mnist holds {OLD}, {SWEEP}, {NEW}"),
        ("runs", "runs holds the runs of mnist, other"),
        (f"runs/mnist/{OLD}/checkpoints/step-3", f"lies within the run mnist/{OLD}; name "),
        (f"mnist/{SWEEP}/0007", f"the sweep mnist/{SWEEP} has the trials 0000, 0001, 0010"),
        ("f" * 32, "MLflow's id of a run that has no folder in"),
        ("  ", "no run is named"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(storage: Path, text: str, reason: str) -> None:
    with pytest.raises(EnvironmentFault) as error:
        find_run(text)
    assert reason in str(error.value)


def test_of_many_names_a_few_are_listed(storage: Path) -> None:
    for number in range(30):
        shutil.copytree(storage / "other", storage / f"name-{number:02d}")
    with pytest.raises(EnvironmentFault, match="and 24 more") as error:
        find_run("missing")
    assert len(str(error.value)) < 600


def test_a_run_is_found_by_the_id_that_mlflow_gave_it(storage: Path) -> None:
    for place, number in ((f"mnist/{OLD}", 1), (f"mnist/{SWEEP}/trials/0001", 2)):
        tracking = storage / place / "tracking"
        tracking.mkdir(exist_ok=True)
        (tracking / "shipped.json").write_text(json.dumps({"run_id": f"{number:032x}"}))
    assert find_run(f"{1:032x}").folder == storage / "mnist" / OLD
    assert find_run(f"{2:032x}").folder == storage / "mnist" / SWEEP / "trials" / "0001"


def test_where_no_folder_knows_the_id_the_store_is_asked(storage: Path, prepared_database: Path) -> None:
    shutil.copy(prepared_database, "mlflow.db")
    uri = f"sqlite:///{Path('mlflow.db').absolute()}"
    folder = storage / "mnist" / OLD / "tracking"
    report = Recorder(folder, RunRecord(OLD, "mnist", uri, "mnist")).close("FINISHED")
    (folder / "shipped.json").unlink()
    assert find_run(str(report.run_id), uri=uri).folder == storage / "mnist" / OLD
    shutil.rmtree(storage / "mnist" / OLD)
    with pytest.raises(EnvironmentFault, match=f"is Paceline's {OLD}, which has no folder in"):
        find_run(str(report.run_id), uri=uri)


def test_to_ask_a_store_that_is_not_there_makes_none(storage: Path) -> None:
    with pytest.raises(EnvironmentFault, match="has no folder"):
        find_run("f" * 32, uri=f"sqlite:///{storage / 'none.db'}")
    assert not (storage / "none.db").exists()
