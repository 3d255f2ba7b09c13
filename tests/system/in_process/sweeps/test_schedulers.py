"""Tune's schedulers as sweeps use them: their decisions, what a later launch knows, and what PBT proposes."""

import gc
import math
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule

from paceline._compat.ray import ENDED_TRIALS_KEPT
from paceline.config.experiment import ExperimentConfig
from paceline.sweeps.coordinator.running_trial import end_values
from paceline.sweeps.planning.params_checks import ParamsCheck
from paceline.sweeps.search.schedulers import OwnDraws, build_scheduler
from paceline.sweeps.search.tune_trials import AxisPlaces, planned_trial_of, tune_config
from paceline.sweeps.states import TrialState
from paceline.sweeps.sweep_log import SweepHistory
from paceline.sweeps.trial import PlannedTrial, Trial
from support.sweeps.configs import RATES, sweep_config
from support.sweeps.tune import tune_controller

BASE: dict[str, Any] = {"model": {"name": "cnn"}, "data": {"name": "mnist5k"}, "optimizer": {"name": "sgd"}}
METRIC = "val/accuracy"
FIRST, LENGTH = 10.0, 90.0
IDS = ["0000", "0001", "0002", "0003"]

pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")


def config_of(scheduler: str, space: dict[str, Any] | None = None, **fields: Any) -> ExperimentConfig:
    return sweep_config(space or RATES, BASE, metric=METRIC, scheduler=scheduler, **fields)


@dataclass(eq=False)
class Tuned:
    """A trial, as Tune's schedulers look at it."""

    id: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """As Tune has them: of a list, the place."""
    status: str = "RUNNING"
    experiment_tag: str = ""

    def __post_init__(self) -> None:
        self.trial_id = f"tune_{id(self)}"
        self.config = {"trial": {"id": self.id, "values": dict(self.values)}}
        manager = SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None), _latest_checkpoint_result=None)
        self.run_metadata = SimpleNamespace(checkpoint_manager=manager)

    def is_finished(self) -> bool:
        return self.status in ("TERMINATED", "ERROR")

    def set_experiment_tag(self, tag: str) -> None: ...

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config


class Launch:
    """A sweep as its scheduler sees it, in place of Tune's controller: trials come to rungs in any order, and end."""

    search_alg = None

    def __init__(self, scheduler: Any, trials: Iterable[str]) -> None:
        self.scheduler = scheduler
        self.tuned = {id: Tuned(id) for id in trials}
        self.paused: list[str] = []
        for trial in self.tuned.values():
            scheduler.on_trial_add(self, trial)

    def get_trials(self) -> list[Tuned]:
        return list(self.tuned.values())

    def get_live_trials(self) -> set[Tuned]:
        return {trial for trial in self.tuned.values() if not trial.is_finished()}

    def pause_trial(self, trial: Tuned, should_checkpoint: bool = True) -> None:
        trial.status = "PAUSED"
        self.paused.append(trial.id)

    def _schedule_trial_save(self, trial: Tuned, result: Any = None) -> str:
        return f"checkpoint of {trial.id}"

    def result(self, id: str, values: Mapping[str, float]) -> str:
        decision = str(self.scheduler.on_trial_result(self, self.tuned[id], dict(values)))
        if decision == "STOP":
            self.end(id, values)
        return decision

    def end(self, id: str, values: Mapping[str, float]) -> None:
        self.scheduler.on_trial_complete(self, self.tuned[id], dict(values))
        self.tuned[id].status = "TERMINATED"


def values_at(time: float, value: float) -> dict[str, float]:
    return {"samples": time, "epochs": time / 100, "seconds": time, METRIC: value}


def ended(trial: Trial, history: SweepHistory) -> dict[str, float]:
    """What Tune is told of a trial that has ended."""
    return {METRIC: math.nan, **end_values(trial, history.last_rungs.get(trial.id, {}))}


class Story:
    """A random course of a sweep: which trial does what next. One in ten steps is a failure."""

    def __init__(self, seed: int, rungs: Sequence[float]) -> None:
        self.rng, self.rungs = random.Random(seed), rungs
        self.place = {f"{number:04d}": 0 for number in range(self.rng.randint(3, 12))}

    def value(self) -> float:
        return self.rng.choice([math.nan, self.rng.random(), self.rng.random(), self.rng.random()])

    def steps(self) -> Iterator[tuple[str, float | TrialState, float]]:
        """Trial, the rung that it has come to or how it has ended, and the value of the metric."""
        while self.place:
            id = self.rng.choice(list(self.place))
            here = self.place[id]
            if self.rng.random() < 0.1:
                self.place.pop(id)
                yield id, "failed", self.value()
            elif here == len(self.rungs):
                self.place.pop(id)
                yield id, "finished", self.value()
            else:
                self.place[id] += 1
                yield id, self.rungs[here], self.value()


RUNGS = {"asha": [10.0, 30.0], "median": [10.0 * number for number in range(1, 9)]}


def take(
    launches: Sequence[Launch], history: SweepHistory, step: tuple[str, float | TrialState, float]
) -> tuple[list[str], bool]:
    """Let the launches see a step, and write it down; returns their decisions, and whether the trial has ended."""
    id, what, value = step
    if isinstance(what, str):
        metrics = {METRIC: value} if what == "finished" else history.trials[id].metrics
        trial = history.trials[id] = Trial(id, {}, what, metrics=metrics, samples=90)
        for launch in launches:
            launch.end(id, ended(trial, history))
        return [], True
    values = values_at(what, value)
    history.rungs.append((id, values))
    decisions = [launch.result(id, values) for launch in launches]
    history.answered[id] = len(history.rungs)
    is_pruned = decisions[0] == "STOP"
    state: TrialState = "pruned" if is_pruned else "running"
    history.trials[id] = Trial(id, {}, state, metrics={METRIC: value}, samples=int(what))
    return decisions, is_pruned


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("name", ["asha", "median"])
def test_decisions_are_those_of_tune_and_of_an_undisturbed_launch(name: str, mode: str) -> None:
    """Ours beside Tune's own scheduler; from some step on, beside one that knows only the journal."""
    config = config_of(name, mode=mode)
    common: dict[str, Any] = {"time_attr": "samples", "metric": METRIC, "mode": mode, "grace_period": FIRST}
    seen: Counter[str] = Counter()
    for seed in range(60):
        story = Story(seed, RUNGS[name])
        cut = random.Random(seed).randint(1, 15)
        theirs = (
            AsyncHyperBandScheduler(**common, max_t=LENGTH, reduction_factor=3, stop_last_trials=False)
            if name == "asha"
            else MedianStoppingRule(**common)
        )
        ours = build_scheduler(config, FIRST, LENGTH, SweepHistory())
        launches = [Launch(scheduler, story.place) for scheduler in (ours, theirs)]
        history = SweepHistory({id: Trial(id, {}) for id in story.place})
        for number, step in enumerate(story.steps()):
            if number == cut:
                left = [id for id in history.trials if id not in history.ended]
                launches.append(Launch(build_scheduler(config, FIRST, LENGTH, history), left))
            decisions, is_over = take(launches, history, step)
            assert len(set(decisions)) <= 1
            if is_over:
                story.place.pop(step[0], None)
            seen.update(decisions[2:])
    assert min(seen["STOP"], seen["CONTINUE"]) > 10


@pytest.mark.parametrize("name", ["none", "asha", "median"])
def test_trial_that_begins_next_is_that_of_tune_in_the_order_of_ids(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses, rng = ["TERMINATED", "RUNNING", "PAUSED", "PENDING", "ERROR"], random.Random(0)
    launch = Launch(build_scheduler(config_of(name), FIRST, LENGTH, SweepHistory()), [*IDS, "9999", "10000", "10001"])
    cases = [
        [rng.choice(given) for _ in launch.tuned] for given in (rng.sample(statuses, n % 5 + 1) for n in range(200))
    ]

    def put(case: list[str]) -> None:
        for trial, status in zip(launch.tuned.values(), case, strict=True):
            trial.status = status

    expected = [(put(case), FIFOScheduler().choose_trial_to_run(launch))[1] for case in cases]
    assert len(set(expected)) > 5
    monkeypatch.setattr(Launch, "get_trials", None)  # takes longer with each trial that has ended
    assert [(put(case), launch.scheduler.choose_trial_to_run(launch))[1] for case in cases] == expected


@pytest.mark.parametrize("name", ["none", "asha", "median"])
def test_trials_that_have_ended_are_freed_but_for_the_newest(name: str) -> None:
    """Else a sweep takes more memory with each trial."""
    tune = tune_controller(build_scheduler(config_of(name), FIRST, LENGTH, SweepHistory()))
    before: list[weakref.ref[Any]] = []
    for number in range(300):
        trial: Any = TuneTrial("toy", config={"trial": {"id": f"{number:04}", "values": {}}}, stub=True)
        tune.add_trial(trial)
        result = values_at(10.0, number % 7)
        if tune._scheduler_alg.on_trial_result(tune._wrapped(), trial, result) != "STOP":
            result = values_at(90.0, number % 7)
        tune._scheduler_alg.on_trial_complete(tune._wrapped(), trial, result)
        tune._set_trial_status(trial, "TERMINATED")
        tune._live_trials.discard(trial)
        tune._pending_trials_list.clear()  # as when an actor was found for it
        before.append(weakref.ref(trial))
        assert tune._scheduler_alg.choose_trial_to_run(tune._wrapped()) is None
    del trial
    gc.collect()
    alive = [number for number, each in enumerate(before) if each() is not None]
    assert alive == list(range(alive[0], 300))
    assert len(alive) <= 2 * ENDED_TRIALS_KEPT


def test_later_launch_decides_a_rung_that_was_left_open() -> None:
    config = config_of("asha")
    history = SweepHistory({id: Trial(id, {}, "running") for id in IDS})
    for id, value in [("0000", 0.7), ("0001", 0.8), ("0002", 0.9)]:
        history.rungs.append((id, values_at(10.0, value)))
        history.answered[id] = len(history.rungs)
    history.rungs.append(("0003", values_at(10.0, 0.1)))

    later = Launch(build_scheduler(config, FIRST, LENGTH, history), history.trials)
    assert later.result("0003", values_at(10.0, 0.1)) == "STOP"
    # one that asks again although it was told to go on does so
    assert later.result("0000", values_at(10.0, 0.1)) == "CONTINUE"


def test_rungs_that_are_no_round_numbers_count() -> None:
    """0.1 * 3 is more than 0.3, of which the workers know better."""
    config = config_of("asha", budget_unit="epochs", first_rung=0.1)
    launch = Launch(build_scheduler(config, 0.1, 0.9, SweepHistory()), IDS)
    for number, id in enumerate(launch.tuned):
        assert launch.result(id, {"epochs": 0.1, METRIC: number / 10}) == "CONTINUE"
    for id, value in [("0000", 0.9), ("0001", 0.8), ("0002", 0.7), ("0003", 0.1)]:
        decision = launch.result(id, {"epochs": 0.3, METRIC: value})
        assert decision == ("CONTINUE" if id == "0000" else "STOP")


@pytest.mark.parametrize("unit", ["samples", "epochs", "seconds"])
def test_finished_trials_count_for_the_median(unit: str) -> None:
    config = config_of("median", budget_unit=unit, first_rung=10.0)
    launch = Launch(build_scheduler(config, FIRST, LENGTH, SweepHistory()), IDS)
    for id in IDS[:3]:
        rung = {"samples": 10.0, "epochs": 10.0, "seconds": 10.0, METRIC: 0.9}
        launch.result(id, rung)
        trial = Trial(id, {}, "finished", metrics={METRIC: 0.9, "epoch": 90.0}, samples=90, seconds=90.0)
        launch.end(id, end_values(trial, rung))
    assert launch.result("0003", {unit: 80.0, METRIC: 0.1}) == "STOP"


def pbt(space: dict[str, Any], history: SweepHistory | None = None, **fields: Any) -> tuple[ExperimentConfig, Any]:
    config = config_of("pbt", space, search="random", num_samples=4, first_rung=FIRST, **fields)
    return config, build_scheduler(config, FIRST, LENGTH, history or SweepHistory())


@pytest.fixture(autouse=True)
def _seeded() -> None:
    random.seed(5)


@pytest.mark.parametrize(
    ("axis", "values", "is_right"),
    [
        ("optimizer.lr", {"loguniform": [1e-3, 1.0]}, lambda value: 1e-3 <= value <= 1.0),
        ("optimizer.momentum", {"uniform": [0.5, 0.95]}, lambda value: 0.5 <= value <= 0.95),
        ("optimizer.momentum", {"quniform": [0.1, 0.9, 0.1]}, lambda value: value in [n / 10 for n in range(1, 10)]),
        ("optimizer.weight_decay", [0.0, 0.1, 0.3], lambda value: value in (0.0, 0.1, 0.3)),
        ("optimizer.lr", [0.1, -1.0, 0.2, 0.4], lambda value: value in (0.1, 0.2, 0.4)),  # only valid ones
        ("lr_scheduler.warmup_steps", {"randint": [0, 6]}, lambda value: type(value) is int and 0 <= value < 6),
    ],
)
def test_pbt_proposes_values_of_each_axis(axis: str, values: Any, is_right: Callable[[Any], bool]) -> None:
    config, scheduler = pbt({axis: values}, invalid="skip")
    check = ParamsCheck(config)
    rng = random.Random(2)
    drawn = values[0] if isinstance(values, list) else config.sweep.space[axis].sample(rng)  # type: ignore[union-attr]
    good, bad = Tuned("0001"), Tuned("0000")
    good.config, bad.config = (
        tune_config(PlannedTrial(id, {axis: drawn}), AxisPlaces(config.sweep)) for id in ("0001", "0000")
    )
    seen = set()
    for _ in range(100):
        new, _ = scheduler._get_new_config(bad, good)
        point = planned_trial_of(new, config.sweep)
        assert point.id == "0000"
        value = point.params[axis]
        assert is_right(value), value
        assert type(value) in (int, float)
        assert check.problems(point.params) == []
        seen.add(value)
        good.config = tune_config(PlannedTrial("0001", point.params), AxisPlaces(config.sweep))
    assert len(seen) > 2
    assert bad.config == tune_config(PlannedTrial("0000", {axis: drawn}), AxisPlaces(config.sweep))


def exploited(launch: Launch, time: float, values: Sequence[float]) -> list[str]:
    """Ids of the trials that take over another one's state when all come to a rung with such values."""
    launch.paused.clear()
    for id, value in zip(launch.tuned, values, strict=True):
        launch.tuned[id].status = "RUNNING"
        launch.result(id, values_at(time, value))
    return list(launch.paused)


def test_pbt_resumes_the_worst_from_the_checkpoint_of_the_best() -> None:
    _, scheduler = pbt({"optimizer.lr": {"loguniform": [1e-3, 1.0]}})
    launch = Launch(scheduler, IDS)
    for trial in launch.tuned.values():
        trial.config["trial"]["values"] = {"optimizer.lr": 0.1}
    assert exploited(launch, 10.0, [0.9, 0.8, 0.7, 0.1]) == []  # the first one was alone, and has not saved its state
    assert exploited(launch, 20.0, [0.9, 0.8, 0.7, 0.1]) == ["0003"]
    assert launch.tuned["0003"].config["trial"]["id"] == "0003"
    taken = launch.tuned["0003"].run_metadata.checkpoint_manager._latest_checkpoint_result
    assert taken.checkpoint == "checkpoint of 0000"


def test_pbt_sees_every_rung_whatever_the_batch_size() -> None:
    _, scheduler = pbt(RATES)
    launch = Launch(scheduler, ["0000"])
    for batch in (3, 10, 19):
        scheduler.on_trial_add(launch, launch.tuned["0000"])
        done, rung = 0, 10
        while done < 300:
            while done < rung:
                done += batch
            launch.result("0000", values_at(done, done))
            assert scheduler._trial_state[launch.tuned["0000"]].last_score == done
            rung = (done // 10 + 1) * 10


def test_resumed_pbt_knows_the_scores_but_waits_for_a_checkpoint() -> None:
    history = SweepHistory({id: Trial(id, {"optimizer.lr": 0.1}, "running") for id in IDS})
    history.rungs.append(("0000", values_at(20.0, 0.5)))  # at 10 it took over the state of another one
    for time in (10.0, 20.0):
        for id, value in zip(IDS, [0.9, 0.8, 0.7, 0.1], strict=True):
            history.rungs.append((id, values_at(time, value)))
            history.answered[id] = len(history.rungs)
    history.rungs.append(("0001", values_at(30.0, 0.99)))  # nobody has answered
    _, scheduler = pbt(RATES, history)
    launch = Launch(scheduler, IDS)
    for trial in launch.tuned.values():
        trial.config["trial"]["values"] = {"optimizer.lr": 0}

    known = [
        (trial.id, state.last_score, state.last_perturbation_time, state.last_train_time, state.last_checkpoint)
        for trial, state in scheduler._trial_state.items()
    ]
    assert known == [(id, score, 20.0, 20.0, None) for id, score in zip(IDS, [0.9, 0.8, 0.7, 0.1], strict=True)]

    # the worst comes first, while the best has not saved its state in this launch
    assert (launch.result("0003", values_at(30.0, 0.1)), launch.paused) == ("CONTINUE", [])
    assert exploited(launch, 40.0, [0.9, 0.8, 0.7, 0.1]) == ["0003"]


def test_pbt_draws_by_the_seed_and_leaves_the_users_generators_alone() -> None:
    def drawn(seed: int) -> list[float]:
        draws = OwnDraws(seed)
        with draws:
            first = [random.random(), float(np.random.uniform())]
        random.random()
        with draws:
            return [*first, random.random()]

    random.seed(1)
    np.random.seed(1)
    wanted = random.random(), np.random.uniform()
    random.seed(1)
    np.random.seed(1)
    with OwnDraws(0):
        random.random()
    assert (random.random(), np.random.uniform()) == wanted
    assert drawn(0) == drawn(0) != drawn(1)
    assert len(set(drawn(0))) == 3
