"""The copy of a sweep in its store: the order in which things get there, and what another machine takes over."""

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.storage.address import SWEEP_LOG, RunStore
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.store_faults import StoreFault
from paceline.storage.stored_record import joined
from paceline.sweeps.stored_sweep import SweepCopy
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import SweepLog, read_log, trial_entry
from paceline.sweeps.trial import Trial
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.metric_points import MetricPoint
from paceline.tracking.upload_cursor import hurry, is_hurried, note_stored, stored_bytes
from support.storage.local_store import AWAY, LocalStore
from support.storage.stores import go_to, play_store, sweep_store

FIRST = Trial("0001", {"optimizer.lr": 0.1}, "running")
SECOND = Trial("0002", {"optimizer.lr": 0.2}, "running")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    return play_store(tmp_path, monkeypatch)


@pytest.fixture
def run() -> RunStore:
    return sweep_store()


def folder_of(run: RunStore) -> SweepFolder:
    return SweepFolder(run.folder)


def log(run: RunStore, *trials: Trial) -> None:
    written = SweepLog(run.folder)
    for trial in trials:
        written.append([trial_entry(trial)])
    written.close()


def tracking_of(run: RunStore, trial: Trial) -> Path:
    return folder_of(run).trials / trial.id / "tracking"


def train(run: RunStore, trial: Trial, *steps: int) -> None:
    """Record steps of a trial."""
    folder = tracking_of(run, trial)
    if stored_bytes(folder) is None:
        note_stored(folder, 0)
    journal = Journal(folder / JOURNAL_FILE)
    journal.append([("point", MetricPoint("train/loss", 1.0, step, step).to_json()) for step in steps])
    journal.close()


def is_all_stored(run: RunStore, trial: Trial) -> bool:
    """Whether what waits for the trial's record may continue."""
    folder = tracking_of(run, trial)
    return stored_bytes(folder) == (folder / JOURNAL_FILE).stat().st_size


def trials_there(run: RunStore, tmp_path: Path) -> dict[str, Trial]:
    """What the store's log says."""
    data = joined(RemoteFolder(run.address) / SWEEP_LOG)
    (tmp_path / "there").mkdir(exist_ok=True)
    (tmp_path / "there" / "log.jsonl").write_bytes(data)
    return dict(read_log(tmp_path / "there").trials)


def journal_there(run: RunStore, trial: Trial) -> bytes | None:
    return RemoteFolder(run.trial(trial.id).address / "tracking").read(JOURNAL_FILE)


def places(store: LocalStore) -> list[str]:
    """What was written, from the sweep's folder on."""
    found = [place.partition("sweep-1/")[2] for place in store.written]
    store.written.clear()
    return found


def test_a_trial_that_ended_by_the_log_has_its_record_in_the_store(
    run: RunStore, store: LocalStore, tmp_path: Path
) -> None:
    copy = SweepCopy(run)
    log(run, FIRST)
    train(run, FIRST, 1, 2)
    log(run, replace(FIRST, state="finished"))
    assert copy.is_behind()
    copy.push()
    assert places(store) == ["trials/0001/tracking/journal.jsonl", "log.jsonl/000000000000"]
    assert trials_there(run, tmp_path)["0001"].state == "finished"
    assert is_all_stored(run, FIRST)
    assert not copy.is_behind()


def test_a_record_counts_once_the_log_has_the_trials_values(run: RunStore, store: LocalStore, tmp_path: Path) -> None:
    copy = SweepCopy(run)
    log(run, FIRST)
    train(run, FIRST, 1)
    hurry(tracking_of(run, FIRST))
    store.refused = lambda place: "log.jsonl" in place
    with pytest.raises(StoreFault):
        copy.push_wanted()
    assert journal_there(run, FIRST) is not None
    assert not is_all_stored(run, FIRST)
    store.refused = lambda place: False
    hurry(tracking_of(run, FIRST))
    copy.push_wanted()
    assert is_all_stored(run, FIRST)
    places(store)

    train(run, FIRST, 2)
    hurry(tracking_of(run, FIRST))
    copy.push_wanted()  # nothing new about its values
    assert places(store) == ["trials/0001/tracking/journal.jsonl"]
    log(run, replace(FIRST, params={"optimizer.lr": 0.3}))
    train(run, FIRST, 3)
    hurry(tracking_of(run, FIRST))
    copy.push_wanted()
    assert places(store) == ["trials/0001/tracking/journal.jsonl", "log.jsonl/000000000000"]
    assert trials_there(run, tmp_path)["0001"].params == {"optimizer.lr": 0.3}


def test_only_records_that_somebody_waits_for_are_hurried(run: RunStore, store: LocalStore) -> None:
    copy = SweepCopy(run)
    assert not copy.is_wanted()
    log(run, FIRST, SECOND)
    for trial in (FIRST, SECOND):
        train(run, trial, 1)
    copy.push()
    places(store)
    for trial in (FIRST, SECOND):
        train(run, trial, 2)
    hurry(tracking_of(run, SECOND))
    assert copy.is_wanted()
    copy.push_wanted()
    assert places(store) == ["trials/0002/tracking/journal.jsonl"]
    assert not is_hurried(tracking_of(run, SECOND))
    assert [is_all_stored(run, trial) for trial in (FIRST, SECOND)] == [False, True]


def test_a_trial_that_mlflow_has_all_of_is_looked_at_no_more(
    run: RunStore, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    from paceline.storage import stored_record

    is_behind = stored_record.RecordCopy.is_behind
    monkeypatch.setattr(stored_record.RecordCopy, "is_behind", lambda self: (looked.append("x"), is_behind(self))[1])
    copy = SweepCopy(run)
    trials = [Trial(f"{number:04d}", {}, "finished", mlflow_run_id="ab") for number in range(20)]
    for trial in trials:
        train(run, trial, 1)
    log(run, *trials)
    copy.push()
    assert all(is_all_stored(run, trial) for trial in trials)
    copy.is_behind()
    assert len(looked) == 1  # the sweep's own record
    log(run, Trial("0020", {}, "skipped"), Trial("0021", {}, "predicted_oom"))
    copy.push()
    looked.clear()
    copy.is_behind()
    assert len(looked) == 1


@pytest.mark.parametrize(("is_away", "code"), [(False, "access-denied"), (True, "store-silent")])
def test_one_record_that_cannot_be_copied_leaves_the_log_as_it_is(
    run: RunStore, store: LocalStore, tmp_path: Path, is_away: bool, code: str
) -> None:
    copy = SweepCopy(run)
    log(run, FIRST, SECOND)
    train(run, FIRST, 1)
    train(run, SECOND, 1)
    store.fault = AWAY if is_away else ""
    store.refused = lambda place: "0002" in place
    for call in (copy.push, lambda: SweepCopy(run).take_over(True)) if is_away else (copy.push,):
        with pytest.raises(StoreFault) as caught:
            call()
        assert caught.value.code == code
    store.fault = ""
    assert trials_there(run, tmp_path) == {}
    assert stored_bytes(tracking_of(run, FIRST)) == 0
    store.refused = lambda place: False
    copy.push()
    assert set(trials_there(run, tmp_path)) == {"0001", "0002"}
    assert is_all_stored(run, FIRST)


def test_another_machine_has_what_the_store_has(
    run: RunStore, store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = replace(FIRST, state="finished", mlflow_run_id="ab")
    copy = SweepCopy(run)
    log(run, done, SECOND)
    train(run, FIRST, 1, 2)
    train(run, SECOND, 1)
    folder_of(run).best_config.write_text("name: best\n")
    copy.push()
    train(run, SECOND, 2)  # did not get there
    lost = Trial("0003", {"optimizer.lr": 0.5}, "running")
    log(run, lost)
    train(run, lost, 1)

    go_to(tmp_path / "other", monkeypatch)
    train(run, lost, 7)  # of some earlier time
    train(run, SECOND, 7)
    other = SweepCopy(run)
    assert not other.take_over(may_be_ahead=False)
    assert read_log(run.folder).trials == {"0001": done, "0002": SECOND}
    for trial in (FIRST, SECOND):
        assert (tracking_of(run, trial) / JOURNAL_FILE).read_bytes() == journal_there(run, trial)
        assert is_all_stored(run, trial)
    assert not tracking_of(run, lost).exists()
    assert folder_of(run).best_config.read_text() == "name: best\n"
    assert not other.is_behind()

    log(run, replace(SECOND, state="finished"))
    train(run, SECOND, 2)
    other.push()
    go_to(tmp_path / "cache", monkeypatch)
    assert not SweepCopy(run).take_over(may_be_ahead=True)  # it is ahead of what was, not of what is
    assert read_log(run.folder).trials["0002"].state == "finished"
    assert "0003" not in read_log(run.folder).trials


def test_a_working_copy_that_is_ahead_stays(run: RunStore, tmp_path: Path) -> None:
    log(run, FIRST)
    train(run, FIRST, 1)
    SweepCopy(run).push()
    log(run, SECOND)
    for trial in (FIRST, SECOND):
        train(run, trial, 2)
    copy = SweepCopy(run)
    # its own record was never written
    copy.take_over(may_be_ahead=True)
    assert set(read_log(run.folder).trials) == {"0001", "0002"}
    assert [is_all_stored(run, trial) for trial in (FIRST, SECOND)] == [False, False]
    copy.push()
    assert set(trials_there(run, tmp_path)) == {"0001", "0002"}
    assert [is_all_stored(run, trial) for trial in (FIRST, SECOND)] == [True, True]


def test_records_of_trials_that_the_log_does_not_know_are_removed(
    run: RunStore, store: LocalStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver was killed between the records and the log: the trial begins again, perhaps with other values."""
    copy = SweepCopy(run)
    log(run, FIRST)
    train(run, FIRST, 1)
    store.refused = lambda place: "log.jsonl" in place
    with pytest.raises(StoreFault):
        copy.push()
    store.refused = lambda place: False
    go_to(tmp_path / "other", monkeypatch)
    SweepCopy(run).take_over(may_be_ahead=False)
    assert journal_there(run, FIRST) is None
