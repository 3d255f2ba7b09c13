"""Points that Optuna chooses: how many, which, with which ids, what it is told, and how a later launch goes on."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import SearchGenerator

from paceline.config.loading import validate
from paceline.sweeps.planning.point_checks import PointCheck
from paceline.sweeps.planning.points import make_points
from paceline.sweeps.search.suggest import OptunaPoints
from paceline.sweeps.search.tune_config import point_of
from paceline.sweeps.trials import Point, Trial, TrialState

TREE: dict[str, Any] = {"name": "run", "model": {"name": "cnn"}, "data": {"name": "mnist5k", "global_batch_size": 64}}
LR = {"optimizer.lr": {"uniform": [0.001, 1.0]}}
FINISHED = "FINISHED"

Objective = Callable[[Mapping[str, Any]], Mapping[str, float]]


def square(overrides: Mapping[str, Any]) -> dict[str, float]:
    """Best where the learning rate is 0.3."""
    return {"val/loss": (overrides["optimizer.lr"] - 0.3) ** 2}


class Search:
    """A search, and a sweep that plays along without any training."""

    def __init__(
        self,
        space: Mapping[str, Any],
        known: tuple[Trial, ...] = (),
        slots: int = 1,
        base: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        section = {"space": space, "search": "optuna", "num_samples": 6, **fields}
        self.config = validate({**TREE, **(base or {}), "sweep": section})
        self.trials = {trial.id: trial for trial in known}
        self.handed: list[Point] = []
        self.points = OptunaPoints(self.config, slots, known, lambda: list(self.trials.values()), self._skip)

    def _skip(self, point: Point, reason: str) -> None:
        self.trials[point.id] = Trial(point.id, point.overrides, "skipped", reason)

    def next(self, tune_id: str = "tune") -> Point | None:
        """The point that is handed out; None when there is none."""
        made = self.points.suggest(tune_id)
        if not isinstance(made, dict):
            assert made in (None, FINISHED)
            return None
        assert self.config.sweep is not None
        point = point_of(made, self.config.sweep)
        self.handed.append(point)
        self.trials[point.id] = Trial(point.id, point.overrides, "running")
        return point

    def end(
        self, point: Point, metrics: Mapping[str, float], state: TrialState = "finished", tune_id: str = "tune"
    ) -> None:
        """A trial has ended."""
        self.trials[point.id] = replace(self.trials[point.id], state=state, metrics=dict(metrics))
        self.points.on_trial_complete(tune_id, {"val/loss": 99.0})

    def run(self, objective: Objective = square) -> list[Trial]:
        """The whole sweep, one trial at a time."""
        while (point := self.next()) is not None:
            self.end(point, objective(point.overrides))
        return [self.trials[id] for id in sorted(self.trials)]

    @property
    def told(self) -> list[Any]:
        """What Optuna knows: the values of each of its trials, None for those that failed or go on."""
        return [trial.values for trial in self.points._study.trials]


def test_as_many_points_as_asked_for_and_each_is_valid() -> None:
    space = {
        "optimizer.lr": {"loguniform": [1e-3, 1.0]},
        "optimizer.weight_decay": {"uniform": [0.0, 0.1]},
        "data.global_batch_size": {"quniform": [32, 128, 32]},
        "trainer.epochs": {"randint": [1, 4]},
        "trainer.max_grad_norm": {"quniform": [0.5, 2.0, 0.5]},
        "model": [{"name": "mlp", "hidden": [8]}, {"name": "cnn"}],
    }
    search = Search(space, num_samples=15)
    trials = search.run()

    check = PointCheck(search.config)
    assert [trial.id for trial in trials] == [f"{number:04d}" for number in range(15)]
    for trial in trials:
        assert check.problems(trial.overrides) == []
        assert list(trial.overrides) == list(space)
        assert type(trial.overrides["data.global_batch_size"]) is type(trial.overrides["trainer.epochs"]) is int
        assert trial.overrides["trainer.epochs"] < 4
        assert trial.overrides["model"] in space["model"]
    assert search.points.suggest("more") == FINISHED
    assert len({str(trial.overrides) for trial in trials}) > 10


def test_the_same_seed_proposes_the_same() -> None:
    rates = [[trial.overrides for trial in Search(LR, base={"seed": seed}).run()] for seed in (1, 1, 2)]
    assert rates[0] == rates[1] != rates[2]


def test_it_finds_a_better_point_than_chance() -> None:
    space = {"optimizer.lr": {"uniform": [0.001, 1.0]}, "optimizer.momentum": {"uniform": [0.0, 0.99]}}

    def bowl(overrides: Mapping[str, Any]) -> dict[str, float]:
        return {"val/loss": (overrides["optimizer.lr"] - 0.3) ** 2 + (overrides["optimizer.momentum"] - 0.8) ** 2}

    best = [
        min(trial.metrics["val/loss"] for trial in Search(space, base={"seed": seed}, num_samples=30).run(bowl))
        for seed in range(3)
    ]
    drawn = [
        min(bowl(point.overrides)["val/loss"] for point in make_points(config).points)
        for config in (
            validate({**TREE, "seed": seed, "sweep": {"space": space, "search": "random", "num_samples": 30}})
            for seed in range(3)
        )
    ]
    assert sum(best) < sum(drawn) / 2


def test_no_more_than_the_slots_at_once() -> None:
    search = Search(LR, slots=2)
    first, second = search.next("a"), search.next("b")
    assert first is not None
    assert second is not None
    assert search.points.suggest("c") is None
    search.end(first, {"val/loss": 1.0}, tune_id="a")
    assert search.next("c") is not None
    assert search.points.suggest("d") is None


def test_what_is_skipped_counts() -> None:
    space = {
        "optimizer.lr": [0.1, 0.2],
        "data.global_batch_size": [64, 100],
        "trainer.gradient_accumulation_steps": [1, 8],
    }
    search = Search(space, num_samples=12, invalid="skip")
    trials = search.run(lambda overrides: {"val/loss": overrides["optimizer.lr"]})

    assert len(trials) == 12
    skipped = [trial for trial in trials if trial.state == "skipped"]
    assert 0 < len(skipped) < 12
    assert all(trial.overrides["data.global_batch_size"] == 100 for trial in skipped)
    assert all("100" in trial.reason for trial in skipped)
    assert not {point.id for point in search.handed} & {trial.id for trial in skipped}
    assert len(search.told) == 12


def test_seeds_are_averaged_before_optuna_is_told() -> None:
    search = Search(LR, slots=3, seeds=3, num_samples=2, base={"seed": 5})
    points = [search.next(name) for name in "abc"]
    assert [point.overrides["seed"] for point in points if point] == [5, 6, 7]
    assert [point.id for point in points if point] == ["0000", "0001", "0002"]
    assert len({str(point.setting) for point in points if point}) == 1

    for name, point, loss in zip("acb", points, [1.0, 2.0, 6.0], strict=True):
        assert point is not None
        assert search.told == [None]
        search.end(point, {"val/loss": loss}, tune_id=name)
    assert search.told == [[3.0]]
    following = search.next()
    assert following is not None
    assert following.id == "0003"


def test_seeds_that_failed_are_left_out_of_the_mean() -> None:
    search = Search(LR, seeds=2, num_samples=2)
    endings: list[tuple[float, TrialState]] = [(4.0, "finished"), (9.0, "diverged"), (1.0, "failed"), (2.0, "oom")]
    for loss, state in endings:
        point = search.next()
        assert point is not None
        search.end(point, {"val/loss": loss}, state)
    assert search.told == [[4.0], None]
    assert search.points.suggest("more") == FINISHED


def test_a_value_that_is_no_number_is_not_told() -> None:
    search = Search(LR, num_samples=3)
    for metrics in ({"val/loss": float("nan")}, {}, {"val/loss": float("inf")}):
        point = search.next()
        assert point is not None
        search.end(point, metrics)
    assert search.told == [None, None, None]


def test_a_pruned_trial_counts_with_what_it_had() -> None:
    search = Search(LR)
    point = search.next()
    assert point is not None
    search.end(point, {"val/loss": 5.0}, "pruned")
    assert search.told == [[5.0]]


def test_several_objectives() -> None:
    search = Search(LR, metric=["val/loss", "val/accuracy"], num_samples=8)
    search.run(lambda overrides: {**square(overrides), "val/accuracy": overrides["optimizer.lr"]})
    assert [direction.name for direction in search.points._study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert all(len(values) == 2 for values in search.told)


def resumed(search: Search, *ids: str, **fields: Any) -> Search:
    """A later launch that knows some of the trials."""
    known = tuple(search.trials[id] for id in ids or search.trials)
    return Search(search.config.sweep.space, known, **{"num_samples": search.points._sweep.num_samples, **fields})  # type: ignore[union-attr]


def test_a_later_launch_begins_with_what_is_unfinished() -> None:
    search = Search(LR, slots=2)
    ended = search.next("a")
    open_ones = [search.next("b")]
    assert ended is not None
    search.end(ended, {"val/loss": 1.0}, tune_id="a")
    open_ones.append(search.next("c"))

    later = resumed(search, slots=3)
    assert later.told[0] == [1.0]
    assert [later.next("a"), later.next("b")] == open_ones
    following = later.next("c")
    assert following is not None
    assert following.id == "0003"
    for name, point in zip("abc", list(later.handed), strict=True):
        later.end(point, {"val/loss": 2.0}, tune_id=name)
    assert later.told == [[1.0], [2.0], [2.0], [2.0]]
    assert [trial.id for trial in later.run()] == [f"{number:04d}" for number in range(6)]


def test_a_later_launch_does_not_repeat_itself() -> None:
    search = Search(LR, num_samples=10)
    for _ in range(4):
        point = search.next()
        assert point is not None
        search.end(point, square(point.overrides))
    trials = resumed(search).run()
    assert len({trial.overrides["optimizer.lr"] for trial in trials}) == len(trials) == 10


def test_a_later_launch_completes_the_seeds_of_a_point() -> None:
    search = Search(LR, seeds=3, num_samples=2)
    point = search.next()
    assert point is not None
    search.end(point, {"val/loss": 1.0})
    search.next()  # the third seed has not begun

    later = resumed(search, seeds=3)
    assert later.told == [None]
    trials = later.run(lambda overrides: {"val/loss": 4.0})
    assert [trial.id for trial in trials] == [f"{number:04d}" for number in range(6)]
    assert [trial.overrides["seed"] for trial in trials] == [0, 1, 2] * 2
    assert later.told == [[3.0], [4.0]]


def test_the_same_point_twice_counts_twice() -> None:
    search = Search({"optimizer.lr": [0.1]}, num_samples=5)
    for _ in range(3):
        point = search.next()
        assert point is not None
        search.end(point, {"val/loss": 1.0})
    assert len(resumed(search).run()) == 5


def test_a_number_that_an_earlier_launch_left_out_is_made_up_for() -> None:
    search = Search(LR, slots=3)
    for name in "abc":
        search.next(name)
    later = resumed(search, "0000", "0002")
    assert [trial.id for trial in later.run()] == [f"{number:04d}" for number in range(6)]
    assert [point.id for point in later.handed] == ["0000", "0002", "0001", "0003", "0004", "0005"]


def test_all_that_an_earlier_launch_skipped_stays_skipped() -> None:
    known = (Trial("0000", {"optimizer.lr": 0.1}, "skipped", "why"), Trial("0001", {"optimizer.lr": 0.2}, "oom"))
    search = Search({"optimizer.lr": [0.1, 0.2]}, known)
    assert search.told == []
    assert len(search.run(lambda overrides: {"val/loss": 1.0})) == 6
    assert [point.id for point in search.handed] == ["0002", "0003", "0004", "0005"]


def test_mappings_in_a_list_come_back_after_a_resume() -> None:
    models = [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [16]}, {"name": "cnn"}]
    search = Search({"model": models})
    point = search.next()
    assert point is not None
    assert point.overrides["model"] in models
    assert resumed(search).next() == point


@pytest.mark.parametrize("slots", [1, 3])
def test_tunes_own_search_generator_gets_along_with_it(slots: int) -> None:
    search = Search(LR, slots=slots, num_samples=7)
    generator = SearchGenerator(search.points)
    generator.add_configurations(Experiment("sweep", tune.Trainable, num_samples=10**6, config={"of": "Tune"}))
    rng = random.Random(3)
    running: list[Any] = []
    ids = []
    while not generator.is_finished() or running:
        trial = generator.next_trial()
        if trial is not None:
            ids.append(trial.config["trial"]["id"])
            assert search.config.sweep is not None
            overrides = point_of(trial.config, search.config.sweep).overrides
            search.trials[ids[-1]] = Trial(ids[-1], overrides, "running")
            running.append(trial)
            assert len(running) <= slots
        elif running:
            ended = running.pop(rng.randrange(len(running)))
            id = ended.config["trial"]["id"]
            metrics = square(search.trials[id].overrides)
            search.trials[id] = replace(search.trials[id], state="finished", metrics=metrics)
            generator.on_trial_complete(ended.trial_id, {"val/loss": metrics["val/loss"]})
    assert ids == [f"{number:04d}" for number in range(7)]
    assert None not in search.told


def test_nothing_is_saved_in_tunes_files(tmp_path: Any) -> None:
    search = Search(LR)
    search.points.save_to_dir(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
