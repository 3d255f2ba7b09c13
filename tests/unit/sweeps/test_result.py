"""Which trials are the best, and what a sweep gives back."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config import ExperimentConfig
from paceline.config.experiment import validate
from paceline.display import print_rows
from paceline.errors import EnvironmentFault
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.results.result import SweepResult
from paceline.sweeps.results.result_text import ResultText
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import Trial
from support.reports.page import parsed

Objectives = tuple[Objective, ...]
ACCURACY: Objectives = (("val/accuracy", "max"),)
BOTH: Objectives = (("val/accuracy", "max"), ("seconds", "min"))


def trial(id: int, accuracy: float, state: TrialState = "finished", seconds: float = 1.0, **params: Any) -> Trial:
    axes = {f"data.{key}" if key != "seed" else key: value for key, value in params.items()}
    return Trial(f"{id:04}", axes, state, metrics={"val/accuracy": accuracy}, seconds=seconds)


def seeds(first_id: int, values: list[float], states: list[TrialState] | None = None, **axes: Any) -> list[Trial]:
    chosen = states or ["finished"] * len(values)
    pairs = enumerate(zip(values, chosen, strict=True))
    return [trial(first_id + seed, value, state, seed=seed, **axes) for seed, (value, state) in pairs]


def config(**more: Any) -> ExperimentConfig:
    data = {"name": "synthetic", "global_batch_size": 64}
    return validate({"name": "compare", "model": {"name": "mlp"}, "data": data, **more})


def result(trials: list[Trial], objectives: Objectives = ACCURACY, **changes: Any) -> SweepResult:
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


def ids(trials: list[Trial]) -> list[str]:
    return [one.id for one in trials]


def best_id(trials: list[Trial], objectives: Objectives = ACCURACY) -> str:
    best = ranking.best_trial(trials, objectives)
    assert best is not None
    return best.id


def test_mode_decides_what_is_best_among_finished_trials() -> None:
    trials = [trial(1, 0.5, width=1), trial(2, 0.9, width=2), trial(3, 0.7, width=3)]
    assert (best_id(trials), best_id(trials, (("val/accuracy", "min"),))) == ("0002", "0001")
    states: list[TrialState] = ["pruned", "failed", "diverged", "running", "paused", "skipped"]
    assert best_id([*trials, *(trial(4 + n, 0.99, state, width=4) for n, state in enumerate(states))]) == "0002"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_not_finite_does_not_count(value: float) -> None:
    trials = [trial(1, value, width=1), trial(2, 0.5, width=2)]
    assert best_id(trials) == "0002"
    assert ids(ranking.pareto(trials, BOTH)) == ["0002"]
    assert (ranking.best_trial(trials[:1], ACCURACY), ranking.pareto(trials[:1], BOTH)) == (None, [])


def test_mean_over_seeds_decides_and_its_best_seed_is_taken() -> None:
    lucky, steady = seeds(1, [0.99, 0.5, 0.5], width=1), seeds(4, [0.8, 0.9, 0.85], width=2)
    assert best_id(lucky + steady) == "0005"
    # a point that was drawn twice counts as one seed
    assert best_id([trial(1, 0.5, width=1), trial(2, 0.5, width=1), trial(3, 0.9, width=2)]) == "0003"


@pytest.mark.parametrize("state", ["failed", "pruned"])
def test_setting_with_fewer_finished_seeds_does_not_win(state: TrialState) -> None:
    lucky = seeds(1, [0.99, 0.1, 0.1], ["finished", state, state], width=1)
    whole = seeds(4, [0.8, 0.8, 0.7], width=2)
    assert best_id(lucky + whole) == "0004"
    assert ids(ranking.pareto(lucky + whole, BOTH)) == ["0004"]
    assert [len(summary.trials) for summary in ranking.ranked(lucky + whole, ACCURACY)] == [3, 3]


def test_ties_go_to_the_other_objectives_and_then_to_the_first_trial() -> None:
    trials = [trial(3, 0.9, seconds=1, width=3), trial(2, 0.9, seconds=1, width=2), trial(1, 0.9, seconds=2, width=1)]
    assert (best_id(trials), best_id(trials, BOTH)) == ("0001", "0002")
    assert ids(ranking.pareto(trials, ACCURACY)) == ["0001"]
    assert ids(ranking.pareto(trials, BOTH)) == ["0002", "0003"]


def test_settings_differ_by_value_and_type() -> None:
    values: list[Any] = [1, 1.0, True, "1", None, [1, 2], {"a": 1}]
    trials = [trial(number, 0.5, thing=value) for number, value in enumerate(values)]
    assert len(ranking.aggregate(trials, ["val/accuracy"])) == len(values)
    again = [replace(one, params={"seed": 3, **one.params}) for one in trials]
    assert [len(summary.trials) for summary in ranking.aggregate(trials + again, [])] == [2] * len(values)


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
@settings(max_examples=100, deadline=None)
def test_front_is_what_no_other_trial_dominates(rows: list[tuple[float, float, float, bool]]) -> None:
    goals: list[Objective] = [("a", "max"), ("b", "min"), ("c", "max")]
    trials, points = [], {}
    for number, (*row, is_done) in enumerate(rows):
        metrics = dict(zip("abc", row, strict=True))
        trials.append(Trial(f"{number:04}", {"x": number}, "finished" if is_done else "pruned", metrics=metrics))
        if is_done and not any(map(math.isnan, row)):
            points[trials[-1].id] = (-row[0], row[1], -row[2])
    expected = {
        id
        for id, point in points.items()
        if not any(other != point and all(map(float.__le__, other, point)) for other in points.values())
    }
    found = ranking.pareto(trials, goals)
    assert set(ids(found)) == expected
    assert [one.metrics["a"] for one in found] == sorted((one.metrics["a"] for one in found), reverse=True)
    assert not expected or ranking.best_trial(trials, goals) is not None


@pytest.mark.parametrize("objectives", [[("loss", "min")], [("accuracy", "max"), ("loss", "min")]])
@pytest.mark.parametrize("seed", range(5))
def test_best_setting_of_a_sweep_that_continues_is_that_of_the_ranking(seed: int, objectives: list[Objective]) -> None:
    draw, best, trials, means = random.Random(seed), ranking.BestSetting(objectives), [], {}
    for number in range(120):
        state: Any = draw.choice(["finished", "finished", "pruned", "failed"])
        values = {"loss": draw.choice([0.5, 1.0, 2.0, float("nan")]), "accuracy": draw.choice([0.1, 0.2])}
        params = {"lr": draw.randrange(12), "seed": draw.randrange(3)}
        violations = {"memory <= 1": draw.choice([-1.0, 1.0])}
        trials.append(Trial(f"{number:04d}", params, state, metrics=values, violations=violations))
        best.add(trials[-1])
        expected, means = (
            {name: spread.mean for name, spread in each.spreads.items() if spread.n} if each else {}
            for each in (ranking.best_setting(trials, objectives), best.summary())
        )
        assert means == expected
    assert means


def test_short_names_are_unique() -> None:
    keys = ["data.global_batch_size", "optimizer.lr", "task.args.lr", "model.name", "trainer.seed", "seed"]
    names = ["global_batch_size", "optimizer.lr", "args.lr", "model.name", "trainer.seed", "seed"]
    assert list(labels.short_names(keys).values()) == names


def test_data_frame_has_a_row_for_each_trial() -> None:
    trials = [trial(10001, 0.5, width=1, seed=1), trial(2, math.nan, "diverged", width="x"), trial(9999, 0.7, width=2)]
    df = result([replace(one, attempts=2, steps=7, reason="why") for one in trials]).df
    assert list(df["id"]) == ["0002", "9999", "10001"]
    ends = ["samples", "steps", "seconds", "samples_per_second", "peak_memory_bytes", "attempts", "weights_sha256"]
    assert list(df.columns) == ["id", "data.width", "seed", "state", "reason", "val/accuracy", *ends]
    assert list(df["data.width"]) == ["x", 2, 1]
    assert list(df["steps"]) == [7, 7, 7]
    assert df["val/accuracy"].isna().tolist() == [True, False, False]


def test_table_has_a_row_for_each_setting() -> None:
    failed = seeds(1, [0.5, 0.6], ["failed", "failed"], width=1)
    table = result(failed + seeds(3, [0.7, 0.9], width=2) + seeds(5, [0.9, 0.9], width=3)).table
    assert [list(table[column]) for column in ("data.width", "n", "trials")] == [[3, 2, 1], [2, 2, 0], [2, 2, 2]]
    assert list(table["val/accuracy mean"])[:2] == pytest.approx([0.9, 0.8])
    assert list(table["val/accuracy std"])[:2] == pytest.approx([0.0, math.sqrt(0.02)])
    assert math.isnan(table["val/accuracy mean"][2])
    alone = result(seeds(1, [0.5], width=1) + seeds(2, [0.6], width=2)).table
    assert [column for column in alone if column.endswith("std")] == []


def test_json_has_no_nan_and_comes_back() -> None:
    trials = [trial(2, math.nan, width=1), trial(1, 0.5, width=2), trial(3, 0.4, "oom", seconds=0.5, width=3)]
    found = result(trials, BOTH, mlflow_url="http://here", parent_run_id="abc").to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    results = ["sweep_id", "name", "status", "trials", "best", "best_config_path", "pareto"]
    assert list(found) == [*results, "mlflow_url", "review_url", "parent_run_id", "wall_seconds", "cost"]
    assert [one["id"] for one in found["trials"]] == ["0001", "0002", "0003"]
    assert found["trials"][1]["metrics"] == {"val/accuracy": None}
    assert found["best"] == found["pareto"][0] == trials[1].to_json()


@pytest.mark.parametrize("states", [[], ["failed", "pruned"]])
def test_sweep_without_a_finished_trial_has_no_best(states: list[TrialState]) -> None:
    trials = [trial(n, 0.5, state, width=n) for n, state in enumerate(states)]
    empty = result(trials, BOTH, best_config_path="")
    assert (empty.best, empty.best_config, empty.pareto, empty.to_json()["best"]) == (None, None, [], None)
    assert len(empty.df) == len(empty.table) == len(trials)
    rows = dict(empty.rows())
    assert {rows[label].partition(":")[0] for label in ("best", "best config", "Pareto front")} == {"none"}
    assert len(repr(empty).splitlines()) == 1 + len(empty.rows())
    assert [table.attributes["data-role"] for table in parsed(empty._repr_html_()).all("table")] == ["summary"]
    with pytest.raises(EnvironmentFault) as caught:
        empty.load_model()
    assert caught.value.code == "no-finished-trial"


def test_rows_are_the_summary_the_ranking_and_the_unfinished(golden: Any) -> None:
    trials = seeds(1, [0.7, 0.9], width=2) + seeds(3, [0.5, 0.5], ["failed", "oom"], width=1)
    pruned = [replace(trial(n, 0.5, "pruned", width=n), reason="worse than the median") for n in range(5, 10)]
    other = replace(trial(10, 0.5, "pruned", width=10), reason="stopped")
    found = result([*trials, other, *pruned], mlflow_url="http://here/1", needs_ui=True, status="interrupted")
    golden("\n".join(f"{label:<13} {text}" for label, text in found.rows()))
    single = result(seeds(1, [0.7, 0.9], ["finished", "failed"], width=2), BOTH)
    golden("\n".join(f"{label:<13} {text}" for label, text in single.rows()), "one seed, two objectives")


def lines_of(rows: list[tuple[str, str]], label: str) -> list[str]:
    """The lines under a label."""
    begin = [one for one, _ in rows].index(label)
    end = next((n for n, (one, _) in enumerate(rows) if n > begin and one), len(rows))
    return [text for _, text in rows[begin:end]]


def test_trials_with_the_same_weights_are_named() -> None:
    digests = ["a", "b", "a", "a", "a", "c", "b"]
    trials = [replace(trial(number, 0.5, lr=number), weights_sha256=digest) for number, digest in enumerate(digests)]
    failed = [replace(trial(number, 0.5, "failed", lr=number), weights_sha256="c") for number in (7, 8)]
    unknown = [trial(number, 0.5, lr=number) for number in (9, 10)]
    rows = ResultText([*trials, *failed, *unknown], [("val/accuracy", "max")]).equal_rows()
    assert rows == [("same weights", "0000 = 0002 = 0003 = …"), ("", "0001 = 0006")]
    assert ResultText(unknown, [("val/accuracy", "max")]).equal_rows() == []


@pytest.mark.parametrize(
    ("values", "best", "edges"),
    [
        ([0.1, 0.2, 0.3], 0.3, ["lr=0.3 is the largest value tried: a larger one may be better"]),
        ([0.1, 0.2, 0.3], 0.1, ["lr=0.1 is the smallest value tried: a smaller one may be better"]),
        ([0.1, 0.2, 0.3], 0.2, []),
        ([0.1, 0.2], 0.2, []),
        (["a", "b", "c"], "c", []),
        ([[1], [2], [3]], [3], []),
        ([False, True, None], True, []),
    ],
    ids=str,
)
def test_the_best_setting_at_the_edge_of_the_space_is_named(values: list[Any], best: Any, edges: list[str]) -> None:
    trials = [trial(number, 0.9 if each == best else 0.5, lr=each) for number, each in enumerate(values)]
    unfinished = trial(9, 1.0, "failed", lr=9.0)
    rows = ResultText([*trials, unfinished], ACCURACY).edge_rows()
    assert [text for _, text in rows] == edges
    assert rows == [row for row in result(trials).rows() if row in rows]


def test_ranking_shows_the_best_settings_first_and_how_many_there_are() -> None:
    trials = [t for width in range(25) for t in seeds(2 * width, [width / 100, width / 50], width=width)]
    trials = [replace(one, samples_per_second=1000.0 * (1 + one.params["seed"])) for one in trials]
    found = result([*trials[:-1], replace(trials[-1], state="failed")])
    _, *lines, last = lines_of(found.rows(), "ranking")
    assert lines[0].split() == ["1", "0047", "width=23", "0.345", "±", "0.16", "2", "1,500"]
    assert (len(lines), "5" in last) == (20, True)
    few = lines_of(result(trials[-4:-1]).rows(), "ranking")
    assert few[2].split() == ["2", "0048", "width=24", "0.24", "1", "1,000"]
    page = parsed(found._repr_html_())
    assert len(page.one("table", data_role="ranking").all("tr")) == 1 + 20
    assert [node.attributes["data-hidden"] for node in page.all(data_hidden=None)] == ["5"]


def test_ranking_fits_120_columns(capsys: pytest.CaptureFixture[str], golden: Any) -> None:
    axes = {f"a_rather_long_name_{n}": f"value{n}" for n in range(9)}
    trials = [trial(n, 0.5, width=n, **axes) for n in range(3)]
    reasons = [replace(trial(n, 0.5, "failed", width=n), reason=f"no\nroom {n} " * 20) for n in range(3, 6)]
    several: Objectives = (*BOTH, ("samples", "min"), ("steps", "min"))
    print_rows(result(trials + reasons, several, best_config_path="", name="x").rows())
    lines = capsys.readouterr().out.splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("ranking"))
    assert max(map(len, lines[begin:])) == 120
    golden("\n".join(lines[begin:]))


def test_trials_that_were_planned_and_have_not_ended_are_counted(golden: Any) -> None:
    planned = config(sweep={"space": {"data.global_batch_size": [32, 64, 128, 256]}, "metric": "x", "seeds": 2})
    pending = [trial(n, 0.5, "pending", width=n) for n in range(2)]
    finished = [trial(n, 0.5, width=n) for n in range(2, 10)]
    results = [
        result(pending + finished[:3], config=planned),
        result([], config=planned),
        result(finished, config=planned),
        result(pending[:1]),
    ]
    golden("\n".join(dict(each.rows())["trials"] for each in results))


def test_repr_of_trials_is_short(golden: Any) -> None:
    metrics = {"epoch": 3.0, "train/loss": 0.31, "val/loss": 0.35, "val/accuracy": 0.89621}
    one = Trial("0006", {"optimizer.lr": 0.01, "seed": 0}, "finished", metrics=metrics, checkpoint="/a/long/path")
    golden("\n".join([repr(one), repr(Trial("0007", {}, "oom", reason="no\n  room " * 20))]))


def test_html_is_escaped() -> None:
    html = result([trial(1, 0.5, kind="<script>")], name="<b>", mlflow_url="http://h/?a&b")._repr_html_()
    page = parsed(html)
    assert not page.all("script") + page.all("b")
    assert html.count("&lt;script&gt;") == 2
    assert [link.attributes["href"] for link in page.all("a")] == ["http://h/?a&b"]
