"""Techniques beside others: hidden gains, gains that others take over, and the use of the time that is left."""

from dataclasses import replace
from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import CriticalBatch
from paceline.batch_scaling.earlier_study import EarlierStudy
from paceline.bench.jobs import Job
from paceline.tuneups.explanations import explanation
from support.batch_scaling.findings import findings
from support.tuneup.simulated_bench import (
    FACTS,
    PLANTED,
    SimulatedBench,
    Speed,
    Tuned,
    is_set,
    planted_config,
    tuned,
)

LAST = {"trainer.memory_format": "channels_last"}
CONVOLUTIONS = replace(FACTS, has_convolutions=True)
LOADING = replace(FACTS, has_convolutions=True, is_sliced=False, train_samples=1000)


def is_last(tree: dict[str, Any]) -> bool:
    return bool(tree["trainer"]["memory_format"] == "channels_last")


def twice(tree: dict[str, Any]) -> float:
    return 2000.0 if is_set(tree, "faster") else 1000.0


@pytest.mark.parametrize(
    ("critical", "recommended"), [(None, 128), (1000.0, 128), (32.0, 32), (8.0, None), (3.0, None)]
)
def test_a_scale_study_says_how_large_a_batch_pays(critical: float | None, recommended: int | None) -> None:
    """By throughput alone, the largest batch is the fastest."""
    config = planted_config().with_overrides({"data.global_batch_size": 8, "optimizer.lr_scaling": "none"})
    study = None
    if critical is not None:
        measured = CriticalBatch(critical, critical, critical, ((0, critical),))
        study = EarlierStudy("id", replace(findings(), own_batch_size=8, critical=measured, branches=()))
    done = tuned(
        lambda tree: 1000.0 * (tree["data"]["global_batch_size"] / 8) ** 0.5,
        lambda tree: 0.95,
        config,
        facts=replace(FACTS, train_samples=128 * 8),
        scale_study=study,
    )
    assert done.findings.recommended.get("data.global_batch_size") == recommended
    assert ("scale-study" in done.notes) == (critical is not None)


def test_a_gain_that_another_one_hides_is_found_beside_it() -> None:
    """Where loading takes nearly all of a step, faster computing shows only once loading is fast."""

    def hidden(tree: dict[str, Any]) -> float:
        return 1000 / ((0.05 if is_set(tree, "faster") else 99.0) + (0.5 if is_set(tree, "slower") else 1.0))

    done = tuned(hidden, lambda tree: 0.95)
    assert done.findings.recommended == {**PLANTED["faster"], **PLANTED["slower"]}
    helping = done.met("slower")[0]
    assert (helping.others, helping.question, helping.seen) == (("faster",), "helps", "faster")
    assert helping.speedup == pytest.approx(1.05 / 0.55, rel=0.05)
    assert done.met("faster", "needed")[0].others == ("slower",)


def test_of_two_that_do_the_same_one_is_left_out() -> None:
    done = tuned(lambda tree: 2000.0 if is_set(tree, "faster") or is_set(tree, "slower") else 1000.0)
    assert len(done.findings.recommended) == 1


def test_without_time_to_try_it_beside_others_it_is_reported_so() -> None:
    untried = [each for each in tuned(twice, config=planted_config(90.0)).findings.beside if each.speedup is None]
    assert untried
    assert {each.seen for each in untried} == {"not measured"}


def test_the_recommended_config_is_split_but_not_at_the_cost_of_its_memory() -> None:
    hurried = tuned(twice, config=planted_config(300.0), split_seconds=90.0).findings
    assert hurried.recommended
    assert hurried.split
    assert not hurried.recommended_split
    assert hurried.peak_memory_ratio == 0.5


def test_what_has_an_effect_only_beside_others_is_tried_beside_them() -> None:
    """Prefetching means nothing without loader processes, and counts once these are chosen."""

    def fed(tree: dict[str, Any]) -> float:
        if tree["data"]["num_workers"] == 0:
            return 1000.0
        return 2000.0 if tree["data"]["prefetch_factor"] == 8 else 1500.0

    done = tuned(fed, facts=replace(FACTS, is_sliced=False))
    assert done.technique("prefetch-8").verdict == "gain"
    assert done.technique("prefetch-8").speedup == pytest.approx(2000 / 1500, rel=0.05)
    assert done.findings.recommended["data.prefetch_factor"] == 8


@pytest.mark.parametrize(("seconds", "chosen"), [(0.4, 64), (0.49, 32)])
def test_the_knee_of_the_batch_is_looked_for_where_loading_is_fast_already(seconds: float, chosen: int) -> None:
    """While loading takes nine tenths of a step, batches of 32 and 64 are as good as the same. Then 64 is a quarter
    faster, or two hundredths, which are not worth it."""

    def fed(tree: dict[str, Any]) -> float:
        loading = 0.0 if is_set(tree, "faster") else 9.0
        return 1000 / (loading + {16: 1.0, 32: 0.5}.get(tree["data"]["global_batch_size"], seconds))

    skipped = ["compile", "batch-x8", "batch-x16", "batch-x32"]
    section = {"techniques": {"faster": PLANTED["faster"]}, "budget_seconds": 2000.0, "skip": skipped}
    config = planted_config(tuneup=section)
    done = tuned(fed, lambda tree: 0.95, config, noise=0.005, facts=replace(FACTS, train_samples=4000))
    assert done.findings.recommended["data.global_batch_size"] == chosen
    instead = next(each for each in done.findings.beside if each.question == "instead")
    assert (instead.name, instead.others, instead.seen) == ("batch-x4", ("faster",), "faster")
    assert instead.speedup == pytest.approx(0.5 / seconds, rel=0.03)
    left, kept = ("batch-x2", "batch-x4") if chosen == 64 else ("batch-x4", "batch-x2")
    assert kept in explanation(done.technique(left), done.findings)


@pytest.mark.parametrize(("gain", "chosen"), [(1.25, 128), (1.01, 64)])
@pytest.mark.parametrize("seconds", [0.495, 0.525])
@pytest.mark.parametrize("hides_batches", [False, True])
def test_a_larger_batch_that_is_no_faster_is_taken_where_another_technique_gains_beside_it(
    gain: float, chosen: int, seconds: float, hides_batches: bool
) -> None:
    """bf16 gains with the largest batch only, which alone is as fast as a smaller one, or slightly slower. Slow loading
    may hide that a batch of 64 is faster than one of 32, so that it is taken beside fast loading first."""

    def computed(tree: dict[str, Any]) -> float:
        size = tree["data"]["global_batch_size"]
        bf16 = (gain if size == 128 else 0.95) if tree["trainer"]["precision"] == "bf16-mixed" else 1.0
        compute = {16: 1.0, 32: 0.8, 64: 0.5}.get(size, seconds) / bf16
        return 1000 / (compute + (0.0 if is_set(tree, "faster") else 20.0 if hides_batches else 2.0))

    section = {"techniques": {"faster": PLANTED["faster"]}, "budget_seconds": 2000.0}
    config = planted_config(tuneup={**section, "skip": ["compile", "batch-x16", "batch-x32"]})
    done = tuned(computed, lambda tree: 0.95, config, noise=0.005, facts=replace(FACTS, train_samples=4000))
    assert done.findings.recommended["data.global_batch_size"] == chosen
    assert done.findings.recommended.get("trainer.precision") == ("bf16-mixed" if chosen == 128 else None)
    assert ("faster", "batch-x8") in [each.others for each in done.met("bf16", "helps")]
    asked = [name for name in done.listener.screened_names if name == "batch-x8 in place of batch-x4, beside faster"]
    assert len(asked) == 1, "nothing has changed in between"


def test_a_batch_of_ones_own_takes_the_place_of_a_known_one() -> None:
    """Together they would scale the learning rate twice."""
    section = {"techniques": {"mine": {"data.global_batch_size": 32, "optimizer.lr": 0.02}}, "budget_seconds": 900.0}
    config = planted_config(tuneup={**section, "only": ["mine", "batch-x2"]})
    facts = replace(FACTS, train_samples=4000)
    done = tuned(lambda tree: 1000.0 + 20 * tree["data"]["global_batch_size"], lambda tree: 0.95, config, facts=facts)
    both = [each for each in done.findings.beside if {"mine", "batch-x2"} <= {each.name, *each.others}]
    assert done.technique("mine").verdict == "gain"
    assert not [each for each in both if each.question != "instead"]
    assert len({"optimizer.lr", "optimizer.lr_scaling"} & {*done.findings.recommended}) == 1


def test_a_larger_batch_that_is_much_slower_is_not_tried_with_others() -> None:
    def computed(tree: dict[str, Any]) -> float:
        compute = {16: 1.0, 32: 0.8, 64: 0.5}.get(tree["data"]["global_batch_size"], 0.65)
        return 1000 / (compute + (0.0 if is_set(tree, "faster") else 20.0))

    section = {"techniques": {"faster": PLANTED["faster"]}, "budget_seconds": 2000.0}
    config = planted_config(tuneup={**section, "skip": ["compile", "batch-x16", "batch-x32"]})
    done = tuned(computed, lambda tree: 0.95, config, noise=0.005, facts=replace(FACTS, train_samples=4000))
    assert done.findings.recommended["data.global_batch_size"] == 64
    assert done.met("batch-x8", "instead")
    assert ("faster", "batch-x8") not in [each.others for each in done.met("bf16", "helps")]


@pytest.mark.parametrize(("fastest", "measured"), [(1, [1, 2]), (4, [1, 2, 4, 8]), (16, [1, 2, 4, 8, 16])])
def test_loader_processes_are_doubled_as_long_as_that_helps(fastest: int, measured: list[int]) -> None:
    def fed(tree: dict[str, Any]) -> float:
        return 1000.0 * 1.3 ** min(tree["data"]["num_workers"], fastest) ** 0.5

    section = {"only": [f"loader-{number}" for number in (1, 2, 4, 8, 16, 32)], "budget_seconds": 600.0}
    facts = replace(FACTS, is_sliced=False, cores=8)
    done = tuned(fed, config=planted_config(tuneup=section), facts=facts, noise=0.005)
    assert [
        int(each.name[7:]) for each in done.findings.techniques if each.name[:6] == "loader" and each.pairs
    ] == measured
    assert done.findings.recommended == {"data.num_workers": fastest, "data.cache": "none"}


def test_a_custom_technique_may_have_the_name_of_a_known_one_and_set_something_else() -> None:
    section = {
        "techniques": {"loader-4": {"optimizer.lr": 0.05}},
        "only": ["loader-1", "loader-4"],
        "budget_seconds": 300.0,
    }
    done = tuned(lambda tree: 1000.0, config=planted_config(tuneup=section), facts=replace(FACTS, is_sliced=False))
    assert done.technique("loader-4").pairs > 0


@pytest.mark.parametrize("own", [0, 2])
def test_the_search_begins_beside_the_loader_processes_that_there_are(own: int) -> None:
    section = {"only": ["loader-4", "loader-8"], "budget_seconds": 300.0}
    config = planted_config(tuneup=section).with_overrides({"data.num_workers": own})
    facts = replace(FACTS, is_sliced=False, cores=8)
    done = tuned(lambda tree: 1000.0 + tree["data"]["num_workers"], config=config, facts=facts, noise=0.002)
    assert [each.name for each in done.findings.techniques if each.pairs] == ["loader-4"]
    assert not [name for name in done.listener.screened_names if "loader-8" in name]


def test_what_gains_in_place_of_another_may_still_be_idle() -> None:
    """Loading in processes gains alone, and takes time from what is faster still."""

    def contending(tree: dict[str, Any]) -> float:
        gains = {0: 2.0, 1: 1.6, 2: 1.8} if is_set(tree, "faster") else {0: 1.0, 1: 1.3, 2: 1.2}
        return 1000 * gains.get(tree["data"]["num_workers"], 1.0)

    done = tuned(contending, config=planted_config(1500.0), facts=replace(FACTS, is_sliced=False, train_samples=100))
    assert done.met("loader-2", "instead")
    assert done.findings.recommended == PLANTED["faster"]


def test_what_a_spoiling_technique_took_over_is_tried_again_without_it() -> None:
    def hiding(tree: dict[str, Any]) -> float:
        return 1500.0 if is_set(tree, "spoils") else 1300.0 if is_last(tree) else 1000.0

    done = tuned(hiding, config=planted_config(1500.0), facts=CONVOLUTIONS)
    assert ("spoils",) in [each.others for each in done.met("channels-last")]
    assert done.findings.recommended == LAST


def test_time_is_kept_for_the_confirmation_when_benchmarks_are_long() -> None:
    def cached(tree: dict[str, Any]) -> float:
        return 1500.0 if tree["data"]["cache"] == "memory" else 1000.0

    done = tuned(cached, config=planted_config(1500.0), construction_seconds=15.0, training_seconds=50.0, facts=LOADING)
    assert done.findings.recommended == {"data.cache": "memory", "data.num_workers": 0}
    assert done.findings.speedup == pytest.approx(1.5, rel=0.05)


# What the trainings leave of the time that was kept back for them


class QuickBench(SimulatedBench):
    """Trains in the time that the steps take."""

    def _train(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
        self.training_seconds = 9000.0 / self.speed(configs[0])
        return super()._train(configs, job)


def quick(speed: Speed, budget_seconds: float) -> Tuned:
    """Most of the time is kept back for trainings and builds: the last techniques have to wait."""
    done = tuned(speed, config=planted_config(budget_seconds), kind=QuickBench, facts=LOADING)
    assert done.clock.now < budget_seconds
    return done


def thrice_and_more(tree: dict[str, Any]) -> float:
    """Three times as fast with a technique that changes the numerics, and more with others."""
    factor = 3.0 if is_set(tree, "faster") else 1.0
    factor *= 1.3 if is_last(tree) else 1.0
    return 1000 * factor * (1.4 if tree["trainer"]["precision"] == "bf16-mixed" else 1.0)


def test_the_time_that_is_left_is_used_for_what_had_to_wait() -> None:
    """The recommended config trains in a third of the time that was kept back for it."""
    done = quick(thrice_and_more, 290.0)
    names = done.listener.screened_names
    assert names.index("accumulation-2") > next(place for place, name in enumerate(names) if " beside " in name)
    assert done.findings.recommended == {**PLANTED["faster"], **LAST, "trainer.precision": "bf16-mixed"}
    assert done.findings.speedup == pytest.approx(3 * 1.3 * 1.4, rel=0.1)
    assert done.findings.quality.verdict == "equivalent"
    assert done.technique("channels-last").share == pytest.approx(1.3, rel=0.05)
    assert "no-time" not in done.notes


def test_what_another_takes_over_is_left_out() -> None:
    """Also after its training; the quality is that of the recommended config."""
    done = quick(lambda tree: 3000.0 if is_set(tree, "faster") else 1300.0 if is_last(tree) else 1000.0, 300.0)
    assert done.technique("channels-last").verdict == "gain"
    assert done.findings.recommended == PLANTED["faster"]
    done = quick(lambda tree: 4500.0 if is_last(tree) else 3000.0 if is_set(tree, "faster") else 1000.0, 300.0)
    assert done.technique("faster").verdict == "gain"
    assert (done.findings.recommended, done.findings.quality.verdict) == (LAST, "same")
