"""Points that Optuna chooses: how many, which, with which ids, what it is told, and how a later launch resumes."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import SearchGenerator

from paceline.config.sweep import SweepConfig
from paceline.sweeps.planning.params_checks import ParamsCheck
from paceline.sweeps.planning.planned_trials import plan_trials, section_of
from paceline.sweeps.search.optuna_search import OptunaSearch
from paceline.sweeps.search.tune_trials import planned_trial_of
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import PlannedTrial, Trial
from support.sweeps.configs import sweep_config

BASE: dict[str, Any] = {"model": {"name": "cnn"}, "data": {"name": "mnist5k", "global_batch_size": 64}}
LR = {"optimizer.lr": {"uniform": [0.001, 1.0]}}
FINISHED = "FINISHED"


def square(params: Mapping[str, Any]) -> dict[str, float]:
    """Best where the learning rate is 0.3."""
    return {"val/loss": (params["optimizer.lr"] - 0.3) ** 2}


def ids(*numbers: int) -> list[str]:
    return [f"{number:04d}" for number in numbers]


class Search:
    """A search, and a sweep that plays along without any training."""

    def __init__(
        self,
        space: Mapping[str, Any] = LR,
        known: tuple[Trial, ...] = (),
        slots: int = 1,
        base: Mapping[str, Any] | None = None,
        earlier: Sequence[SweepConfig] = (),
        **fields: Any,
    ) -> None:
        section = {"search": "optuna", "num_samples": 6, **fields}
        self.config = sweep_config(space, {**BASE, **(base or {})}, **section)
        self.trials = {trial.id: trial for trial in known}
        self.handed: list[PlannedTrial] = []
        self.asked_for: list[str] = []
        self.optuna = OptunaSearch(self.config, slots, known, self._trials_of, self._skip, earlier)

    def _trials_of(self, ids: Sequence[str]) -> list[Trial]:
        self.asked_for += ids
        return [self.trials[id] for id in ids if id in self.trials]

    def _skip(self, point: PlannedTrial, reason: str) -> None:
        self.trials[point.id] = Trial(point.id, point.params, "skipped", reason)

    def has_next(self, tune_id: str = "tune") -> bool:
        """Whether a point is handed out."""
        made = self.optuna.suggest(tune_id)
        if not isinstance(made, dict):
            assert made in (None, FINISHED)
            return False
        point = planned_trial_of(made, section_of(self.config))
        self.handed.append(point)
        self.trials[point.id] = Trial(point.id, point.params, "running")
        return True

    def next(self, tune_id: str = "tune") -> PlannedTrial:
        """The point that is handed out."""
        assert self.has_next(tune_id)
        return self.handed[-1]

    def end(
        self, point: PlannedTrial, metrics: Mapping[str, float], state: TrialState = "finished", tune_id: str = "tune"
    ) -> None:
        """A trial has ended."""
        self.trials[point.id] = replace(self.trials[point.id], state=state, metrics=dict(metrics))
        self.optuna.on_trial_complete(tune_id, {"val/loss": 99.0})

    def run(self, objective: Callable[[Mapping[str, Any]], Mapping[str, float]] = square) -> list[Trial]:
        """The whole sweep, one trial at a time."""
        while self.has_next():
            self.end(self.handed[-1], objective(self.handed[-1].params))
        return [self.trials[id] for id in sorted(self.trials)]

    def resumed(self, *ids: str, **fields: Any) -> "Search":
        """A later launch that knows some of the trials; by default all."""
        known = tuple(self.trials[id] for id in ids or self.trials)
        sweep = self.optuna._sweep
        return Search(sweep.space, known, **{"num_samples": sweep.num_samples, **fields})

    @property
    def told(self) -> list[Any]:
        """What Optuna knows: the values of each of its trials, None for those that failed or go on."""
        return self.optuna._study.values


def test_as_many_valid_points_as_asked_for() -> None:
    space = {
        "optimizer.lr": {"loguniform": [1e-3, 1.0]},
        "optimizer.weight_decay": {"uniform": [0.0, 0.1]},
        "data.global_batch_size": {"quniform": [32, 128, 32]},
        "trainer.epochs": {"randint": [1, 4]},
        "trainer.max_grad_norm": {"quniform": [0.5, 2.0, 0.5]},
        "model": [{"name": "mlp", "hidden": [8]}, {"name": "cnn"}],
    }
    search = Search(space, num_samples=15)
    trials, check = search.run(), ParamsCheck(search.config)
    assert [trial.id for trial in trials] == ids(*range(15))
    for trial in trials:
        assert check.problems(trial.params) == []
        assert list(trial.params) == list(space)
        assert type(trial.params["data.global_batch_size"]) is type(trial.params["trainer.epochs"]) is int
        assert trial.params["trainer.epochs"] < 4
        assert trial.params["model"] in space["model"]
    assert search.optuna.suggest("more") == FINISHED
    assert len({str(trial.params) for trial in trials}) > 10


def test_seed_decides_what_is_proposed() -> None:
    rates = [[trial.params for trial in Search(base={"seed": seed}).run()] for seed in (1, 1, 2)]
    assert rates[0] == rates[1] != rates[2]


def test_optuna_finds_better_points_than_chance() -> None:
    space = {"optimizer.lr": {"uniform": [0.001, 1.0]}, "optimizer.momentum": {"uniform": [0.0, 0.99]}}

    def bowl(params: Mapping[str, Any]) -> dict[str, float]:
        return {"val/loss": (params["optimizer.lr"] - 0.3) ** 2 + (params["optimizer.momentum"] - 0.8) ** 2}

    best, drawn = 0.0, 0.0
    for seed in range(3):
        trials = Search(space, base={"seed": seed}, num_samples=30).run(bowl)
        best += min(trial.metrics["val/loss"] for trial in trials)
        points = plan_trials(
            sweep_config(space, {**BASE, "seed": seed}, search="random", num_samples=30)
        ).planned_trials
        drawn += min(bowl(point.params)["val/loss"] for point in points)
    assert best < drawn / 2


def test_only_the_trials_of_the_setting_that_ended_are_asked_for() -> None:
    search = Search(seeds=2, num_samples=50)
    search.run()
    assert sorted(search.asked_for) == sorted(search.trials)  # each once, whatever their number


def test_skipped_points_count() -> None:
    space = {
        "optimizer.lr": [0.1, 0.2],
        "data.global_batch_size": [64, 100],
        "trainer.gradient_accumulation_steps": [1, 8],
    }
    search = Search(space, num_samples=12, invalid="skip")
    trials = search.run(lambda params: {"val/loss": params["optimizer.lr"]})
    skipped = [trial for trial in trials if trial.state == "skipped"]
    assert 0 < len(skipped) < len(trials) == len(search.told) == 12
    assert all(trial.params["data.global_batch_size"] == 100 and trial.reason for trial in skipped)
    assert not {point.id for point in search.handed} & {trial.id for trial in skipped}


def test_seeds_are_averaged_before_optuna_is_told() -> None:
    search = Search(slots=3, seeds=3, num_samples=2, base={"seed": 5})
    points = [search.next(name) for name in "abc"]
    assert [(point.id, point.params["seed"]) for point in points] == list(zip(ids(0, 1, 2), (5, 6, 7), strict=True))
    assert len({str(point.setting) for point in points}) == 1
    for name, point, loss in zip("acb", points, [1.0, 2.0, 6.0], strict=True):
        assert search.told == [None]
        search.end(point, {"val/loss": loss}, tune_id=name)
    assert search.told == [[3.0]]
    assert search.next().id == "0003"


@pytest.mark.parametrize(
    ("seeds", "endings", "told"),
    [
        (2, [(4.0, "finished"), (9.0, "diverged"), (1.0, "failed"), (2.0, "oom")], [[4.0], None]),
        (1, [(float("nan"), "finished"), (float("inf"), "finished"), (None, "finished")], [None] * 3),
        (1, [(5.0, "pruned")], [[5.0]]),
    ],
)
def test_only_finite_values_of_trials_that_trained_count(seeds: int, endings: list[Any], told: list[Any]) -> None:
    search = Search(seeds=seeds, num_samples=len(told))
    for loss, state in endings:
        search.end(search.next(), {} if loss is None else {"val/loss": loss}, state)
    assert search.told == told
    assert search.optuna.suggest("more") == FINISHED


def test_several_objectives_have_their_directions() -> None:
    search = Search(metric=["val/loss", "val/accuracy"], num_samples=8)
    search.run(lambda params: {**square(params), "val/accuracy": params["optimizer.lr"]})
    assert [direction.name for direction in search.optuna._study._directions] == ["MINIMIZE", "MAXIMIZE"]
    assert all(len(values) == 2 for values in search.told)


def test_later_launch_begins_with_unfinished_points_and_repeats_none() -> None:
    models = [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [16]}, {"name": "cnn"}]
    search = Search({**LR, "model": models}, slots=2)
    ended, unfinished = search.next("a"), [search.next("b")]
    search.end(ended, {"val/loss": 1.0}, tune_id="a")
    unfinished.append(search.next("c"))
    later = search.resumed(slots=3)
    assert later.told[0] == [1.0]
    assert [later.next("a"), later.next("b")] == unfinished
    assert later.next("c").id == "0003"
    for name, point in zip("abc", list(later.handed), strict=True):
        later.end(point, {"val/loss": 2.0}, tune_id=name)
    assert later.told == [[1.0], [2.0], [2.0], [2.0]]
    trials = later.run()
    assert [trial.id for trial in trials] == ids(*range(6))
    assert all(trial.params["model"] in models for trial in trials)
    assert len({trial.params["optimizer.lr"] for trial in trials}) == 6


def test_later_launch_completes_the_seeds_of_a_point() -> None:
    search = Search(seeds=3, num_samples=2)
    search.end(search.next(), {"val/loss": 1.0})
    search.next()  # the third seed has not begun
    later = search.resumed(seeds=3)
    assert later.told == [None]
    trials = later.run(lambda params: {"val/loss": 4.0})
    assert [trial.id for trial in trials] == ids(*range(6))
    assert [trial.params["seed"] for trial in trials] == [0, 1, 2] * 2
    assert later.told == [[3.0], [4.0]]


def test_later_launch_fills_the_gaps_of_an_earlier_one() -> None:
    search = Search(slots=3)
    for name in "abc":
        search.next(name)
    later = search.resumed("0000", "0002")
    assert [trial.id for trial in later.run()] == ids(*range(6))
    assert [point.id for point in later.handed] == ids(0, 2, 1, 3, 4, 5)


def test_skipped_and_failed_points_stay_so_in_a_later_launch() -> None:
    known = (Trial("0000", {"optimizer.lr": 0.1}, "skipped", "why"), Trial("0001", {"optimizer.lr": 0.2}, "oom"))
    search = Search({"optimizer.lr": [0.1, 0.2]}, known)
    assert search.told == []
    assert len(search.run(lambda params: {"val/loss": 1.0})) == 6
    assert [point.id for point in search.handed] == ids(2, 3, 4, 5)


def test_search_runs_in_tunes_own_search_generator(tmp_path: Path) -> None:
    search = Search(slots=3, num_samples=7)
    generator = SearchGenerator(search.optuna)
    generator.add_configurations(Experiment("sweep", tune.Trainable, num_samples=10**6, config={"of": "Tune"}))
    rng = random.Random(3)
    running: list[Any] = []
    begun = []
    while not generator.is_finished() or running:
        trial = generator.next_trial()
        if trial is not None:
            point = planned_trial_of(trial.config, section_of(search.config))
            begun.append(point.id)
            search.trials[point.id] = Trial(point.id, point.params, "running")
            running.append(trial)
            assert len(running) <= 3
        elif running:
            ended = running.pop(rng.randrange(len(running)))
            id = ended.config["trial"]["id"]
            search.trials[id] = replace(search.trials[id], state="finished", metrics={"val/loss": 1.0})
            generator.on_trial_complete(ended.trial_id, {"val/loss": 1.0})
    assert begun == ids(*range(7))
    assert None not in search.told
    search.optuna.save_to_dir(str(tmp_path))  # the journal of the sweep has all
    assert list(tmp_path.iterdir()) == []


CONSTRAINED = {"constraints": {"val/accuracy": ">= 0.5"}}


def test_optuna_knows_by_how_much_a_setting_breaks_each_constraint() -> None:
    search = Search(seeds=2, num_samples=3, **CONSTRAINED)
    for f1 in (0.3, 0.5):
        search.end(search.next(), {"val/loss": 1.0, "val/accuracy": f1})
    search.end(search.next(), {"val/loss": 1.0, "val/accuracy": 0.7})
    search.end(search.next(), {"val/loss": 1.0}, "pruned")
    search.end(search.next(), {"val/loss": 1.0})  # it has finished without the metric
    search.end(search.next(), {"val/loss": 1.0, "val/accuracy": 0.9})
    known = [list(trial.constraints.values()) for trial in search.optuna._study._study.trials]
    assert known == [[pytest.approx(0.1)], [pytest.approx(-0.2)], [float("inf")]]
    later = search.resumed(seeds=2, num_samples=4, **CONSTRAINED)
    assert [list(trial.constraints.values()) for trial in later.optuna._study._study.trials] == known


def test_optuna_avoids_infeasible_points() -> None:
    def narrow(params: Mapping[str, Any]) -> dict[str, float]:
        return {**square(params), "val/accuracy": params["optimizer.lr"]}

    def infeasible(**fields: Any) -> int:
        trials = Search(num_samples=40, **fields).run(narrow)
        return sum(trial.params["optimizer.lr"] < 0.5 for trial in trials[20:])

    assert infeasible(**CONSTRAINED) <= 8 < infeasible()


def test_an_extension_keeps_the_ids_and_adds_points_and_seeds() -> None:
    first = Search(num_samples=2)
    first.run()
    earlier = [section_of(first.config)]
    known = tuple(first.trials.values())
    larger = Search({"optimizer.lr": {"uniform": [0.0001, 2.0]}}, known, num_samples=3, seeds=2, earlier=earlier)
    assert larger.told == [None, None]  # each of the known points lacks a seed
    trials = larger.run()
    assert [trial.id for trial in trials] == ids(*range(6))
    assert [point.id for point in larger.handed] == ids(2, 3, 4, 5)
    assert trials[:2] == list(known)
    rates = [trial.params["optimizer.lr"] for trial in trials]
    assert (rates[2], rates[3], rates[4]) == (rates[0], rates[1], rates[5])
    assert [trial.params["seed"] for trial in trials[2:]] == [1, 1, 0, 1]
    assert [values is not None for values in larger.told] == [True] * 3


def test_further_seeds_of_a_skipped_point_are_skipped() -> None:
    known = (Trial("0000", {"optimizer.lr": 0.1}, "skipped", "why"),)
    space = {"optimizer.lr": [0.1, 0.2]}
    earlier = [section_of(sweep_config(space, BASE, search="optuna", num_samples=1))]
    search = Search(space, known, num_samples=1, seeds=2, earlier=earlier)
    assert not search.has_next()
    assert (search.trials["0001"].state, search.trials["0001"].reason) == ("skipped", "why")
    assert search.trials["0001"].params == {"optimizer.lr": 0.1, "seed": 1}
