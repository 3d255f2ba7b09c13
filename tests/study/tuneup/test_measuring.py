"""The course of a tune-up, on a bench that plays techniques whose effects are known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.errors import RunFailed
from paceline.study.tuneup.clock import Clock
from paceline.study.tuneup.explaining import explanation
from paceline.study.tuneup.jobs import Job
from paceline.study.tuneup.judging import PAIRS_OF_A_DUEL
from paceline.study.tuneup.measuring import AA, PREDICTED, Measuring
from paceline.study.tuneup.outcome import Findings
from paceline.study.tuneup.texts import quality_text
from support.toys import toy_config

from . import played_bench
from .played_bench import DUEL_SECONDS, FACTS, PlayedBench, PlayedClock, Recording, Speed

PLANTED = {
    "nothing": {"parallel.timeout_seconds": 301.0},
    "faster": {"checkpoint.keep": 5},
    "slower": {"scaling.max_failures": 7},
    "spoils": {"optimizer.weight_decay": 0.5},
}
"""Fields that a played bench takes for techniques."""


def config(budget_seconds: float = 600.0, **overrides: Any) -> Any:
    section = {"arms": PLANTED, "budget_seconds": budget_seconds, "skip": ["compile", "log-every-50"]}
    changes = {"trainer.precision": "32-true", "scaling.num_workers": 1, "tuneup": section, **overrides}
    return toy_config().with_overrides(changes)


def speed(tree: dict[str, Any]) -> float:
    """5 % faster, 5 % slower, and 20 % faster where the model comes out worse."""
    factor = 1.0
    factor *= 1.05 if tree["checkpoint"]["keep"] == 5 else 1.0
    factor /= 1.05 if tree["scaling"]["max_failures"] == 7 else 1.0
    factor *= 1.2 if tree["optimizer"]["weight_decay"] == 0.5 else 1.0
    return 1000 * factor


def accuracy(tree: dict[str, Any]) -> float:
    return 0.95 - (0.03 if tree["optimizer"]["weight_decay"] == 0.5 else 0.0)


def measured(bench: PlayedBench, clock: PlayedClock, tuned: Any, watcher: Any = None) -> Findings:
    budget = tuned.tuneup.budget_seconds
    return Measuring(tuned, bench, Clock(budget, 0.0, clock), watcher or Recording()).run()


@pytest.mark.parametrize("seed", range(5))
def test_planted_techniques_get_their_verdicts_and_the_good_one_is_recommended(seed: int) -> None:
    clock = PlayedClock()
    found = measured(PlayedBench(clock, speed, accuracy, seed=seed), clock, config())
    verdicts = {arm.name: arm.verdict for arm in found.arms if arm.name in PLANTED}
    assert verdicts == {"nothing": "none", "faster": "gain", "slower": "harm", "spoils": "harm"}
    assert found.recommended == PLANTED["faster"]
    assert found.speedup == pytest.approx(1.05, rel=0.02)
    assert found.bottleneck == "data: it waits for data"
    assert found.split == {"data": 0.7, "forward": 0.2, "backward": 0.1}
    assert next(arm.verdict for arm in found.arms if arm.name == "fix-data-1") == "none"
    assert found.peak_memory_ratio == 0.5
    assert {arm.name: arm.peak_memory_ratio for arm in found.arms if arm.name in PLANTED} == {
        "nothing": 1.0,
        "faster": 0.5,
        "slower": 1.0,
        "spoils": 1.0,
    }
    spoiling = next(arm for arm in found.arms if arm.name == "spoils")
    assert spoiling.quality.verdict == "worse"
    assert spoiling.quality.margin == 0.01
    assert spoiling.speedup == pytest.approx(1.2, rel=0.05)
    assert clock.now < 600


def test_a_loss_that_rises_is_worse_and_is_told_as_it_rises() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, lambda tree: 1 - accuracy(tree))
    bench.metric = "val/loss"
    found = measured(bench, clock, config())
    assert found.recommended == PLANTED["faster"]
    quality = next(arm.quality for arm in found.arms if arm.name == "spoils")
    assert (quality.verdict, quality.metric) == ("worse", "val/loss")
    assert quality.difference == pytest.approx(-0.03, abs=0.003)
    assert quality_text(quality).startswith("val/loss worse, +0.0")


def test_the_largest_seeds_can_be_tuned_with() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    measured(bench, clock, config(seed=2**63 - 5))
    assert bench.done["train"] >= 5


def test_a_training_that_takes_longer_than_there_is_time_is_not_begun() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    bench.training_seconds, bench.seconds_per_sample = 36_000.0, 36_000.0 / 96 / toy_config().trainer.epochs
    found = measured(bench, clock, config())
    assert bench.done["train"] == 0
    assert any("36,000 s" in note for note in found.notes)
    faster = next(arm for arm in found.arms if arm.name == "faster")
    assert faster.verdict == "gain"
    assert faster.reason.endswith("; faster; quality not measured")
    assert found.recommended == {}  # of which nobody knows what the model comes out like
    assert clock.now < 600


def test_a_training_that_turns_out_to_be_too_long_is_ended_in_time() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    bench.training_seconds = 36_000.0  # evaluations, say, of which the steps say nothing
    found = measured(bench, clock, config())
    assert clock.now < 600 + DUEL_SECONDS * 3
    assert any("no time to train the baseline" in note for note in found.notes)


def test_a_training_that_failed_says_nothing_of_the_next_one() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    bench.failing = lambda job: (
        "it broke" if job.kind == "train" and '"weight_decay":0.5' in job.configs[0].config_json else ""
    )
    arms = {"spoils": PLANTED["spoils"], "other": {"optimizer.momentum": 0.3, "checkpoint.keep": 5}}
    section = {"arms": arms, "budget_seconds": 600.0, "skip": ["compile"]}
    found = measured(bench, clock, config(tuneup=section))
    assert found.recommended == arms["other"]
    assert sum("it broke" in note for note in found.notes) == 2


def test_a_technique_of_ones_own_may_be_called_all_together() -> None:
    clock = PlayedClock()
    arms = {"all together": PLANTED["slower"], "faster": PLANTED["faster"]}
    section = {"arms": arms, "budget_seconds": 600.0, "skip": ["compile"]}
    found = measured(PlayedBench(clock, speed, accuracy), clock, config(tuneup=section))
    assert next(arm.verdict for arm in found.arms if arm.name == "all together") == "harm"
    assert found.recommended == PLANTED["faster"]


def test_what_a_spoiling_technique_left_no_room_for_comes_back_when_it_goes() -> None:
    clock = PlayedClock()
    milder = {"optimizer.weight_decay": 0.25}
    tuned = config().with_overrides({"tuneup.arms": {"spoils": PLANTED["spoils"], "milder": milder}})

    def either(tree: dict[str, Any]) -> float:
        return 1000 * (1.1 if tree["optimizer"]["weight_decay"] == 0.25 else 1.0) * speed(tree) / 1000

    found = measured(PlayedBench(clock, either, accuracy), clock, tuned)
    assert found.recommended == milder


def test_what_there_was_no_time_for_is_told_beside_the_answer() -> None:
    clock = PlayedClock()
    found = measured(PlayedBench(clock, speed, accuracy), clock, config(budget_seconds=10.0))
    assert found.recommended == {}
    (note,) = [each for each in found.notes if "tuneup.budget_seconds" in each]
    assert all(name in note for name in PLANTED)
    roomy = PlayedClock()
    assert not any(
        "budget_seconds" in note for note in measured(PlayedBench(roomy, speed), roomy, config(2000.0)).notes
    )


@pytest.mark.parametrize("budget_seconds", [120.0, 140.0, 160.0, 200.0])
def test_what_is_recommended_was_measured_together_with_little_time_too(budget_seconds: float) -> None:
    clock = PlayedClock()
    found = measured(PlayedBench(clock, speed, accuracy), clock, config(budget_seconds))
    assert found.recommended == PLANTED["faster"]
    assert found.speedup is not None
    assert found.peak_memory_ratio == 0.5
    assert clock.now < budget_seconds


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_baseline_whose_metric_is_no_number_leaves_the_speeds(value: float) -> None:
    clock = PlayedClock()
    found = measured(PlayedBench(clock, speed, lambda tree: value), clock, config())
    assert {arm.name: arm.verdict for arm in found.arms if arm.name in PLANTED}["slower"] == "harm"
    assert found.recommended == {}
    assert any("no finite number" in note for note in found.notes)


def test_clearly_decided_arms_stop_early_and_the_time_goes_to_the_others() -> None:
    clock = PlayedClock()

    def widely(tree: dict[str, Any]) -> float:
        return 1000 * (2.0 if tree["checkpoint"]["keep"] == 5 else 1.0)

    watcher = Recording()
    found = measured(PlayedBench(clock, widely), clock, config(), watcher)
    pairs = {arm.name: arm.pairs for arm in found.arms if arm.name in PLANTED}
    assert pairs["faster"] < pairs["nothing"]
    assert watcher.contests[0] == AA


def test_the_baseline_against_itself_recommends_nothing() -> None:
    clock = PlayedClock()
    found = measured(PlayedBench(clock, lambda tree: 1000.0), clock, config())
    assert not found.recommended
    assert found.speedup is None
    assert found.noise[0] < 1 < found.noise[1]


def test_a_gain_that_another_one_hides_is_found_beside_it() -> None:
    """Where loading takes nine tenths of a step, what makes computing faster shows only once loading is fast."""
    clock = PlayedClock()

    def hidden(tree: dict[str, Any]) -> float:
        loading = 0.05 if tree["checkpoint"]["keep"] == 5 else 9.0
        computing = 0.5 if tree["scaling"]["max_failures"] == 7 else 1.0
        return 1000 / (loading + computing)

    found = measured(PlayedBench(clock, hidden, noise=0.1), clock, config())
    assert found.recommended == {**PLANTED["faster"], **PLANTED["slower"]}
    helping = next(each for each in found.beside if each.name == "slower")
    assert (helping.others, helping.question, helping.verdict) == (("faster",), "helps", "gain")
    assert helping.speedup == pytest.approx(1.05 / 0.55, rel=0.2)
    assert ("faster", ("slower",), "needed") in [(each.name, each.others, each.question) for each in found.beside]


def twice(tree: dict[str, Any]) -> float:
    return 2000.0 if tree["checkpoint"]["keep"] == 5 else 1000.0


def test_what_there_was_no_time_for_beside_others_is_told_with_the_reason() -> None:
    clock = PlayedClock()
    found = measured(PlayedBench(clock, twice), clock, config(90.0))
    untold = [each for each in found.beside if each.speedup is None]
    assert untold
    assert {(each.others, each.reason) for each in untold} == {(("faster",), "there was no time for it")}


def test_the_recommended_config_is_split_too_but_not_at_the_cost_of_its_memory() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, twice)
    found = measured(bench, clock, config())
    assert found.recommended_split == {"data": 0.7, "forward": 0.2, "backward": 0.1}
    clock = PlayedClock()
    bench = PlayedBench(clock, twice)
    bench.split_seconds = 30.0
    hurried = measured(bench, clock, config(140.0))
    assert hurried.recommended
    assert hurried.split
    assert not hurried.recommended_split
    assert hurried.peak_memory_ratio == 0.5


def test_of_two_that_do_the_same_one_is_left_out() -> None:
    clock = PlayedClock()

    def either(tree: dict[str, Any]) -> float:
        return 2000.0 if tree["checkpoint"]["keep"] == 5 or tree["scaling"]["max_failures"] == 7 else 1000.0

    found = measured(PlayedBench(clock, either), clock, config())
    assert len(found.recommended) == 1


def test_a_technique_that_fails_is_told_with_its_reason_and_the_rest_goes_on() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed)
    bench.failing = lambda job: "out of memory" if any('"keep":5' in part.config_json for part in job.configs) else ""
    found = measured(bench, clock, config())
    failing = next(arm for arm in found.arms if arm.name == "faster")
    assert failing.verdict == "not applicable"
    assert "out of memory" in failing.reason
    assert next(arm for arm in found.arms if arm.name == "slower").verdict == "harm"


def test_what_could_not_be_applied_says_so_in_its_row_and_what_the_baseline_tells_does_not() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed)
    bench.warning = lambda tree: ["of both", *(["it was not applied"] if tree["checkpoint"]["keep"] == 5 else [])]
    found = measured(bench, clock, config())
    reasons = {arm.name: arm.reason for arm in found.arms if arm.name in PLANTED}
    assert "it was not applied" in reasons.pop("faster")
    assert not any("it was not applied" in reason or "of both" in reason for reason in reasons.values())
    faster = next(arm for arm in found.arms if arm.name == "faster")
    assert "it was not applied" in explanation(faster, found)
    assert faster.to_json()["build_seconds"] == 0.1
    assert next(arm for arm in found.arms if arm.name == "compile").to_json()["build_seconds"] is None


@pytest.mark.parametrize("kind", ["look", "train", "duel"])
def test_a_baseline_that_cannot_be_trained_ends_the_tune_up(kind: str) -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed)

    def fails(job: Job) -> str:
        return "the user's own mistake" if job.kind == kind else ""

    bench.failing = fails
    with pytest.raises(RunFailed, match=r"the baseline.*the user's own mistake"):
        measured(bench, clock, config())


@pytest.mark.parametrize("began", [0.0, -700.0])
def test_what_comes_first_may_take_the_whole_budget_and_not_for_ever(began: float) -> None:
    clock = PlayedClock()
    bench, limits = PlayedBench(clock, speed, accuracy), {}

    def noted(job: Job) -> str:
        limits.setdefault(job.kind, job.limit_seconds)
        return ""

    bench.failing = noted
    Measuring(config(), bench, Clock(600.0, began, clock), Recording()).run()
    assert limits["look"] == limits["split"] == (600.0 if began == 0.0 else 150.0)


@pytest.mark.parametrize("budget", [30.0, 100.0, 300.0])
def test_it_ends_in_time(budget: float) -> None:
    clock = PlayedClock()
    measured(PlayedBench(clock, speed, accuracy), clock, config(budget))
    assert clock.now < budget + DUEL_SECONDS


def test_with_little_time_each_technique_is_measured_all_the_same() -> None:
    clock = PlayedClock()

    def widely(tree: dict[str, Any]) -> float:
        return 1000 * (1.5 if tree["checkpoint"]["keep"] == 5 else 1.0)

    found = measured(PlayedBench(clock, widely, accuracy), clock, config(60.0))
    pairs = {arm.name: arm.pairs for arm in found.arms if arm.name in PLANTED}
    assert all(each >= PAIRS_OF_A_DUEL for each in pairs.values()), pairs
    assert found.recommended == PLANTED["faster"]


class QuickBench(PlayedBench):
    """Trains in the time that the steps take."""

    def _train(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self.training_seconds = 9000.0 / self._speed(configs[0])
        return super()._train(configs, job)


def thrice_and_more(tree: dict[str, Any]) -> float:
    """Three times as fast with a technique that changes what is computed, and more with others."""
    factor = 3.0 if tree["checkpoint"]["keep"] == 5 else 1.0
    factor *= 1.3 if tree["trainer"]["memory_format"] == "channels_last" else 1.0
    factor *= 1.4 if tree["trainer"]["precision"] == "bf16-mixed" else 1.0
    return 1000 * factor


def hurried(faster: Speed) -> Findings:
    """What is found in 120 s, most of which is kept back for trainings: the last three techniques have to wait."""
    clock, watcher = PlayedClock(), Recording()
    bench = QuickBench(clock, faster, accuracy)
    bench.facts = replace(FACTS, has_convolutions=True, is_sliced=False, train_samples=1000)
    found = measured(bench, clock, config(120.0), watcher)
    assert clock.now < 120
    assert watcher.contests.index("channels-last") > watcher.contests.index("batch-x2")
    return found


def test_what_the_trainings_leave_is_used_for_what_there_was_no_time_for() -> None:
    """What is recommended trains in a third of the time that was kept back for it."""
    found = hurried(thrice_and_more)
    arms = {arm.name: arm for arm in found.arms}
    assert arms["channels-last"].verdict == "gain"
    assert found.recommended == {**PLANTED["faster"], "trainer.memory_format": "channels_last"}
    assert found.speedup == pytest.approx(3.9, rel=0.1)
    assert found.quality.verdict == "equivalent"  # of `faster`: the other computes the same
    assert arms["bf16"].gains_unmeasured  # no time is left to train with it, and it is not recommended
    assert arms["accumulation-2"].verdict == "none"
    assert not any("want of time" in note for note in found.notes)


def test_what_is_measured_late_may_be_all_that_is_left() -> None:
    def spoiling(tree: dict[str, Any]) -> float:
        factor = 3.0 if tree["optimizer"]["weight_decay"] == 0.5 else 1.0
        return 1000 * factor * (1.3 if tree["trainer"]["memory_format"] == "channels_last" else 1.0)

    found = hurried(spoiling)
    assert next(arm.quality.verdict for arm in found.arms if arm.name == "spoils") == "worse"
    assert found.recommended == {"trainer.memory_format": "channels_last"}
    assert found.speedup == pytest.approx(1.3, rel=0.1)
    assert found.quality.verdict == "same"


def test_what_was_not_tried_beside_others_is_tried_when_the_trainings_leave_time() -> None:
    """And is told once, with what came of it."""
    clock, watcher = PlayedClock(), Recording()
    bench = QuickBench(
        clock, lambda tree: thrice_and_more(tree) * (1.1 if tree["data"]["num_workers"] else 1), accuracy
    )
    bench.facts = replace(FACTS, has_convolutions=True, is_sliced=False, train_samples=1000)
    found = measured(bench, clock, config(300.0), watcher)
    (met,) = (each for each in found.beside if each.name == "prefetch-4")
    assert met.speedup == pytest.approx(1.0, abs=0.05)
    assert next(arm.verdict for arm in found.arms if arm.name == "prefetch-4") == "none"


def test_what_was_not_asked_whether_it_is_needed_is_asked_when_there_is_time() -> None:
    """Of what computes the same: one whose gain another takes over is left out."""

    def taken_over(tree: dict[str, Any]) -> float:
        is_faster = tree["checkpoint"]["keep"] == 5
        is_channels_last = tree["trainer"]["memory_format"] == "channels_last"
        return 3000.0 if is_faster else 1300.0 if is_channels_last else 1000.0

    clock, watcher = PlayedClock(), Recording()
    bench = QuickBench(clock, taken_over, accuracy)
    bench.facts = replace(FACTS, has_convolutions=True, is_sliced=False, train_samples=1000)
    found = measured(bench, clock, config(150.0), watcher)
    assert next(arm.verdict for arm in found.arms if arm.name == "channels-last") == "gain"
    assert found.recommended == PLANTED["faster"]
    asked = [each for each in found.beside if (each.name, each.question) == ("channels-last", "needed")]
    assert [each.verdict for each in asked] == ["none"]


def test_the_quality_is_told_of_what_is_recommended() -> None:
    """What was trained stays, also where it turns out in what time is left that another takes its gain over."""

    def taken_over(tree: dict[str, Any]) -> float:
        is_channels_last = tree["trainer"]["memory_format"] == "channels_last"
        return 4500.0 if is_channels_last else 3000.0 if tree["checkpoint"]["keep"] == 5 else 1000.0

    clock = PlayedClock()
    bench = QuickBench(clock, taken_over, accuracy)
    bench.facts = replace(FACTS, has_convolutions=True, is_sliced=False, train_samples=1000)
    found = measured(bench, clock, config(180.0))
    asked = {each.name: each.verdict for each in found.beside if each.question == "needed"}
    assert asked == {"channels-last": "gain", "faster": "not applicable"}
    assert found.recommended == {**PLANTED["faster"], "trainer.memory_format": "channels_last"}
    assert found.quality.verdict == "equivalent"


def test_what_gains_in_place_of_another_may_still_be_idle() -> None:
    """Loading in processes gains alone, and takes time from what is faster still."""

    def contending(tree: dict[str, Any]) -> float:
        gains = {0: 2.0, 1: 1.6, 2: 1.8} if tree["checkpoint"]["keep"] == 5 else {0: 1.0, 1: 1.3, 2: 1.2}
        return 1000 * gains.get(tree["data"]["num_workers"], 1.0)

    clock = PlayedClock()
    bench = PlayedBench(clock, contending, accuracy)
    bench.facts = replace(FACTS, is_sliced=False, train_samples=100)
    found = measured(bench, clock, config(1500.0))
    assert any((each.name, each.question) == ("loader-2", "instead") for each in found.beside)
    assert found.recommended == PLANTED["faster"]


def test_what_a_spoiling_technique_took_over_is_tried_again_without_it() -> None:
    def hiding(tree: dict[str, Any]) -> float:
        is_channels_last = tree["trainer"]["memory_format"] == "channels_last"
        return 1500.0 if tree["optimizer"]["weight_decay"] == 0.5 else 1300.0 if is_channels_last else 1000.0

    clock = PlayedClock()
    bench = PlayedBench(clock, hiding, accuracy)
    bench.facts = replace(FACTS, has_convolutions=True)
    found = measured(bench, clock, config(1500.0))
    assert any((each.name, each.others) == ("channels-last", ("spoils",)) for each in found.beside)
    assert found.recommended == {"trainer.memory_format": "channels_last"}


def test_time_is_kept_for_all_together_when_duels_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(played_bench, "DUEL_SECONDS", 40.0)
    clock = PlayedClock()
    bench = PlayedBench(clock, lambda tree: 1500.0 if tree["data"]["cache"] == "memory" else 1000.0, accuracy)
    bench.training_seconds = 50.0
    bench.facts = replace(FACTS, has_convolutions=True, is_sliced=False, train_samples=1000)
    found = measured(bench, clock, config())
    assert found.recommended == {"data.cache": "memory", "data.num_workers": 0}
    assert found.speedup == pytest.approx(1.5, rel=0.05)


def test_without_time_for_the_quality_only_what_computes_the_same_is_recommended() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    found = measured(bench, clock, config(40.0))
    assert not set(found.recommended) & set(PLANTED["spoils"])


def test_what_is_predicted_not_to_fit_is_not_tried() -> None:
    clock = PlayedClock()
    tuned = config().with_overrides({"tuneup.device_memory_gib": 1.0})
    found = {arm.name: arm for arm in measured(PlayedBench(clock, speed, accuracy), clock, tuned).arms}
    assert found["spoils"].verdict == "not applicable"
    assert found["spoils"].reason == "predicted_oom: it is predicted to take 2 GiB of the device's 1"
    assert found["slower"].verdict == "harm"  # nothing could be predicted for it
    assert found["faster"].verdict == "gain"


def test_without_a_limit_all_are_tried_and_predicted_memory_stands_beside_measured() -> None:
    clock = PlayedClock()
    found = {arm.name: arm for arm in measured(PlayedBench(clock, speed, accuracy), clock, config()).arms}
    assert (found["faster"].predicted_peak_memory_bytes, found["faster"].peak_memory_bytes) == (2**21, 2**20)
    assert (found["slower"].predicted_peak_memory_bytes, found["slower"].peak_memory_bytes) == (None, 2**21)
    assert found["spoils"].speedup is not None


def test_with_little_time_the_memory_of_all_is_predicted() -> None:
    """Where not all of it can be measured."""
    clock = PlayedClock()
    found = measured(PlayedBench(clock, speed, accuracy), clock, config(160.0))
    arms = {arm.name: arm for arm in found.arms if arm.name in PLANTED}
    assert found.peak_memory_ratio == arms["faster"].memory_ratio == 0.5  # measured
    assert arms["nothing"].is_memory_predicted
    assert PREDICTED in found.notes
    assert [name for name, arm in arms.items() if arm.memory_ratio is None] == ["slower"]  # of which it cannot be said
    assert clock.now < 160


def test_the_memory_of_one_config_is_measured_once() -> None:
    """A technique that is all that is recommended."""
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    found = measured(bench, clock, config())
    assert found.recommended == PLANTED["faster"]
    known = [arm.name for arm in found.arms if arm.peak_memory_ratio is not None]
    assert "faster" in known
    assert bench.done["memory"] == 1 + len(known)  # and the baseline
    assert PREDICTED not in found.notes


def test_a_prediction_that_fails_takes_nothing_away() -> None:
    clock = PlayedClock()
    bench = PlayedBench(clock, speed, accuracy)
    bench.failing = lambda job: "it cannot be traced" if job.kind == "predict" else ""
    found = measured(bench, clock, config().with_overrides({"tuneup.device_memory_gib": 1.0}))
    assert next(arm for arm in found.arms if arm.name == "spoils").speedup is not None
    assert any("it cannot be traced" in note for note in found.notes)


def test_what_has_an_effect_beside_others_alone_is_tried_beside_them() -> None:
    """More batches ahead mean nothing without loader processes, and count once these are chosen."""
    clock = PlayedClock()

    def fed(tree: dict[str, Any]) -> float:
        if tree["data"]["num_workers"] == 0:
            return 1000.0
        return 2000.0 if tree["data"]["prefetch_factor"] == 8 else 1500.0

    bench = PlayedBench(clock, fed)
    bench.facts = replace(FACTS, is_sliced=False)
    found = measured(bench, clock, config())
    arm = next(arm for arm in found.arms if arm.name == "prefetch-8")
    assert arm.verdict == "gain"
    assert arm.speedup == pytest.approx(2000 / 1500, rel=0.05)
    assert "beside loader-" in arm.reason
    assert found.recommended["data.prefetch_factor"] == 8


@pytest.mark.parametrize(("seconds", "chosen"), [(0.4, 64), (0.49, 32)])
def test_the_knee_of_the_batch_is_looked_for_where_loading_is_fast_already(seconds: float, chosen: int) -> None:
    """While loading takes nine tenths of a step, batches of 32 and 64 are as good as the same. Then 64 is a quarter
    faster, or two hundredths, which are not worth it."""
    clock = PlayedClock()

    def fed(tree: dict[str, Any]) -> float:
        loading = 0.0 if tree["checkpoint"]["keep"] == 5 else 9.0
        return 1000 / (loading + {16: 1.0, 32: 0.5}.get(tree["data"]["global_batch_size"], seconds))

    bench = PlayedBench(clock, fed, noise=0.005)
    bench.facts = replace(FACTS, train_samples=4000)
    skipped = ["compile", "batch-x8", "batch-x16", "batch-x32"]
    section = {"arms": {"faster": PLANTED["faster"]}, "budget_seconds": 2000.0, "skip": skipped}
    found = measured(bench, clock, config(tuneup=section))
    assert found.recommended["data.global_batch_size"] == chosen
    instead = next(each for each in found.beside if each.question == "instead")
    assert (instead.name, instead.others, instead.verdict) == ("batch-x4", ("faster",), "gain")
    assert instead.speedup == pytest.approx(0.5 / seconds, rel=0.03)
    told = {arm.name: explanation(arm, found) for arm in found.arms}
    left = "batch-x2" if chosen == 64 else "batch-x4"
    assert "sets the same" in told[left]


def test_a_misspelt_metric_is_told_with_those_that_there_are() -> None:
    clock = PlayedClock()
    section = {"tuneup": {**config().tuneup.model_dump(), "metric": "val/accurcy"}}
    with pytest.raises(RunFailed, match=r"does not report val/accurcy: set tuneup\.metric to one of val/accuracy"):
        measured(PlayedBench(clock, speed, accuracy), clock, config().with_overrides(section))


def test_a_gain_that_is_gone_in_the_end_is_told() -> None:
    clock, trained = PlayedClock(), []

    def gone_after_training(tree: dict[str, Any]) -> float:
        return 1000.0 * (1.05 if tree["checkpoint"]["keep"] == 5 and not trained else 1.0)

    def noted(tree: dict[str, Any]) -> float:
        trained.extend([tree] if tree["checkpoint"]["keep"] == 5 else [])
        return 0.95

    found = measured(PlayedBench(clock, gone_after_training, noted), clock, config())
    assert found.recommended == PLANTED["faster"]
    assert any(note.startswith("all together show no gain, 1.0") for note in found.notes)
    clock = PlayedClock()
    found = measured(PlayedBench(clock, speed, accuracy), clock, config())
    assert not any("show no gain" in note for note in found.notes)
