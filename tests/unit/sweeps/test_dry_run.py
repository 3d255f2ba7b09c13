"""`paceline sweep --dry-run`: what is known of a sweep before it starts, without starting anything."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cluster.preflight import Resources
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError
from paceline.sweeps.planning import forecast
from paceline.sweeps.planning.dry_run import FIRST_ROWS, LAST_ROWS, dry_run
from paceline.sweeps.sweep_folder import claim_sweep
from paceline.sweeps.sweep_log import SweepLog, trial_entry
from paceline.sweeps.trial import Trial
from support.sweeps.configs import RATES, sweep_config

DATA = {"name": "synthetic", "num_samples": 640, "num_validation_samples": 8, "global_batch_size": 64}
BASE = {"data": DATA, "trainer": {"epochs": 3}, "scaling": {"num_workers": 2, "use_gpu": False}}
EPOCHS, SAMPLES = 3, 3 * 640
ANY_CODE = "support.sweeps.user_code:build_anything"
OWN: dict[str, Any] = {"path": ANY_CODE, "args": {"size": 1}, "global_batch_size": 64}
"""Data whose size is only known when they are loaded."""


@pytest.fixture(autouse=True)
def _in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, on a machine of four cores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_JOB_ID", raising=False)
    monkeypatch.setattr(forecast, "local_resources", lambda: Resources.of_machine(4.0, 0.0))


def config_of(space: dict[str, Any], base: dict[str, Any] | None = None, **section: Any) -> ExperimentConfig:
    return sweep_config(space, {**BASE, **(base or {})}, **section)


class DryRun:
    """What a dry run printed, in both forms."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], config: ExperimentConfig, address: str | None = None
    ) -> None:
        self.code = dry_run(config, True, address)
        text = capsys.readouterr().out
        assert text.count("\n") == 1
        self.json: dict[str, Any] = json.loads(text)
        assert dry_run(config, False, address) == self.code
        self.text = capsys.readouterr().out
        self.lines = self.text.splitlines()

    def __getitem__(self, key: str) -> Any:
        """A field of the JSON."""
        return self.json[key]

    def column(self, name: str) -> list[Any]:
        """A field of each point."""
        return [point[name] for point in self.json["trials"]]

    def row(self, label: str) -> str:
        """The text of the one line with a label."""
        [text] = [line.partition(" ")[2].strip() for line in self.lines if line.split(" ")[0] == label]
        return text

    @property
    def table(self) -> list[list[str]]:
        """The cells of the points, without the headings."""
        return [re.split("  +", line) for line in self.lines[1 : self.lines.index("")]]


Run = Callable[..., DryRun]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a dry run of a space, twice."""
    return lambda *args, address=None, **fields: DryRun(capsys, config_of(*args, **fields), address)


def record_sweep(name: str, *trials: Trial, data: dict[str, Any] | None = None) -> None:
    """Leave the journal of a sweep behind, and what it was trained on."""
    folder = Path("runs") / "run" / name
    folder.mkdir(parents=True)
    if data:
        (folder / "sweep.json").write_text(json.dumps({"status": "finished", "config": {"data": data}}))
    log = SweepLog(folder)
    for trial in trials:
        log.append([trial_entry(trial)])
    log.close()


def trained(number: int, samples: int, speed: float, epochs: float = 1.0, **params: Any) -> Trial:
    metrics = {"epoch": epochs}
    return Trial(f"{number:04d}", params, "finished", metrics=metrics, samples=samples, samples_per_second=speed)


def record_run(name: str, data: dict[str, Any] | None = None, **outcome: Any) -> None:
    """Leave behind how a run ended."""
    folder = Path("runs") / "run" / name / "tracking"
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps({"status": "finished", **outcome}))
    (folder.parent / "run.json").write_text(json.dumps({"status": "finished", "config": {"data": data or DATA}}))


def test_each_point_has_a_row(run: Run, golden: Any) -> None:
    linear = {"optimizer": {"name": "sgd", "lr": 0.1, "lr_scaling": "linear", "base_batch_size": 64}, "seed": 5}
    found = run({"data.global_batch_size": [64, 128]}, base=linear, seeds=2)
    assert found["trials"][2] == {
        "id": "0002",
        "params": {"data.global_batch_size": 128, "seed": 5},
        "lr": 0.2,
        "global_batch_size": 128,
        "micro_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "total_steps": 15,
        "samples": 1920,
        "warnings": [],
    }
    assert (found["num_trials"], found["total_samples"]) == (4, 4 * SAMPLES)
    estimates = [f"estimated_{what}" for what in ("seconds", "core_seconds", "gpu_seconds", "from")]
    assert [found[key] for key in ("rungs", "unfinished", *estimates)] == [None] * 6
    assert list(Path().iterdir()) == []
    golden(found.text)  # with the table


def test_steps_samples_and_rate_follow_from_each_point(run: Run) -> None:
    base = {"optimizer": {"name": "sgd", "lr": 0.1, "lr_scaling": "linear"}}
    found = run({"data.global_batch_size": [64, 300], "trainer.max_steps": [None, 5]}, base=base)
    assert found.column("total_steps") == [30, 5, 9, 5]
    assert found.column("samples") == [SAMPLES, 5 * 64, SAMPLES, 640 + 2 * 300]
    assert found["total_samples"] == sum(found.column("samples"))
    assert found.column("lr")[2] == 0.1 * 300 / 256
    dropping = {"data": {**DATA, "drop_last": True}}
    assert run({"data.global_batch_size": [300]}, base=dropping)["total_samples"] == EPOCHS * 2 * 300


def test_skipped_points_have_a_reason(run: Run, golden: Any) -> None:
    space = {"scaling.num_workers": [1, 3]}
    found = run(space, invalid="skip")
    assert [(one["id"], one["params"]) for one in found["skipped"]] == [("0001", {"scaling.num_workers": 3})]
    assert (found["num_trials"], found.column("id")) == (1, ["0000"])
    golden(found.row("skipped"))
    with pytest.raises(ConfigError):
        dry_run(config_of(space), as_json=False)


def test_warning_is_shown_once_for_all_its_points(run: Run, golden: Any) -> None:
    found = run({**RATES, "lr_scheduler.warmup_steps": [1, 99]}, base={"lr_scheduler": {"name": "constant"}})
    assert [len(warnings) for warnings in found.column("warnings")] == [0, 1, 0, 1]
    assert found["warnings"] == found["trials"][1]["warnings"]
    golden(found.row("warning"))
    switched = run({"optimizer.name": ["adamw", "lamb"]}, base={"optimizer": {"name": "sgd", "momentum": 0.9}})
    lines = [line for line in switched.lines if line.startswith("warning")]
    assert len(lines) == len(set(lines)) == len(switched["warnings"]) > 0


@pytest.mark.parametrize(
    ("slots", "workers", "number", "is_fault"),
    [("auto", 1, 2, False), (2, 2, 2, False), (5, 1, 2, True), ("auto", 8, None, True)],
)
def test_slots_that_this_machine_has(
    run: Run, slots: int | str, workers: int, number: int | None, is_fault: bool, golden: Any
) -> None:
    base = {"scaling": {"num_workers": workers, "use_gpu": False}, "data": {**DATA, "global_batch_size": 48}}
    found = run(RATES, base=base, slots=slots)
    assert (found["slots"], found["fault"] is not None, found.code) == (number, is_fault, 3 if is_fault else 0)
    assert len(found.table) == 2
    golden(found.row("slots"))
    there = run(RATES, base=base, slots=slots, address="10.0.0.1:6379")  # whose room is not known
    assert (there["slots"], there["fault"]) == (None if slots == "auto" else number, None)
    if number is None:
        golden(there.row("slots"), "on a cluster")


@pytest.mark.parametrize(
    ("fields", "rungs"),
    [
        ({"scheduler": "asha", "rung_factor": 4, "first_rung": 40}, ("samples", 4, [40, 160, 640], SAMPLES)),
        ({"scheduler": "asha", "budget_unit": "epochs"}, ("epochs", 3, [EPOCHS / 9, EPOCHS / 3], EPOCHS)),
        ({"scheduler": "median"}, ("samples", None, [192 * number for number in range(1, 10)], SAMPLES)),
        ({"scheduler": "asha", "budget_unit": "seconds", "first_rung": 5}, ("seconds", 3, [5], None)),
    ],
)
def test_rungs_of_a_scheduler(run: Run, fields: dict[str, Any], rungs: tuple[Any, ...], golden: Any) -> None:
    found = run(RATES, **fields)
    unit, factor, amounts, length = rungs
    assert (found["rungs"]["unit"], found["rungs"]["factor"], found["rungs"]["length"]) == (unit, factor, length)
    assert found["rungs"]["amounts"] == pytest.approx(amounts)
    assert found["rungs"]["first"] == pytest.approx(amounts[0])
    golden("\n".join([found.row("scheduler"), found.row("samples")]))


def test_cost_follows_from_the_speed_of_an_earlier_sweep(run: Run, golden: Any) -> None:
    # 600 samples in 4 seconds
    trials = trained(0, 300, 100.0), trained(1, 300, 300.0), trained(2, 0, 50.0)
    record_sweep("20260101-000000-aaaaaa", *trials)
    found = run({**RATES, "optimizer.momentum": [0.0, 0.9]}, slots=2)
    assert found["estimated_seconds"] == pytest.approx(4 * SAMPLES / 150 / 2)
    assert found["estimated_core_seconds"] == pytest.approx(4 * SAMPLES / 150 * 2)
    assert found["estimated_gpu_seconds"] == 0
    assert "20260101-000000-aaaaaa" in found["estimated_from"]
    golden("\n".join([found.row("cost"), run(RATES, scheduler="asha").row("cost")]))


def test_newest_speed_counts_and_a_damaged_record_has_none(run: Run) -> None:
    damaged = Path("runs") / "run" / "20260105-000000-aaaaaa"
    damaged.mkdir(parents=True)
    (damaged / "log.jsonl").write_text('{"n":1,"kind":"trial","id":"0000","of":"another version"}\n')
    assert run(RATES)["estimated_seconds"] is None
    record_sweep("20260101-000000-aaaaaa", trained(0, 300, 100.0))
    record_run("20260102-000000-aaaaaa", samples_per_second=20.0)
    record_run("20260103-000000-aaaaaa", samples_per_second=None)
    record_sweep("20260104-000000-aaaaaa", trained(0, 0, 0.0))
    found = run(RATES, slots=1)
    assert "20260102-000000-aaaaaa" in found["estimated_from"]
    assert found["estimated_seconds"] == pytest.approx(2 * SAMPLES / 20)


def test_gpu_time_is_estimated_where_gpus_are_used(run: Run, monkeypatch: pytest.MonkeyPatch, golden: Any) -> None:
    monkeypatch.setattr(forecast, "local_resources", lambda: Resources.of_machine(8.0, 4.0))
    record_run("20260102-000000-aaaaaa", samples_per_second=20.0)
    found = run(RATES, base={"scaling": {"num_workers": 2, "use_gpu": True}})
    assert found["estimated_gpu_seconds"] == pytest.approx(2 * SAMPLES / 20 * 2)
    golden("\n".join([found.row("cost"), found.row("slots")]))


def test_earlier_sweep_knows_the_size_of_own_data(run: Run, golden: Any) -> None:
    assert run(RATES, base={"data": OWN})["total_samples"] is None
    larger = {"data.args.size": 2, "data.global_batch_size": 32}
    failed = Trial("0002", {"data.args.size": 3}, "failed", samples=9, metrics={"epoch": 1.0})
    trials = trained(0, 1000, 100.0, epochs=2.0), trained(1, 900, 100.0, **larger), failed
    record_sweep("20260101-000000-aaaaaa", *trials, data=OWN)
    found = run({"data.args.size": [1, 2]}, base={"data": OWN}, slots=1)
    assert found.column("samples") == [EPOCHS * 500, EPOCHS * 900]
    assert found.column("total_steps") == [EPOCHS * 8, EPOCHS * 15]
    assert found["estimated_seconds"] == pytest.approx(42)
    unseen = run({"data.args.size": [1, 3]}, base={"data": OWN})
    assert (unseen.column("samples"), unseen["total_samples"]) == ([EPOCHS * 500, None], None)
    golden("\n".join([found.row("samples"), unseen.row("samples"), unseen.row("cost")]))


def test_earlier_run_knows_the_size_of_own_data(run: Run) -> None:
    record_run("20260101-000000-aaaaaa", OWN, samples=1000, samples_per_second=50.0, metrics={"epoch": 2.0})
    found = run({"optimizer.lr": {"uniform": [0.1, 1]}}, base={"data": OWN}, search="optuna", num_samples=4, slots=1)
    assert found["total_samples"] == 4 * EPOCHS * 500
    assert "20260101-000000-aaaaaa" in found["samples_from"]
    assert found["estimated_seconds"] == pytest.approx(4 * EPOCHS * 500 / 50)
    assert run(RATES, base={"data": {**OWN, "args": {"size": 9}}})["total_samples"] is None
    # too small for a batch, which refuses no sweep: the data may have grown
    assert run(RATES, base={"data": {**OWN, "drop_last": True, "global_batch_size": 640}})["total_samples"] is None


def test_unfinished_sweep_is_found(run: Run, golden: Any) -> None:
    claimed = claim_sweep(config_of(RATES), Path("runs").absolute())
    claimed.release()
    log = SweepLog(claimed.folder.path)
    for number, state in enumerate(("finished", "failed", "paused", "skipped")):
        log.append([trial_entry(Trial(f"{number:04d}", {}, state))])  # type: ignore[arg-type]
    log.close()
    (claimed.folder.trials / "0000").mkdir(parents=True)
    sweep_id = claimed.folder.run_id
    same, longer = run(RATES), run(RATES, base={"trainer": {"epochs": 4}})
    assert same["unfinished"] == {"sweep_id": sweep_id, "ended": 2, "differing": []}
    assert longer["unfinished"]["differing"] == ["trainer.epochs"]
    golden("\n".join(found.row("unfinished") for found in (same, longer)).replace(sweep_id, "<sweep>"))
    assert forecast.forecast(config_of(RATES), intent="new").unfinished is None
    claimed.folder.write(status="finished")
    assert run(RATES)["unfinished"] is None


def test_random_points_are_known_and_those_of_optuna_are_not(run: Run, golden: Any) -> None:
    space = {"optimizer.lr": {"loguniform": [0.001, 1]}, "trainer.precision": ["32-true", "bf16-mixed"]}
    drawn = run(space, search="random", num_samples=5)
    assert len(drawn.table) == len(drawn["trials"]) == drawn["num_trials"] == 5
    record_run("20260102-000000-aaaaaa", samples_per_second=20.0)
    chosen = run(space, search="optuna", num_samples=5, seeds=2)
    assert (chosen["trials"], chosen["num_trials"], chosen["total_samples"]) == ([], 10, 10 * SAMPLES)
    assert chosen["estimated_core_seconds"] == pytest.approx(10 * SAMPLES / 20 * 2)
    golden("\n".join([chosen.row("samples"), chosen.row("search")]))


@pytest.mark.parametrize("hidden", [0, 1])
def test_long_table_is_cut_and_the_json_is_not(run: Run, hidden: int) -> None:
    number = FIRST_ROWS + LAST_ROWS + hidden
    found = run({"optimizer.lr": [n / 1000 for n in range(1, number + 1)]})
    shown, ids = [row[0] for row in found.table], found.column("id")
    assert ids == [f"{n:04d}" for n in range(number)]
    if hidden:
        assert re.findall(r"\d+", shown.pop(FIRST_ROWS)) == [str(hidden)]
    assert shown == ids[:FIRST_ROWS] + ids[-LAST_ROWS:]


def test_secrets_are_not_shown(run: Run) -> None:
    base = {"model": {"path": ANY_CODE}}
    found = run({"model.args.api_key": ["hush-hush-1", "hush-hush-2"]}, base=base)
    assert "hush" not in json.dumps(found.json) + found.text
