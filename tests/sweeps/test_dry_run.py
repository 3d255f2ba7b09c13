"""`paceline sweep --dry-run`: what is told of a sweep before it starts, without starting anything."""

import json
import re
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.preflight import Resources
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import validate
from paceline.errors import ConfigError
from paceline.sweeps.folder import claim_sweep
from paceline.sweeps.log import SweepLog
from paceline.sweeps.planning import forecast
from paceline.sweeps.planning.dry_run import FIRST_ROWS, LAST_ROWS, dry_run
from paceline.sweeps.sweep import trial_count
from paceline.sweeps.trials import Trial

DATA = {"name": "synthetic", "num_samples": 640, "num_validation_samples": 8, "global_batch_size": 64}
TREE: dict[str, Any] = {
    "name": "run",
    "model": {"name": "mlp"},
    "data": DATA,
    "trainer": {"epochs": 3},
    "scaling": {"num_workers": 2, "use_gpu": False},
}
RATES = {"optimizer.lr": [0.1, 0.2]}
EPOCHS, SAMPLES = 3, 3 * 640


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, on a machine of four cores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_ID", raising=False)
    monkeypatch.setattr(forecast, "local_resources", lambda: Resources(4.0, 0.0))


def build(**any_names: Any) -> None:
    """Stands for the user's own model."""


def config_of(space: dict[str, Any], base: dict[str, Any] | None = None, **fields: Any) -> ExperimentConfig:
    """A config with a sweep; `fields` are those of its section, but for `space`, and `base` those of the rest."""
    return validate({**TREE, **(base or {}), "sweep": {"space": space, **fields}})


class Told:
    """What a dry run printed, in both forms."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], config: ExperimentConfig, address: str | None = None
    ) -> None:
        self.code = dry_run(config, True, address)
        text = capsys.readouterr().out
        assert text.count("\n") == 1
        self.json: dict[str, Any] = json.loads(text)
        assert dry_run(config, False, address) == self.code
        self.lines = capsys.readouterr().out.splitlines()

    def __getitem__(self, label: str) -> str:
        """The text of the one line with a label."""
        [text] = self.all(label)
        return text

    def all(self, label: str) -> list[str]:
        """The texts of the lines with a label."""
        return [line.partition(" ")[2].strip() for line in self.lines if line.split(" ")[0] == label]

    @property
    def heading(self) -> list[str]:
        """The headings of the points."""
        return re.split("  +", self.lines[0])

    @property
    def table(self) -> list[list[str]]:
        """The cells of the points, the headings first."""
        return [line.split() for line in self.lines[: self.lines.index("")]]


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    """Runs a dry run of a space, twice."""
    return lambda *args, address=None, **fields: Told(capsys, config_of(*args, **fields), address)


Tell = Callable[..., Told]


def test_each_point_has_a_row_with_what_follows_from_it(tell: Tell) -> None:
    linear = {"optimizer": {"name": "sgd", "lr": 0.1, "lr_scaling": "linear", "base_batch_size": 64}, "seed": 5}
    told = tell({"data.global_batch_size": [64, 128]}, base=linear, seeds=2)
    assert told.heading == ["id", "global_batch_size", "seed", "peak lr", "micro batch", "steps", "samples"]
    assert told.table[1:] == [
        ["0000", "64", "5", "0.1", "32", "30", "1,920"],
        ["0001", "64", "6", "0.1", "32", "30", "1,920"],
        ["0002", "128", "5", "0.2", "64", "15", "1,920"],
        ["0003", "128", "6", "0.2", "64", "15", "1,920"],
    ]
    assert told.json["points"][2] == {
        "id": "0002",
        "overrides": {"data.global_batch_size": 128, "seed": 5},
        "lr": 0.2,
        "global_batch_size": 128,
        "micro_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "total_steps": 15,
        "samples": 1920,
        "warnings": [],
    }
    assert (told.json["trials"], told["trials"]) == (4, "4")
    assert told.json["total_samples"] == 4 * SAMPLES
    assert told["samples"] == "7,680 to train on"
    assert list(Path().iterdir()) == []


def test_what_does_not_vary_has_no_column(tell: Tell) -> None:
    assert tell(RATES).heading == ["id", "lr", "peak lr", "steps", "samples"]


def test_skipped_points_are_told_with_their_reason(tell: Tell) -> None:
    told = tell({"scaling.num_workers": [1, 3]}, invalid="skip")
    assert told["skipped"].startswith("0001 (num_workers=3): data.global_batch_size: 64 does not divide evenly by 3")
    assert [(one["id"], one["overrides"]) for one in told.json["skipped"]] == [("0001", {"scaling.num_workers": 3})]
    assert "does not divide" in told.json["skipped"][0]["reason"]
    assert told["trials"] == "1; 1 more are no valid config"
    with pytest.raises(ConfigError, match="does not divide"):
        dry_run(config_of({"scaling.num_workers": [1, 3]}), as_json=False)


def test_a_warning_is_told_once_with_the_points_that_it_is_about(tell: Tell) -> None:
    lonely = tell({**RATES, "lr_scheduler.warmup_steps": [1, 99]}, base={"lr_scheduler": {"name": "constant"}})
    [warning] = lonely.all("warning")
    assert warning.startswith("the warmup of 99 steps is longer")
    assert warning.endswith("(2 of 4 points)")
    assert [len(point["warnings"]) for point in lonely.json["points"]] == [0, 1, 0, 1]
    assert lonely.json["warnings"] == lonely.json["points"][1]["warnings"]
    switched = tell({"optimizer.name": ["adamw", "lamb"]}, base={"optimizer": {"name": "sgd", "momentum": 0.9}})
    assert all("momentum" in text for text in switched.all("warning"))
    assert len(switched.all("warning")) == len(set(switched.all("warning"))) == len(switched.json["warnings"]) > 0


@pytest.mark.parametrize(
    ("slots", "workers", "number", "words"),
    [
        ("auto", 1, 2, "2, as many as there is use and room for here; each with 1 CPU core"),
        ("auto", 3, 1, "1, as many as there is use and room for here; each with 3 CPU cores"),
        (2, 2, 2, "2, as asked for; each with 2 CPU cores"),
        (5, 1, 2, "this machine cannot run it: sweep.slots 5"),
        ("auto", 8, None, "this machine cannot run it: a trial with scaling.num_workers 8"),
    ],
)
def test_slots(tell: Tell, slots: int | str, workers: int, number: int | None, words: str) -> None:
    base = {"scaling": {"num_workers": workers, "use_gpu": False}, "data": {**DATA, "global_batch_size": 48}}
    told = tell(RATES, base=base, slots=slots)
    assert told.json["slots"] == number
    assert told["slots"].startswith(words)
    is_fault = "cannot run it" in words
    assert told.code == (3 if is_fault else 0)
    assert (told.json["fault"] is not None) == is_fault
    assert len(told.table) == 1 + 2


def test_a_clusters_room_is_not_known(tell: Tell) -> None:
    told = tell(RATES, base={"scaling": {"num_workers": 8}}, address="10.0.0.1:6379")
    assert told.json["slots"] is None
    assert told["slots"] == "auto: as many as the cluster has room for, each with 8 CPU cores"


def test_rungs(tell: Tell) -> None:
    asha = tell(RATES, scheduler="asha", rung_factor=4, first_rung=40)
    assert asha["scheduler"] == "asha, compares at 40, 160, 640 of 1,920 samples"
    assert asha.json["rungs"]["amounts"] == [40, 160, 640]
    assert asha["samples"] == f"at most {2 * SAMPLES:,} to train on"
    halves = tell(RATES, scheduler="asha", budget_unit="epochs")
    assert halves.json["rungs"] == {
        "unit": "epochs",
        "first": pytest.approx(EPOCHS / 9),
        "factor": 3.0,
        "amounts": pytest.approx([EPOCHS / 9, EPOCHS / 3]),
        "length": EPOCHS,
    }
    median = tell(RATES, scheduler="median")
    assert median["scheduler"] == "median, compares every 192 of 1,920 samples"
    assert median.json["rungs"]["amounts"] == pytest.approx([192 * number for number in range(1, 10)])
    seconds = tell(RATES, scheduler="asha", budget_unit="seconds", first_rung=5)
    assert seconds["scheduler"] == "asha, compares at 5, then each 3 times as far, seconds"
    assert tell(RATES).json["rungs"] is None


def test_the_rungs_are_those_that_trials_stop_at(tell: Tell) -> None:
    from paceline.engine.rungs import Rungs

    for scheduler, factor in (("asha", 3.0), ("median", None)):
        rungs, expected, at = Rungs(50, factor), [], 0.0
        while (at := rungs.above(at)) < SAMPLES:
            expected.append(at)
        told = tell(RATES, scheduler=scheduler, first_rung=50)
        assert told.json["rungs"]["amounts"] == pytest.approx(expected)


def test_without_a_speed_the_cost_is_said_to_be_unknown(tell: Tell) -> None:
    told = tell(RATES)
    assert told["cost"] == f"unknown until a first run: about {2 * SAMPLES:,} samples"
    assert told.json["estimated_seconds"] is None
    assert told.json["estimated_from"] is None


def record_sweep(name: str, *trials: tuple[int, float]) -> None:
    """Leave the journal of a sweep behind whose trials had so many samples and samples a second."""
    folder = Path("runs") / "run" / name
    folder.mkdir(parents=True)
    log = SweepLog(folder)
    for number, (samples, speed) in enumerate(trials):
        log.trial(Trial(f"{number:04d}", {}, "finished", samples=samples, samples_per_second=speed))
    log.close()


def record_run(name: str, speed: Any) -> None:
    """Leave behind how a run ended."""
    folder = Path("runs") / "run" / name / "tracking"
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps({"status": "finished", "samples_per_second": speed}))


def test_the_cost_follows_from_an_earlier_sweeps_speed(tell: Tell) -> None:
    record_sweep("20260101-000000-aaaaaa", (300, 100.0), (300, 300.0), (0, 50.0))  # 600 samples in 4 seconds
    told = tell({**RATES, "optimizer.momentum": [0.0, 0.9]}, slots=2)
    assert told.json["estimated_seconds"] == pytest.approx(4 * SAMPLES / 150 / 2)
    assert told.json["estimated_core_seconds"] == pytest.approx(4 * SAMPLES / 150 * 2)
    assert told.json["estimated_gpu_seconds"] == 0
    assert told.json["estimated_from"] == "2 trials of sweep 20260101-000000-aaaaaa"
    assert told["cost"].startswith("about 26 s, 102.4 core-seconds, at 150 samples/s of 2 trials of sweep 2026")
    assert tell(RATES, scheduler="asha")["cost"].startswith("at most about ")


def test_the_newest_speed_counts_be_it_a_runs(tell: Tell) -> None:
    record_sweep("20260101-000000-aaaaaa", (300, 100.0))
    record_run("20260102-000000-aaaaaa", 20.0)
    record_run("20260103-000000-aaaaaa", None)
    record_sweep("20260104-000000-aaaaaa", (0, 0.0))
    assert tell(RATES).json["estimated_from"] == "run 20260102-000000-aaaaaa"
    assert tell(RATES, slots=1)["cost"].startswith(
        f"about 3 min, {2 * SAMPLES / 20 * 2:g} core-seconds, at 20 samples/s"
    )


OWN: dict[str, Any] = {"path": f"{__name__}:build", "args": {"size": 1}, "global_batch_size": 64}
"""Data whose size is only known when they are loaded."""


def record_own(name: str, file: str, data: dict[str, Any]) -> Path:
    """Leave behind what says of a finished run or sweep what it was trained on."""
    folder = Path("runs") / "run" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(json.dumps({"status": "finished", "config": {"data": data}}))
    return folder


def test_a_sweep_tells_the_size_of_own_data(tell: Tell) -> None:
    folder = record_own("20260101-000000-aaaaaa", "sweep.json", OWN)
    assert tell(RATES, base={"data": OWN})["cost"] == "unknown until a first run"
    log = SweepLog(folder)
    log.trial(Trial("0000", {}, "finished", samples=1000, samples_per_second=100.0, metrics={"epoch": 2.0}))
    larger = {"data.args.size": 2, "data.global_batch_size": 32}
    log.trial(Trial("0001", larger, "finished", samples=900, samples_per_second=100.0, metrics={"epoch": 1.0}))
    log.trial(Trial("0002", {"data.args.size": 3}, "failed", samples=9, metrics={"epoch": 1.0}))
    log.close()
    told = tell({"data.args.size": [1, 2]}, base={"data": OWN}, slots=1)
    assert [row["samples"] for row in told.json["points"]] == [EPOCHS * 500, EPOCHS * 900]
    assert [row["total_steps"] for row in told.json["points"]] == [EPOCHS * 8, EPOCHS * 15]
    assert told["samples"] == "4,200 to train on, if the data are as large as in sweep 20260101-000000-aaaaaa"
    assert told.json["estimated_seconds"] == pytest.approx(42)
    unseen = tell({"data.args.size": [1, 3]}, base={"data": OWN})
    assert unseen["samples"] == "known when the data are loaded"
    assert [row["samples"] for row in unseen.json["points"]] == [EPOCHS * 500, None]


def test_a_run_tells_the_size_of_own_data(tell: Tell) -> None:
    folder = record_own("20260101-000000-aaaaaa", "run.json", OWN) / "tracking"
    folder.mkdir()
    outcome = {"status": "finished", "samples": 1000, "samples_per_second": 50.0, "metrics": {"epoch": 2.0}}
    (folder / "outcome.json").write_text(json.dumps(outcome))
    told = tell({"optimizer.lr": {"uniform": [0.1, 1]}}, base={"data": OWN}, search="optuna", num_samples=4, slots=1)
    assert told.json["total_samples"] == 4 * EPOCHS * 500
    assert told.json["samples_from"] == "run 20260101-000000-aaaaaa"
    assert told.json["estimated_seconds"] == pytest.approx(4 * EPOCHS * 500 / 50)
    assert "known when" in tell(RATES, base={"data": {**OWN, "args": {"size": 9}}})["samples"]
    # too small for a batch, which refuses no sweep: the data may have grown
    large = tell(RATES, base={"data": {**OWN, "drop_last": True, "global_batch_size": 640}})
    assert large["samples"].startswith("known when")


def test_an_unfinished_sweep_is_told_of(tell: Tell) -> None:
    assert tell(RATES).all("unfinished") == []
    claimed = claim_sweep(config_of(RATES), Path("runs").absolute(), False, False)
    claimed.release()
    log = SweepLog(claimed.folder.path)
    for number, state in enumerate(("finished", "failed", "paused", "skipped")):
        log.trial(Trial(f"{number:04d}", {}, state))  # type: ignore[arg-type]
    log.close()
    (claimed.folder.trials / "0000").mkdir(parents=True)
    told, sweep_id = tell(RATES), claimed.folder.run_id
    start = f"sweep {sweep_id}, of which 2 trials have ended"
    assert told["unfinished"] == f"{start}: the same command without --dry-run goes on with it"
    assert told.json["unfinished"] == {"sweep_id": sweep_id, "ended": 2, "differing": []}
    longer = tell(RATES, base={"trainer": {"epochs": 4}})
    assert longer["unfinished"].startswith(f"{start}, has another config (trainer.epochs): ")
    assert forecast.forecast(config_of(RATES), new=True).unfinished is None
    claimed.folder.write(status="finished")
    assert tell(RATES).all("unfinished") == []


def test_gpu_time_is_told_where_gpus_are_used(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "local_resources", lambda: Resources(8.0, 4.0))
    record_run("20260102-000000-aaaaaa", 20.0)
    told = tell(RATES, base={"scaling": {"num_workers": 2, "use_gpu": True}})
    assert told.json["estimated_gpu_seconds"] == pytest.approx(2 * SAMPLES / 20 * 2)
    assert "384 GPU-seconds" in told["cost"]
    assert told["slots"].endswith("each with 2 CPU cores and 2 GPUs")


def test_a_damaged_record_is_no_speed(tell: Tell) -> None:
    folder = Path("runs") / "run" / "20260101-000000-aaaaaa"
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text('{"n":1,"kind":"trial","id":"0000","of":"another version"}\n')
    assert tell(RATES).json["estimated_seconds"] is None


def test_random_points_are_known_and_optunas_are_not(tell: Tell) -> None:
    space = {"optimizer.lr": {"loguniform": [0.001, 1]}, "trainer.precision": ["32-true", "bf16-mixed"]}
    drawn = tell(space, search="random", num_samples=5)
    assert len(drawn.table) == 1 + 5
    assert len(drawn.json["points"]) == drawn.json["trials"] == 5
    record_run("20260102-000000-aaaaaa", 20.0)
    chosen = tell(space, search="optuna", num_samples=5, seeds=2)
    assert chosen.json["points"] == []
    assert chosen.json["trials"] == 10
    assert chosen.json["total_samples"] == 10 * SAMPLES
    assert chosen.json["estimated_core_seconds"] == pytest.approx(10 * SAMPLES / 20 * 2)
    assert "if each trial takes as many as the config without its axes" in chosen["samples"]
    assert "lr from 0.001 to 1" in chosen["search"]
    assert "precision one of 32-true, bf16-mixed" in chosen["search"]


@pytest.mark.parametrize("points", [FIRST_ROWS + LAST_ROWS, FIRST_ROWS + LAST_ROWS + 1, 200])
def test_a_long_table_is_cut_and_the_json_is_not(tell: Tell, points: int) -> None:
    told = tell({"optimizer.lr": [number / 1000 for number in range(1, points + 1)]})
    ids = [row[0] for row in told.table[1:]]
    assert len(told.json["points"]) == points
    if points <= FIRST_ROWS + LAST_ROWS:
        assert ids == [f"{number:04d}" for number in range(points)]
        return
    assert ids[:FIRST_ROWS] == [f"{number:04d}" for number in range(FIRST_ROWS)]
    assert " ".join(told.table[1 + FIRST_ROWS]) == f"... and {points - FIRST_ROWS - LAST_ROWS:,} more"
    assert ids[FIRST_ROWS + 1 :] == [f"{number:04d}" for number in range(points - LAST_ROWS, points)]


def test_nothing_is_folded_in_a_pipe(tell: Tell) -> None:
    value = [f"a{'b' * 20}{number}" for number in range(2)]
    space = {f"model.args.some_long_name_{number}": value for number in range(8)}
    told = tell(space, base={"model": {"path": f"{__name__}:build"}})
    assert len(told.table) == 1 + 2**8 - (2**8 - FIRST_ROWS - LAST_ROWS) + 1
    assert len(told.lines[1]) > 150
    assert {len(line.split()) for line in told.lines[1 : 1 + FIRST_ROWS]} == {1 + 8 + 3}


def test_a_terminal_gets_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", Terminal())
    dry_run(config_of(RATES), as_json=False)
    assert isinstance(sys.stdout, Terminal)
    text = sys.stdout.getvalue()
    assert "0.2" in text
    assert "1,920" in text


def test_secrets_are_not_shown(tell: Tell) -> None:
    base = {"model": {"path": f"{__name__}:build"}}
    told = tell({"model.args.api_key": ["hush-hush-1", "hush-hush-2"]}, base=base)
    assert "hush" not in json.dumps(told.json) + "\n".join(told.lines)


@pytest.mark.parametrize(
    ("config", "number"),
    [
        (config_of({**RATES, "trainer.epochs": [1, 2, 3]}, seeds=4), 2 * 3 * 4),
        (config_of(RATES, search="random", num_samples=7, seeds=2), 14),
        (config_of({"optimizer.lr": {"uniform": [0.1, 1]}}, search="optuna", num_samples=9), 9),
    ],
)
def test_the_number_of_trials_needs_no_look_at_the_points(config: ExperimentConfig, number: int) -> None:
    assert config.sweep is not None
    assert trial_count(config.sweep) == number
