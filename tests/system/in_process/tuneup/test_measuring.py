"""The course of a tune-up, on a simulated bench with techniques whose effects are known."""

import json
import re
from math import inf, nan
from typing import Any

import pytest

from paceline.bench.jobs import Answer, Job, gave_up
from paceline.errors import RunFailed
from paceline.tuneups.confirmation import AA, SHARE_BUILDS, Share
from paceline.tuneups.explanations import explanation
from paceline.tuneups.screening import PAIRS
from paceline.tuneups.statistics.intervals import Interval
from paceline.tuneups.statistics.sequential_test import LOOKS
from support.bench.study import STUDY
from support.golden import Golden
from support.toys import toy_config
from support.tuneup.simulated_bench import (
    PLANTED,
    SimulatedBench,
    is_set,
    planted_accuracy,
    planted_config,
    planted_speed,
    tuned,
)

BENCHMARK_SECONDS = 7.0
RIGHT = {"nothing": "no gain", "faster": "gain", "slower": "regression", "spoils": "regression"}


def of_techniques(techniques: dict[str, Any]) -> Any:
    return planted_config(tuneup={"techniques": techniques, "budget_seconds": 600.0, "skip": ["compile"]})


@pytest.mark.parametrize("seed", range(2))
def test_planted_techniques_get_their_verdicts_and_the_good_one_is_recommended(seed: int) -> None:
    done = tuned(seed=seed, config=planted_config(seed=2**63 - 5 if seed else 0))  # the largest seed, too
    found = done.findings
    assert done.verdicts == RIGHT
    assert found.recommended == PLANTED["faster"]
    assert found.speedup == pytest.approx(1.05, rel=0.02)
    assert found.bottleneck.startswith("data:")
    assert found.split == found.recommended_split == {"data": 0.7, "forward": 0.2, "backward": 0.1}
    assert done.technique("fix-data-1").verdict == "no gain"
    assert [done.technique(name).peak_memory_ratio for name in PLANTED] == [1.0, 0.5, 1.0, 1.0]
    assert found.peak_memory_ratio == 0.5
    spoiling = done.technique("spoils")
    assert spoiling.quality.verdict == "worse"
    assert spoiling.quality.margin == pytest.approx(0.0095, rel=0.01)  # 1 % of the baseline's accuracy
    assert spoiling.quality.is_margin_relative
    assert spoiling.speedup == pytest.approx(1.2, rel=0.05)
    assert done.clock.now < 600


def test_a_loss_that_rises_is_worse_by_its_own_sign() -> None:
    done = tuned(accuracy=lambda tree: 1.1 - planted_accuracy(tree), metric="val/loss")
    quality = done.technique("spoils").quality
    assert done.findings.recommended == PLANTED["faster"]
    assert (quality.verdict, quality.metric) == ("worse", "val/loss")
    assert quality.difference == pytest.approx(-0.03, abs=0.003)
    assert quality.change is not None
    assert quality.change[0] == -quality.difference


def test_what_too_few_seeds_leave_open_says_how_many_would_decide() -> None:
    done = tuned(config=planted_config().with_overrides({"tuneup.margin": 0.0005}))  # a third of the noise
    quality = done.technique("faster").quality
    assert quality.verdict == "undecided"
    assert quality.seeds_needed is not None
    assert quality.seeds_needed > quality.seeds
    assert done.findings.recommended == {}


def test_a_metric_of_zero_has_no_margin_of_its_own() -> None:
    class Zero(SimulatedBench):
        def _train(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
            return {**super()._train(configs, job), "metrics": {"val/accuracy": 0.0}}

    assert "no-margin" in tuned(kind=Zero).notes
    done = tuned(kind=Zero, config=planted_config().with_overrides({"tuneup.margin": 0.01}))
    assert done.findings.quality.verdict == "equivalent"
    assert not done.findings.quality.is_margin_relative


def test_the_baseline_against_itself_recommends_nothing() -> None:
    done = tuned(lambda tree: 1000.0)
    assert (done.findings.recommended, done.findings.speedup) == ({}, None)
    assert done.listener.screened_names[0] == AA


def test_a_technique_may_be_called_all_together() -> None:
    done = tuned(config=of_techniques({"all together": PLANTED["slower"], "faster": PLANTED["faster"]}))
    assert done.technique("all together").verdict == "regression"
    assert done.findings.recommended == PLANTED["faster"]


# Quality


def test_a_training_that_takes_too_long_is_not_begun(golden: Golden) -> None:
    seconds = 36_000.0
    per_sample = seconds / 96 / toy_config().trainer.epochs
    done = tuned(training_seconds=seconds, seconds_per_sample=per_sample)
    assert done.bench.done["train"] == 0
    assert done.verdicts["faster"] == "gain"
    assert done.technique("faster").quality.verdict == "not measured"
    assert done.findings.recommended == {}  # nobody knows its quality
    assert done.clock.now < 600
    golden(done.notes["training-too-long"])


def test_a_training_that_turns_out_too_long_is_ended_in_time() -> None:
    done = tuned(training_seconds=36_000.0)  # evaluations, which the time of the steps does not include
    assert done.clock.now < 600 + BENCHMARK_SECONDS * 3
    assert "no-time-to-train" in done.notes


def test_a_training_that_failed_does_not_affect_the_next_one() -> None:
    techniques = {"spoils": PLANTED["spoils"], "other": {"optimizer.momentum": 0.3, "checkpoint.keep": 5}}

    def failing(job: Job) -> str:
        return "it broke" if job.name == "train" and '"weight_decay":0.5' in job.configs[0].config_json else ""

    done = tuned(config=of_techniques(techniques), failing=failing)
    assert done.findings.recommended == techniques["other"]
    assert [note.code for note in done.findings.notes if "it broke" in note] == ["not-trained"] * 2  # type: ignore[attr-defined]


def clear_speed(tree: dict[str, Any]) -> float:
    return planted_speed(tree) * (1.3 if is_set(tree, "faster") else 1.0)


def test_a_training_that_diverges_with_one_of_its_seeds_is_worse() -> None:
    class Diverging(SimulatedBench):
        def do(self, job: Job) -> Answer:
            tree = json.loads(job.configs[0].config_json)
            if job.name == "train" and is_set(tree, "spoils") and tree["seed"] == planted_config().seed + 3:
                return Answer(problem="the loss is not finite", kind="diverged")
            return super().do(job)

    done = tuned(clear_speed, lambda tree: 0.95, kind=Diverging)
    assert done.technique("spoils").quality.verdict == "worse"
    assert done.verdicts == RIGHT
    assert done.findings.recommended == PLANTED["faster"]


def test_a_training_that_fails_with_one_of_its_seeds_is_not_measured() -> None:
    def failing(job: Job) -> str:
        tree = json.loads(job.configs[0].config_json)
        return "it broke" if job.name == "train" and is_set(tree, "spoils") and tree["seed"] % 5 == 3 else ""

    done = tuned(clear_speed, lambda tree: 0.95, failing=failing)
    assert done.technique("spoils").quality.verdict == "not measured"
    assert done.findings.recommended == PLANTED["faster"]


def test_what_was_removed_for_its_quality_does_not_come_back_for_ever() -> None:
    """Two that set the same field are each fine alone, and neither is beside a third."""
    techniques = {
        "flash": {"optimizer.weight_decay": 0.25},
        "sdpa": {"optimizer.weight_decay": 0.125},
        "third": {"optimizer.momentum": 0.3},
    }

    def decays(tree: dict[str, Any]) -> bool:
        return tree["optimizer"]["weight_decay"] in (0.25, 0.125)

    def speed(tree: dict[str, Any]) -> float:
        return 1000.0 * (1.3 if decays(tree) else 1.0) * (1.2 if tree["optimizer"]["momentum"] == 0.3 else 1.0)

    def accuracy(tree: dict[str, Any]) -> float:
        return 0.95 - 0.0095 * (decays(tree) and tree["optimizer"]["momentum"] == 0.3)

    done = tuned(speed, accuracy, of_techniques(techniques))
    assert len(done.findings.recommended) == 1


@pytest.mark.parametrize("value", [nan, -inf])
def test_without_a_finite_metric_the_speeds_are_still_measured(value: float) -> None:
    done = tuned(accuracy=lambda tree: value)
    assert done.verdicts["slower"] == "regression"
    assert done.findings.recommended == {}
    assert "metric-not-finite" in done.notes


def test_an_unknown_metric_is_an_error_with_the_known_ones(golden: Golden) -> None:
    with pytest.raises(RunFailed) as caught:
        tuned(config=planted_config().with_overrides({"tuneup.metric": "val/accurcy"}))
    assert (caught.value.code, caught.value.fields["doing"]) == ("baseline-failed", "train")
    golden(str(caught.value))


def test_what_a_spoiling_technique_kept_out_comes_back() -> None:
    milder = {"optimizer.weight_decay": 0.25}
    config = planted_config().with_overrides({"tuneup.techniques": {"spoils": PLANTED["spoils"], "milder": milder}})

    def speed(tree: dict[str, Any]) -> float:
        return planted_speed(tree) * (1.1 if tree["optimizer"]["weight_decay"] == 0.25 else 1.0)

    assert tuned(speed, config=config).findings.recommended == milder


def test_a_gain_that_is_not_confirmed_is_not_recommended() -> None:
    trained = []

    def gone_after_training(tree: dict[str, Any]) -> float:
        return 1000.0 * (1.05 if is_set(tree, "faster") and not trained else 1.0)

    def accuracy(tree: dict[str, Any]) -> float:
        trained.extend([tree] if is_set(tree, "faster") else [])
        return 0.95

    done = tuned(gone_after_training, accuracy)
    assert (done.findings.recommended, done.findings.speedup) == ({}, None)
    assert done.technique("faster").verdict == "no gain"
    assert "not-confirmed" in done.notes
    assert "not-confirmed" not in tuned().notes


TWO_GAINS = {"one": {"checkpoint.keep": 5}, "other": {"checkpoint.every_n_epochs": 7}}


def two_gains(tree: dict[str, Any]) -> float:
    return 1000.0 * 1.3 ** sum(_has(tree, name) for name in TWO_GAINS)


def _has(tree: dict[str, Any], name: str) -> bool:
    ((key, value),) = TWO_GAINS[name].items()
    return bool(tree["checkpoint"][key.partition(".")[2]] == value)


@pytest.mark.parametrize("works", [0, 2, 3])
def test_a_combination_that_fails_in_a_build_is_not_recommended(works: int) -> None:
    builds = []

    def failing(job: Job) -> str:
        trees = [json.loads(part.config_json) for part in job.configs]
        if job.name != "build" or not any(_has(tree, "one") and _has(tree, "other") for tree in trees):
            return ""
        builds.append(job)
        return "it broke" if len(builds) > works else ""

    done = tuned(two_gains, lambda tree: 0.95, of_techniques(TWO_GAINS), failing=failing)
    assert len(done.findings.recommended) == 1
    assert len(builds) > works


def test_a_gain_that_fails_in_a_later_build_is_not_recommended() -> None:
    builds = []

    def failing(job: Job) -> str:
        if job.name == "build" and any(_has(json.loads(part.config_json), "one") for part in job.configs):
            builds.append(job)
            return "it broke" if len(builds) > 3 else ""
        return ""

    def speed(tree: dict[str, Any]) -> float:
        return 9000.0 if _has(tree, "one") else 1000.0

    # so noisy that it is measured further after it was found to be faster
    config = of_techniques({"one": TWO_GAINS["one"]}).with_overrides({"tuneup.only": ["one"], "tuneup.skip": []})
    done = tuned(speed, config=config, failing=failing, between_builds=0.2)
    assert len(builds) > 3
    assert done.findings.recommended == {}
    assert done.technique("one").verdict == "not applicable"


def test_the_time_kept_to_cut_a_combination_back_narrows_its_interval() -> None:
    def speed(tree: dict[str, Any]) -> float:
        return 1000.0 * (2.0 if is_set(tree, "faster") else 1.0) * (1.3 if is_set(tree, "slower") else 1.0)

    done = tuned(speed, lambda tree: 0.95, planted_config(220.0), between_builds=0.01)
    low, high = done.findings.speedup_interval or (0.0, inf)
    assert (done.findings.builds, len(done.findings.recommended)) == (6, 2)
    assert 2.4 < low < 2.6 < high < 2.8
    assert done.clock.now <= 220


def test_a_share_of_too_few_builds_does_not_count_as_idle() -> None:
    few, many = (Share(Interval(1.3, 0.0, inf), builds) for builds in (1, SHARE_BUILDS))
    assert [each.adds_something for each in (few, many)] == [True, False]
    assert not Share(Interval(1.001, 0.998, 1.004), 3).adds_something


# Little time


@pytest.mark.parametrize("budget_seconds", [30.0, 120.0, 300.0, 400.0])
def test_with_little_time_it_ends_in_time_and_recommends_only_what_was_measured_together(budget_seconds: float) -> None:
    done = tuned(config=planted_config(budget_seconds))
    assert done.clock.now < budget_seconds + BENCHMARK_SECONDS * (budget_seconds < 100)
    if budget_seconds > 200:
        assert done.findings.recommended == PLANTED["faster"]
        assert done.findings.speedup is not None
        assert done.findings.peak_memory_ratio == 0.5


def test_techniques_without_time_are_listed() -> None:
    done = tuned(config=planted_config(10.0))
    assert done.findings.recommended == {}
    assert all(name in done.notes["no-time"] for name in PLANTED)
    done = tuned(config=planted_config(160.0))
    assert min(done.technique(name).pairs for name in PLANTED) >= PAIRS
    assert "no-time" not in done.notes


@pytest.mark.parametrize("budget_seconds", [20.0, 40.0])
def test_with_too_little_time_to_confirm_anything_the_techniques_are_screened(budget_seconds: float) -> None:
    done = tuned(config=planted_config(budget_seconds))
    assert sum(technique.pairs > 0 for technique in done.findings.techniques) > 3
    assert done.findings.recommended == {}
    assert done.bench.done["memory"] == 0, "there is nothing to compare the baseline's with"
    assert done.clock.now <= budget_seconds


def test_a_budget_that_decides_little_is_warned_of_before_the_screening() -> None:
    short = tuned(config=planted_config(60.0))
    warning = short.listener.warnings["short-budget"]
    assert "no-time" in short.notes
    (more,) = re.findall(r"by at least (\d+) s", warning)
    assert "short-budget" in tuned(config=planted_config(60.0 + float(more) / 2)).listener.warnings
    enough = tuned(config=planted_config(120.0))
    assert "short-budget" not in enough.listener.warnings
    assert "no-time" not in enough.notes


def test_what_compiles_is_screened_last_and_costs_the_others_no_time() -> None:
    class Compiling(SimulatedBench):
        def _benchmark(self, configs: list[dict[str, Any]], job: Job) -> dict[str, Any]:
            self.clock.now += 60.0 if configs[1]["trainer"]["compile"] != configs[0]["trainer"]["compile"] else 0.0
            return super()._benchmark(configs, job)

    compiled = {"compiled": {"trainer.compile": "default"}, **PLANTED}
    for budget_seconds in (160.0, 600.0):  # in the given order, and in a random one
        section = {"techniques": compiled, "budget_seconds": budget_seconds, "skip": ["compile"]}
        done = tuned(kind=Compiling, config=planted_config(tuneup=section))
        alone = [name for name in done.listener.screened_names if name in compiled]
        assert set(alone) >= set(PLANTED)
        assert "compiled" not in alone or alone.index("compiled") >= len(PLANTED)


@pytest.mark.parametrize(("began", "limit"), [(0.0, 600.0), (-700.0, 150.0)])
def test_the_first_jobs_may_take_the_whole_budget_but_not_for_ever(began: float, limit: float) -> None:
    limits: dict[str, float] = {}

    def noted(job: Job) -> str:
        limits.setdefault(job.name, job.limit_seconds)
        return ""

    tuned(failing=noted, began=began)
    assert limits["look"] == limits["split"] == limit


# Failures


def test_a_technique_that_fails_has_its_reason_and_the_others_continue() -> None:
    def failing(job: Job) -> str:
        return "out of memory" if any('"keep":5' in part.config_json for part in job.configs) else ""

    done = tuned(failing=failing)
    assert done.technique("faster").verdict == "not applicable"
    assert "out of memory" in done.technique("faster").reason
    assert done.verdicts["slower"] == "regression"


def test_a_warning_of_a_technique_is_in_its_row_and_one_of_the_baseline_is_not() -> None:
    done = tuned(warning=lambda tree: ["of both", *(["not applied"] if is_set(tree, "faster") else [])])
    assert [done.technique(name).warnings for name in PLANTED] == [(), ("not applied",), (), ()]
    assert "not applied" in explanation(done.technique("faster"), done.findings)
    assert done.technique("faster").build_seconds == 0.1
    assert done.technique("compile").build_seconds is None


@pytest.mark.parametrize(("kind", "doing"), [("look", "build"), ("train", "train"), ("benchmark", "measure")])
def test_a_baseline_that_fails_ends_the_tune_up(kind: str, doing: str, golden: Golden) -> None:
    with pytest.raises(RunFailed) as caught:
        tuned(failing=lambda job: "the user's own mistake" if job.name == kind else "")
    assert (caught.value.code, caught.value.fields) == ("baseline-failed", {"doing": doing})
    golden(str(caught.value))


# Memory


def test_what_is_predicted_not_to_fit_is_not_tried(golden: Golden) -> None:
    small = planted_config().with_overrides({"tuneup.device_memory_gib": 1.0})
    done = tuned(config=small)
    assert done.verdicts == {**RIGHT, "spoils": "not applicable"}  # for `slower` nothing could be predicted
    golden(done.technique("spoils").reason)
    done = tuned(config=small, failing=lambda job: "not traceable" if job.name == "predict" else "")
    assert done.verdicts == RIGHT
    assert "not traceable" in done.notes["memory-not-predicted"]


@pytest.mark.parametrize(("gib", "in_turn"), [(None, False), (0.0068, False), (0.0035, True)])
def test_what_does_not_fit_beside_the_baseline_is_measured_in_turn(gib: float | None, in_turn: bool) -> None:
    """Each takes 2 MiB, but `spoils`, which takes 2 GiB and is left out here."""
    section = {"techniques": {name: PLANTED[name] for name in ("nothing", "faster")}, "device_memory_gib": gib}
    done = tuned(config=planted_config(tuneup={**section, "budget_seconds": 600.0, "skip": ["compile"]}))
    assert done.technique("faster").verdict == "gain"
    assert done.findings.recommended == PLANTED["faster"]
    assert done.technique("faster").in_turn == done.technique("nothing").in_turn == in_turn


def test_what_runs_out_of_memory_beside_the_baseline_is_measured_in_turn() -> None:
    class Small(SimulatedBench):
        def do(self, job: Job) -> Answer:
            rules = [own for *_, own in job.options.get("comparisons", [])] or [job.options]
            is_both = job.name in ("benchmark", "build") and not all(each.get("in_turn") for each in rules)
            return Answer(problem="out of memory", kind="oom") if is_both else super().do(job)

    done = tuned(kind=Small)
    assert done.verdicts == RIGHT
    assert all(done.technique(name).in_turn for name in PLANTED)
    assert done.findings.recommended == PLANTED["faster"]


def test_techniques_with_too_few_builds_for_a_verdict_are_named_with_the_time_that_lacks() -> None:
    techniques = {f"near-{number}": {"parallel.timeout_seconds": 301.0 + number} for number in range(8)}

    def speed(tree: dict[str, Any]) -> float:
        return 1000.0 * (0.9 if tree["parallel"]["timeout_seconds"] >= 301.0 else 1.0)

    config = planted_config(tuneup={"techniques": techniques, "budget_seconds": 120.0, "only": list(techniques)})
    done = tuned(speed, config=config)
    begun = [each for each in done.findings.techniques if each.speedup is not None and each.builds < LOOKS[0]]
    assert begun
    assert all(each.name in done.notes["too-few-builds"] for each in begun)
    section = {"techniques": PLANTED, "budget_seconds": 600.0, "only": ["faster"]}
    assert "too-few-builds" not in tuned(config=planted_config(tuneup=section)).notes


class Slow(SimulatedBench):
    """One of the techniques takes all the time that it may, as by compiling."""

    def do(self, job: Job) -> Answer:
        if job.name == "benchmark" and is_set(json.loads(job.configs[1].config_json), "slower"):
            self.clock.now += job.limit_seconds
            return gave_up(job, STUDY)
        return super().do(job)


@pytest.mark.parametrize("budget", [90.0, 120.0, 150.0])
def test_a_slow_technique_leaves_the_time_for_confirming_the_others(budget: float) -> None:
    section = {"techniques": PLANTED, "budget_seconds": budget, "only": ["faster", "slower"]}
    done = tuned(kind=Slow, config=planted_config(tuneup=section))
    assert done.technique("faster").builds >= LOOKS[0]
    assert done.clock.now <= budget


def test_what_reaches_its_time_limit_is_not_tried_instead_of_not_applicable() -> None:
    done = tuned(kind=Slow)
    assert done.technique("slower").is_untried
    assert not done.technique("slower").is_decided
    assert "tuneup.budget_seconds" in done.technique("slower").reason
    assert "slower" in done.notes["no-time"]
    assert done.findings.recommended == PLANTED["faster"]


def test_a_fix_that_another_technique_covers_is_named_in_a_note() -> None:
    done = tuned(config=of_techniques({**PLANTED, "dropping": {"data.drop_last": True}}))
    assert all(name in done.notes["untried-fixes"] for name in ("fix-data-1", "dropping"))
    assert "untried-fixes" not in tuned().notes


def test_a_build_that_hangs_does_not_take_more_than_the_budget() -> None:
    class Hanging(SimulatedBench):
        def do(self, job: Job) -> Answer:
            if job.name != "build":
                return super().do(job)
            self.clock.now += job.limit_seconds
            return gave_up(job, STUDY)

    done = tuned(kind=Hanging)
    assert done.clock.now < 600 + 150 + 30  # a quarter of the budget is the patience
    assert done.findings.recommended == {}


def test_what_fails_in_a_build_alone_is_left_out_and_the_rest_is_confirmed() -> None:
    def failing(job: Job) -> str:
        is_slower = any('"max_failures":7' in part.config_json for part in job.configs)
        return "it broke" if job.name == "build" and is_slower else ""

    done = tuned(failing=failing)
    assert done.findings.recommended == PLANTED["faster"]
    assert done.technique("slower").verdict == "not applicable"
    assert "it broke" in done.technique("slower").reason
    assert "it broke" in done.notes["build-failed"]
    assert "slower" in done.notes["build-failed"]


def test_predicted_and_measured_memory_are_both_reported() -> None:
    done = tuned()
    memory = {
        n: (done.technique(n).predicted_peak_memory_bytes, done.technique(n).peak_memory_bytes)
        for n in ("faster", "slower")
    }
    assert memory == {"faster": (2**21, 2**20), "slower": (None, 2**21)}
    known = [technique.name for technique in done.findings.techniques if technique.peak_memory_ratio is not None]
    # of the baseline and of each technique once: the recommended config is that of `faster`
    assert done.bench.done["memory"] == 1 + len(known)
    assert "memory-predicted" not in done.notes


def test_with_time_for_one_process_all_are_predicted_and_none_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.tuneup.simulated_bench.ERRAND_SECONDS", 7.0)
    done = tuned(config=planted_config(100.0))
    assert (done.bench.done["predict"], done.bench.done["memory"]) == (1, 0)
    assert done.technique("nothing").predicted_memory_ratio == 1.0


def test_what_there_is_no_time_to_measure_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.tuneup.simulated_bench.ERRAND_SECONDS", 50.0)
    done = tuned(config=planted_config(500.0))
    assert done.findings.peak_memory_ratio == done.technique("faster").memory_ratio == 0.5  # measured
    assert any(technique.is_memory_predicted for technique in done.findings.techniques)
    assert "memory-predicted" in done.notes
