"""Which trials are the best, and what a sweep gives back."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config import ExperimentConfig
from paceline.config.loading import validate
from paceline.display import print_rows
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.trials import Trial, TrialState

ACCURACY: tuple[Objective, ...] = (("val/accuracy", "max"),)
BOTH: tuple[Objective, ...] = (("val/accuracy", "max"), ("seconds", "min"))


def trial(id: int, accuracy: float, state: TrialState = "finished", seconds: float = 1.0, **overrides: Any) -> Trial:
    axes = {f"data.{key}" if key != "seed" else key: value for key, value in overrides.items()}
    return Trial(f"{id:04}", axes, state, metrics={"val/accuracy": accuracy}, seconds=seconds)


def config(**more: Any) -> ExperimentConfig:
    data = {"name": "synthetic", "global_batch_size": 64}
    return validate({"name": "compare", "model": {"name": "mlp"}, "data": data, **more})


def result(trials: list[Trial], objectives: tuple[Objective, ...] = ACCURACY, **changes: Any) -> SweepResult:
    fields: dict[str, Any] = {
        "sweep_id": "s1",
        "name": "compare",
        "status": "finished",
        "trials": tuple(trials),
        "objectives": objectives,
        "config": config(),
        "folder": Path("/runs/compare/s1"),
        "best_config_path": "/runs/compare/s1/best.yaml",
        "wall_seconds": 12.34,
        **changes,
    }
    return SweepResult(**fields)


def seeds(first_id: int, values: list[float], states: list[TrialState] | None = None, **axes: Any) -> list[Trial]:
    chosen = states or ["finished"] * len(values)
    return [
        trial(first_id + seed, value, state, seed=seed, **axes)
        for seed, (value, state) in enumerate(zip(values, chosen, strict=True))
    ]


def ids(trials: list[Trial]) -> list[str]:
    return [one.id for one in trials]


def best_id(trials: list[Trial], objectives: tuple[Objective, ...] = ACCURACY) -> str:
    best = ranking.best_trial(trials, objectives)
    assert best is not None
    return best.id


# --- the best one --------------------------------------------------------------------------------------------------


def test_the_mode_decides_what_is_best() -> None:
    trials = [trial(1, 0.5, width=1), trial(2, 0.9, width=2), trial(3, 0.7, width=3)]
    assert best_id(trials) == "0002"
    assert best_id(trials, (("val/accuracy", "min"),)) == "0001"


@pytest.mark.parametrize("state", ["pruned", "failed", "diverged", "running", "paused", "skipped"])
def test_only_finished_trials_can_be_best(state: TrialState) -> None:
    assert best_id([trial(1, 0.99, state, width=1), trial(2, 0.5, width=2)]) == "0002"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_none(value: float) -> None:
    trials = [trial(1, value, width=1), trial(2, 0.5, width=2)]
    assert best_id(trials) == "0002"
    assert ids(ranking.pareto(trials, BOTH)) == ["0002"]
    assert ranking.best_trial(trials[:1], ACCURACY) is None
    assert ranking.pareto(trials[:1], BOTH) == []


def test_the_mean_over_seeds_decides_and_its_best_seed_is_taken() -> None:
    lucky, steady = seeds(1, [0.99, 0.5, 0.5], width=1), seeds(4, [0.8, 0.9, 0.85], width=2)
    assert best_id(lucky + steady) == "0005"


@pytest.mark.parametrize("state", ["failed", "pruned"])
def test_a_setting_whose_other_seeds_did_not_finish_does_not_win_by_luck(state: TrialState) -> None:
    lucky = seeds(1, [0.99, 0.1, 0.1], ["finished", state, state], width=1)
    whole = seeds(4, [0.8, 0.8, 0.7], width=2)
    assert best_id(lucky + whole) == "0004"
    assert ids(ranking.pareto(lucky + whole, BOTH)) == ["0004"]
    assert [len(s.trials) for s in ranking.ranked(lucky + whole, ACCURACY)] == [3, 3]


def test_a_point_drawn_twice_counts_as_one_seed() -> None:
    assert best_id([trial(1, 0.5, width=1), trial(2, 0.5, width=1), trial(3, 0.9, width=2)]) == "0003"


def test_ties_go_to_the_other_objectives_and_then_to_the_first_trial() -> None:
    trials = [trial(3, 0.9, seconds=1, width=3), trial(2, 0.9, seconds=1, width=2), trial(1, 0.9, seconds=2, width=1)]
    assert best_id(trials) == "0001"
    assert best_id(trials, BOTH) == "0002"
    assert ids(ranking.pareto(trials, ACCURACY)) == ["0001"]
    assert ids(ranking.pareto(trials, BOTH)) == ["0002", "0003"]


def test_settings_are_told_apart_by_value_and_type() -> None:
    values: list[Any] = [1, 1.0, True, "1", None, [1, 2], {"a": 1}]
    trials = [trial(number, 0.5, thing=value) for number, value in enumerate(values)]
    assert len(ranking.aggregate(trials, ["val/accuracy"])) == len(values)
    again = [replace(one, overrides={"seed": 3, **one.overrides}) for one in trials]
    assert [len(s.trials) for s in ranking.aggregate(trials + again, [])] == [2] * len(values)


def test_mean_and_sample_deviation() -> None:
    [summary] = ranking.aggregate(seeds(1, [1.0, 2.0, 6.0, math.nan], width=1), ["val/accuracy"])
    spread = summary.spreads["val/accuracy"]
    assert (spread.mean, spread.n, len(summary.finished)) == (3.0, 3, 4)
    assert spread.std == pytest.approx(math.sqrt(7))
    [single] = ranking.aggregate([trial(1, 0.5, width=1)], ["val/accuracy"])
    assert math.isnan(single.spreads["val/accuracy"].std)
    [huge] = ranking.aggregate(seeds(1, [1.5e308, 1.5e308], width=1), ["val/accuracy"])
    assert huge.spreads["val/accuracy"].mean == pytest.approx(1.5e308)


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan])] * 3, st.booleans()), max_size=14))
@settings(max_examples=150, deadline=None)
def test_the_front_is_what_nothing_betters(rows: list[tuple[float, float, float, bool]]) -> None:
    goals: list[Objective] = [("a", "max"), ("b", "min"), ("c", "max")]
    trials = [
        Trial(
            f"{number:04}", {"x": number}, "finished" if done else "pruned", metrics=dict(zip("abc", row, strict=False))
        )
        for number, (*row, done) in enumerate(rows)
    ]
    points = {
        one.id: (-one.metrics["a"], one.metrics["b"], -one.metrics["c"]) for one in trials if one.state == "finished"
    }
    points = {id: point for id, point in points.items() if not any(map(math.isnan, point))}
    expected = {
        id
        for id, point in points.items()
        if not any(other != point and all(map(float.__le__, other, point)) for other in points.values())
    }
    found = ranking.pareto(trials, goals)
    assert set(ids(found)) == expected
    assert [one.metrics["a"] for one in found] == sorted((one.metrics["a"] for one in found), reverse=True)
    best = ranking.best_trial(trials, goals)
    assert not expected or best is not None


# --- names ---------------------------------------------------------------------------------------------------------


def test_short_names_stay_unique_and_say_something() -> None:
    keys = ["data.global_batch_size", "optimizer.lr", "task.args.lr", "model.name", "trainer.seed", "seed"]
    assert list(labels.short_names(keys).values()) == [
        "global_batch_size",
        "optimizer.lr",
        "args.lr",
        "model.name",
        "trainer.seed",
        "seed",
    ]


# --- the result ----------------------------------------------------------------------------------------------------


def test_a_table_of_the_trials() -> None:
    trials = [trial(10001, 0.5, width=1, seed=1), trial(2, math.nan, "diverged", width="x"), trial(9999, 0.7, width=2)]
    df = result([replace(one, attempts=2, steps=7, reason="why") for one in trials]).df
    assert list(df["id"]) == ["0002", "9999", "10001"]
    assert list(df.columns) == [
        "id",
        "data.width",
        "seed",
        "state",
        "reason",
        "val/accuracy",
        "samples",
        "steps",
        "seconds",
        "samples_per_second",
        "peak_memory_bytes",
        "attempts",
        "weights_sha256",
    ]
    assert list(df["data.width"]) == ["x", 2, 1]
    assert list(df["steps"]) == [7, 7, 7]
    assert df["val/accuracy"].isna().tolist() == [True, False, False]


def test_a_table_of_the_settings() -> None:
    trials = (
        seeds(1, [0.5, 0.6], ["failed", "failed"], width=1)
        + seeds(3, [0.7, 0.9], width=2)
        + seeds(5, [0.9, 0.9], width=3)
    )
    table = result(trials).table
    assert list(table["data.width"]) == [3, 2, 1]
    assert list(table["n"]) == [2, 2, 0]
    assert list(table["trials"]) == [2, 2, 2]
    assert list(table["val/accuracy mean"])[:2] == pytest.approx([0.9, 0.8])
    assert list(table["val/accuracy std"])[:2] == pytest.approx([0.0, math.sqrt(0.02)])
    assert math.isnan(table["val/accuracy mean"][2])


def test_json_has_no_nan_and_comes_back() -> None:
    trials = [trial(2, math.nan, width=1), trial(1, 0.5, width=2), trial(3, 0.4, "oom", seconds=0.5, width=3)]
    found = result(trials, BOTH, mlflow_url="http://here", parent_run_id="abc").to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert list(found) == [
        "sweep_id",
        "name",
        "status",
        "trials",
        "best",
        "best_config_path",
        "pareto",
        "mlflow_url",
        "review_url",
        "parent_run_id",
        "wall_seconds",
        "cost",
    ]
    assert [one["id"] for one in found["trials"]] == ["0001", "0002", "0003"]
    assert found["trials"][1]["metrics"] == {"val/accuracy": None}
    assert found["best"] == found["pareto"][0] == trials[1].to_json()


def test_without_a_finished_trial_there_is_no_best() -> None:
    for trials in ([], [trial(1, 0.5, "failed", width=1), trial(2, 0.5, "pruned", width=2)]):
        empty = result(trials, BOTH, best_config_path="")
        assert (empty.best, empty.best_config, empty.pareto) == (None, None, [])
        assert empty.to_json()["best"] is None
        assert len(empty.df) == len(empty.table) == len(trials)
        rows = dict(empty.rows())
        assert rows["best"].startswith("none")
        assert rows["best config"] == "none"
        assert rows["Pareto front"] == "none"
        assert repr(empty).startswith("SweepResult\n")
        assert empty._repr_html_().count("<table>") == 1


def test_failed_are_those_in_trouble() -> None:
    states: list[TrialState] = ["finished", "failed", "pruned", "oom", "skipped", "diverged"]
    assert ids(result([trial(n, 0.5, state, width=n) for n, state in enumerate(states)]).failed) == [
        "0001",
        "0003",
        "0005",
    ]


def test_the_rows_say_what_was_found() -> None:
    trials = seeds(1, [0.7, 0.9], width=2) + seeds(3, [0.5, 0.5], ["failed", "oom"], width=1)
    rows = result(trials, mlflow_url="http://here/1", needs_ui=True, status="interrupted").rows()
    assert rows == [
        ("sweep", "compare/s1"),
        ("status", "interrupted; the same command with --resume goes on from there"),
        ("trials", "4 trials: 2 finished, 1 failed, 1 out of memory"),
        ("best", "0002 (width=2): val/accuracy 0.8 ± 0.14 over 2 seeds"),
        ("best config", "/runs/compare/s1/best.yaml"),
        ("wall time", "12.3 s"),
        ("MLflow", "http://here/1 (after `paceline ui`, which may print another port)"),
        ("ranking", "rank  trial  setting  val/accuracy  seeds  samples/s"),
        ("", "1     0002   width=2  0.8 ± 0.14    2"),
        ("not finished", "1 failed: 0003"),
        ("", "1 out of memory: 0004"),
    ]


def test_a_long_front_is_cut() -> None:
    rows = result([trial(n, n / 100, seconds=n, width=n) for n in range(1, 16)], BOTH).rows()
    front = rows[5:16]
    assert [label for label, _ in front] == ["Pareto front"] + [""] * 10
    assert front[0][1] == "0015 (width=15): val/accuracy 0.15, seconds 15"
    assert front[-1][1] == "and 5 more"
    assert rows[16][0] == "wall time"


def lines_of(rows: list[tuple[str, str]], label: str) -> list[str]:
    """The lines under a label."""
    begin = [one for one, _ in rows].index(label)
    end = next((n for n, (one, _) in enumerate(rows) if n > begin and one), len(rows))
    return [text for _, text in rows[begin:end]]


def test_the_ranking_shows_the_best_settings_first_and_how_many_there_are() -> None:
    trials = [t for width in range(25) for t in seeds(2 * width, [width / 100, width / 50], width=width)]
    trials = [replace(one, samples_per_second=1000.0 * (1 + one.overrides["seed"])) for one in trials]
    found = result([*trials[:-1], replace(trials[-1], state="failed")])
    heading, *lines, last = lines_of(found.rows(), "ranking")
    assert heading.split() == ["rank", "trial", "setting", "val/accuracy", "seeds", "samples/s"]
    assert lines[0].split() == ["1", "0047", "width=23", "0.345", "±", "0.16", "2", "1,500"]
    assert len(lines) == 20
    assert last == "... and 5 more"
    few = lines_of(result(trials[-4:-1]).rows(), "ranking")
    assert few[2].split() == ["2", "0048", "width=24", "0.24", "1", "1,000"]
    assert repr(found).count("... and 5 more") == 1
    assert found._repr_html_().count("<tr>") == len(found.rows()) - 1  # what is cut is told below
    assert "... and 5 more" in found._repr_html_()


def test_the_ranking_fits_120_columns(capsys: pytest.CaptureFixture[str]) -> None:
    axes = {f"a_rather_long_name_{n}": f"value{n}" for n in range(9)}
    trials = [trial(n, 0.5, width=n, **axes) for n in range(3)]
    reasons = [replace(trial(n, 0.5, "failed", width=n), reason=f"no\nroom {n} " * 20) for n in range(3, 6)]
    several: tuple[Objective, ...] = (*BOTH, ("samples", "min"), ("steps", "min"))
    print_rows(result(trials + reasons, several, best_config_path="", name="x").rows())
    lines = capsys.readouterr().out.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("ranking"))
    assert max(map(len, lines[begin:])) == 120
    assert lines[begin].split()[1:6] == ["rank", "trial", "width,", "a_rather_long_name_0,", "a_rather_lon…"]
    assert lines[begin + 2].split()[:4] == ["2", "0001", "1,", "value0,"]
    assert lines[begin + 2].split()[-5:] == ["value4…", "0.5", "1", "0", "1"]
    assert lines[-1].startswith("not finished  3 failed: 0003 no room 3 no room 3")


def test_a_long_setting_is_told_by_its_values() -> None:
    trials = [trial(n, 0.5, a_rather_long_name="linear" * 3, and_another_long_name="x" * 15, width=n) for n in (1, 2)]
    trials[1] = replace(trials[1], overrides={"data.and_another_long_name": "y", "data.width": 2})
    lines = lines_of(result(trials, (*BOTH, ("samples_per_second", "max"))).rows(), "ranking")
    assert lines[0].split() == [
        *["rank", "trial", "a_rather_long_name,", "and_another_long_name…"],
        *["val/accuracy", "seconds", "samples_per_second", "trials"],
    ]
    assert [line.split()[2:5] for line in lines[1:]] == [
        ["linearlinearlinear,", f"{'x' * 15},", "1"],
        ["-,", "y,", "2"],
    ]


def test_trials_that_were_planned_and_have_not_ended_are_told() -> None:
    planned = config(sweep={"space": {"data.global_batch_size": [32, 64, 128, 256]}, "metric": "x", "seeds": 2})
    pending = [trial(n, 0.5, "pending", width=n) for n in range(2)]
    finished = [trial(n, 0.5, width=n) for n in range(2, 10)]
    found = dict(result(pending + finished[:3], config=planned).rows())
    assert found["trials"] == "3 of 8 trials: 2 pending, 3 finished, 3 not begun"
    assert dict(result([], config=planned).rows())["trials"] == "0 of 8 trials: 8 not begun"
    assert dict(result(finished, config=planned).rows())["trials"] == "8 trials: 8 finished"
    assert dict(result(pending[:1]).rows())["trials"] == "0 of 1 trial: 1 pending"


def test_equal_reasons_are_told_once() -> None:
    pruned = [replace(trial(n, 0.5, "pruned", width=n), reason="worse than the median") for n in range(5)]
    other = replace(trial(5, 0.5, "pruned", width=5), reason="stopped")
    unfinished = lines_of(result([other, *pruned]).rows(), "not finished")
    assert unfinished == ["6 pruned: 0000, 0001, 0002, … worse than the median; 0005 stopped"]


def test_a_single_seed_that_finished_is_named() -> None:
    assert dict(result(seeds(1, [0.7, 0.9], ["finished", "failed"], width=2)).rows())["best"] == (
        "0001 (seed=0, width=2): val/accuracy 0.7"
    )


def test_a_list_of_trials_can_be_read() -> None:
    metrics = {"epoch": 3.0, "train/loss": 0.31, "val/loss": 0.35, "val/accuracy": 0.89621}
    one = Trial("0006", {"optimizer.lr": 0.01, "seed": 0}, "finished", metrics=metrics, checkpoint="/a/long/path")
    other = Trial("0007", {}, "oom", reason="no\n  room " * 20)
    first, second = repr([one, other])[1:-1].split(">, ")
    assert first == "<Trial 0006 finished; lr=0.01, seed=0; val/loss 0.35, val/accuracy 0.8962, epoch 3"
    assert second.startswith("<Trial 0007 out of memory; no room no room")
    assert len(second) < 100


def test_html_is_escaped() -> None:
    html = result([trial(1, 0.5, kind="<script>")], name="<b>", mlflow_url="http://h/?a&b")._repr_html_()
    assert "<script>" not in html
    assert "<b>" not in html
    assert html.count("&lt;script&gt;") == 2
    assert '<a href="http://h/?a&amp;b" target="_blank">' in html


def test_the_best_config_trains_the_best_trial_again() -> None:
    trials = [trial(1, 0.5, global_batch_size=32), trial(2, 0.9, global_batch_size=128, seed=7)]
    best = result(trials).best_config
    assert best is not None
    assert best.data.global_batch_size == 128
    assert best.seed == 7
