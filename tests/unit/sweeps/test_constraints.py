"""Constraints of a sweep: infeasible trials are never the best, wherever the best one is chosen or shown."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from paceline.config.constraints import Constraint
from paceline.sweeps.display import LiveSweepListener, PlainSweepListener
from paceline.sweeps.results import charts, heatmap, ranking
from paceline.sweeps.results.ranking import Objective, with_violations
from paceline.sweeps.results.record import best_config, trials_json, write_best
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.states import TrialState
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.trial import Trial, TrialTable
from paceline.tracking.trials_table import TrialRow, trials_csv
from support.sweeps.configs import sweep_config
from support.sweeps.simulation import SimulatedSweep, ends_with, simulated

LOSS: tuple[Objective, ...] = (("val/loss", "min"),)
BOTH: tuple[Objective, ...] = (("val/loss", "min"), ("peak_memory_bytes", "min"))
LIMITS = [Constraint.parse("peak_memory_bytes", "<= 1KiB")]


def trial(id: int, loss: float, memory: int, state: TrialState = "finished", **axes: Any) -> Trial:
    """Return a trial that has ended, with what it breaks."""
    params = {"optimizer.lr": round(id / 10, 3), **axes}
    ended = Trial(f"{id:04}", params, state, metrics={"val/loss": loss}, peak_memory_bytes=memory)
    return with_violations(ended, LIMITS)


def result(trials: list[Trial], objectives: tuple[Objective, ...] = LOSS) -> SweepResult:
    config = sweep_config({"optimizer.lr": [0.1, 0.2]}, constraints={"peak_memory_bytes": "<= 1KiB"})
    paths = Path("/runs/run/s1"), "/runs/run/s1/best.yaml"
    return SweepResult("s1", "run", "finished", tuple(trials), objectives, config, *paths, wall_seconds=1.0)


INFEASIBLE_BETTER = [trial(1, 0.1, 2000), trial(2, 0.3, 1024), trial(3, 0.2, 1000), trial(4, 0.0, 9, "pruned")]


def test_the_best_trial_keeps_all_constraints() -> None:
    found = result(INFEASIBLE_BETTER)
    assert found.best is not None
    assert (found.best.id, [one.id for one in found.pareto]) == ("0003", ["0003"])
    assert [each.trials[0].id for each in ranking.ranked(found.trials, LOSS)] == ["0003", "0002", "0001"]
    text = best_config(found.config, found.trials, LOSS)
    assert text is not None
    assert "lr: 0.3" in text


def test_without_a_feasible_trial_there_is_no_best(tmp_path: Path) -> None:
    found = result([trial(1, 0.1, 2000), trial(2, 0.2, 3000)], BOTH)
    assert (found.best, found.pareto, found.best_config) == (None, [], None)
    (tmp_path / "best.yaml").write_text("of an earlier launch")
    write_best(SweepFolder(tmp_path), best_config(found.config, found.trials, BOTH))
    assert not (tmp_path / "best.yaml").exists()
    rows = dict(found.rows())
    assert "sweep.constraints" in rows["best"]
    assert found.to_json()["best"] is None


def test_no_infeasible_setting_is_on_the_front_nor_keeps_others_off_it() -> None:
    trials = [trial(1, 0.1, 2000), trial(2, 0.3, 500), trial(3, 0.2, 1000), trial(4, 0.4, 600)]
    assert [one.id for one in ranking.pareto(trials, BOTH)] == ["0003", "0002"]
    # of two seeds, while all feasible settings have one
    twice = [
        trial(1, 0.1, 2000, seed=0),
        replace(trial(5, 0.1, 2000, seed=1), params={"optimizer.lr": 0.1, "seed": 1}),
    ]
    assert [one.id for one in ranking.pareto([*twice, *trials[1:]], BOTH)] == ["0003", "0002"]


def test_the_mean_over_seeds_decides_and_the_best_seed_is_feasible() -> None:
    rate = {"optimizer.lr": 0.1}
    seeds = [trial(1, 0.1, 1100, seed=0, **rate), trial(2, 0.2, 900, seed=1, **rate)]
    other = [trial(3, 0.3, 10, seed=0), trial(4, 0.3, 10, seed=1, **{"optimizer.lr": 0.3})]
    best = ranking.best_trial([*seeds, *other], LOSS)
    assert best is not None
    assert best.id == "0002"
    worse = [replace(seeds[0], violations={LIMITS[0].text: 500.0}), seeds[1]]
    best = ranking.best_trial([*worse, *other], LOSS)
    assert best is not None
    assert best.id == "0003"


def test_each_form_of_a_result_shows_what_is_infeasible() -> None:
    found = result(INFEASIBLE_BETTER)
    feasible, broken = [False, True, True, None], [["peak_memory_bytes <= 1KiB"], [], [], []]
    told = [(one["id"], one["feasible"], one["broken"]) for one in found.to_json()["trials"]]
    assert told == list(zip(("0001", "0002", "0003", "0004"), feasible, broken, strict=True))
    assert [one["feasible"] for one in json.loads(trials_json(INFEASIBLE_BETTER))] == feasible
    assert (list(found.df["feasible"]), list(found.df["broken"])) == (feasible, [*broken[0], "", "", ""])
    assert list(found.table["feasible"]) == [True, True, False, None]
    heading, *lines = found._text._ranking
    column = heading.index("feasible")
    assert [(line[0], line[1], line[column].partition(":")[0]) for line in lines] == [
        ("1", "0003", "yes"),
        ("2", "0002", "yes"),
        ("", "0001", "no"),
    ]
    assert "feasible" in found._repr_html_()
    assert "1 infeasible" in dict(found.rows())["trials"]
    rows = [TrialRow(one.id, one.setting, one.state, violations=one.violations) for one in INFEASIBLE_BETTER]
    table = list(csv.DictReader(io.StringIO(trials_csv(rows))))
    assert [(row["feasible"], row["broken"]) for row in table] == [
        ("false", *broken[0]),
        ("true", ""),
        ("true", ""),
        ("", ""),
    ]


def test_a_sweep_without_constraints_has_no_columns_about_them() -> None:
    found = result([replace(one, violations={}) for one in INFEASIBLE_BETTER])
    assert "feasible" not in [*found.df.columns, *found.table.columns, *found._text._ranking[0]]
    assert "constraints" not in dict(found.rows())
    assert "feasible" not in trials_csv([TrialRow(one.id, one.setting, one.state) for one in INFEASIBLE_BETTER])
    assert {(one["feasible"], tuple(one["broken"])) for one in found.to_json()["trials"]} == {(True, ()), (None, ())}


def test_a_finished_trial_without_the_metric_is_infeasible() -> None:
    limit = [Constraint.parse("val/f1", "> 0.5")]
    assert with_violations(Trial("0", {}, "finished"), limit).is_feasible is False
    pruned = with_violations(Trial("0", {}, "pruned"), limit)
    assert (pruned.is_feasible, pruned.broken) == (None, [])


def test_pictures_mark_no_infeasible_setting_as_the_best() -> None:
    trials = [trial(n, 0.1 * n, 2000, **{"data.micro_batch_size": n}) for n in (1, 2)]
    grid = heatmap._grid(trials, LOSS[0], "optimizer.lr", "data.micro_batch_size")
    assert grid.best is None
    with pytest.raises(ValueError, match="constraints"):
        charts.pareto(trials, BOTH)
    feasible = [*trials, trial(3, 0.9, 10, **{"data.micro_batch_size": 3})]
    assert heatmap._grid(feasible, LOSS[0], "optimizer.lr", "data.micro_batch_size").best == (2, 2)
    assert charts.pareto(feasible, BOTH).axes


@simulated(constraints=(Constraint.parse("val/accuracy", ">= 0.5"),))
async def test_the_coordinator_notes_what_a_trial_breaks(sweep: SimulatedSweep) -> None:
    sweep.trainings = {"0000": [ends_with(accuracy=0.4)], "0001": [ends_with(accuracy=0.6)]}
    await sweep.run_all("0000", "0001")
    assert [(await sweep.trial(id)).is_feasible for id in ("0000", "0001")] == [False, True]
    assert sweep.history().trials["0000"].broken == ["val/accuracy >= 0.5"]


def test_displays_show_what_is_infeasible() -> None:
    console = Console(file=io.StringIO(), width=120, record=True, highlight=False)
    PlainSweepListener(console, LOSS, 1, verbose=True).trials(TrialTable([INFEASIBLE_BETTER[0]]))
    text = console.export_text()
    assert "infeasible: peak_memory_bytes <= 1KiB" in text
    assert "best" not in text
    listener = LiveSweepListener(console, Live(console=console), LOSS, total_trials=2)
    alone = str(listener._drawing(TrialTable(INFEASIBLE_BETTER[:1]), 0.0)).splitlines()
    lines = str(listener._drawing(TrialTable(INFEASIBLE_BETTER[:2]), 9.0)).splitlines()
    states = {line.split()[0]: line.split()[-1] for line in lines}
    assert (states["0001"], states["0002"]) == ("infeasible", "finished")
    assert "0001" not in alone[-1]
    assert "0002" in lines[-1]
