"""The course of a study over a simulated training: the trade-off holds exactly, and every answer is known."""

import json
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from types import MappingProxyType
from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import expected_efficiency
from paceline.batch_scaling.findings import ScaleFindings, StudyFailed
from paceline.batch_scaling.other_workers import worker_configs
from paceline.batch_scaling.plan import HALF_BRANCH, StudyPlan
from paceline.batch_scaling.preview import ScalePreview
from paceline.batch_scaling.speedup import EQUAL_LEVELS, LEVELS, LOOK_SHARES, looks, speedup_of
from paceline.batch_scaling.stored_findings import findings_json
from paceline.batch_scaling.study import ScaleStudy
from paceline.batch_scaling.target import target_of
from paceline.batch_scaling.texts import recommended_sizes, rows_of, summary_text
from paceline.bench.clock import Clock
from paceline.bench.jobs import NO_ROOM, Answer, Job
from paceline.cluster.listener import SilentListener
from paceline.config.batch_sizes import largest_sizes
from paceline.config.experiment import ExperimentConfig, validate
from paceline.errors import ConfigError
from support.refusals import refused

OWN, TRAIN = 32, 4000
HALVES = {"name": "synthetic", "global_batch_size": OWN, "micro_batch_size": OWN // 2}
"""Data of a config each of whose steps has two gradients."""
SHORT, LONG = 5, 40
"""Epochs: too few for branches from checkpoints, and enough."""


GROWS_AFTER = 25_000


class SimulatedBench:
    """Training whose loss is a power of the samples that it has used well.

    Args:
        critical: critical batch size of the trade-off.
        step_seconds: fixed seconds of a step, and seconds of a sample.
        linear_to: the largest batch at which the linear rule works; likewise `sqrt_to`.
        later_critical: critical batch size once `GROWS_AFTER` samples were used well, where it grows.
        verified_critical: the same in trainings to the target, where it is another than in branches.
        metric: name of the accuracy.
        exchange_seconds: of the exchange between very many workers.
        most_workers: that there is room for.
        finite_to: the largest batch whose losses are finite.
        scatter: standard deviations of the logarithm of the samples to a loss or the target: what trainings with one
            seed have in common, and what each has of its own.
        accident: number from which the scatter is drawn.
        fails_from: smallest batch size that does not fit.
        verified_to: largest batch size that does not diverge in a training to the target.
        breaks_at: smallest batch size that hardly learns, with any rule.
        disturbed: by batch size, how many times as long as usual its step takes when it is measured first.
        best_factor: factor by which the learning rate of the config's own batch is best scaled at any larger one; the
            efficiency falls with the distance from it. None: all rules that work are as good.
        explodes: whether the loss rises where a rule does not work.
        verified_efficiency: by batch size, in trainings to the target, where it does not follow from the trade-off.
        hesitates: value of the metric that a larger batch does not exceed in a training to the target before it has
            used a number of samples well, and that number.
        begins_after: samples, used well, until which the loss stays as high as it was, and then falls evenly.
        turn_scatter: standard deviation of the logarithm of the time of a step, where configs take turns.
    """

    def __init__(
        self,
        critical: float = 200.0,
        step_seconds: tuple[float, float] = (0.01, 1e-5),
        linear_to: int = 10**6,
        sqrt_to: int = 10**6,
        verified_critical: float | None = None,
        later_critical: float | None = None,
        metric: str = "val/accuracy",
        diverges: bool = False,
        exchange_seconds: float = 0.0,
        most_workers: int = 1,
        finite_to: int = 10**6,
        scatter: tuple[float, float] = (0.0, 0.0),
        accident: int = 0,
        fails_from: int = 10**6,
        verified_to: int = 10**6,
        breaks_at: int = 10**6,
        disturbed: Mapping[int, float] = MappingProxyType({}),
        best_factor: float | None = None,
        explodes: bool = False,
        verified_efficiency: Mapping[int, float] = MappingProxyType({}),
        hesitates: tuple[float, int] = (1.0, 0),
        begins_after: int = 0,
        turn_scatter: float = 0.0,
    ) -> None:
        self._critical, self._step_seconds = critical, step_seconds
        self._works_to = {"linear": linear_to, "sqrt": sqrt_to}
        self._breaks_at = breaks_at
        self._verified_critical = verified_critical or critical
        self._later_critical, self._verified_efficiency = later_critical, verified_efficiency
        self._metric, self._diverges, self._explodes = metric, diverges, explodes
        self._best_factor = best_factor
        self._finite_to, self._scatter, self._accident = finite_to, scatter, accident
        self._fails_from, self._verified_to = fails_from, verified_to
        self._exchange_seconds, self._most_workers = exchange_seconds, most_workers
        self._disturbed, self._hesitates, self._begins_after = dict(disturbed), hesitates, begins_after
        self._turn_scatter, self._turns = turn_scatter, Random(0)
        self.jobs: list[Job] = []

    def do(self, job: Job) -> Answer:
        """Answer a job at once."""
        self.jobs.append(job)
        configs = [json.loads(each.config_json) for each in job.configs]
        if job.name == "throughput" and workers_of(configs[0]) > self._most_workers:
            return Answer(problem="this machine has too few cores", kind=NO_ROOM)
        if max(map(largest_of, configs)) >= self._fails_from:
            return Answer(problem="it does not fit")
        if job.name == "throughput":
            factors = [math.exp(self._turn_scatter * self._turns.gauss()) if len(configs) > 1 else 1.0 for _ in configs]
            seconds = [self._sample_seconds(each) * factor for each, factor in zip(configs, factors, strict=True)]
            return Answer({"seconds_per_sample": [[each] * 3 for each in seconds]})
        return Answer(getattr(self, f"_{job.name}")(configs[0], job.options))

    def _look(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return FACTS

    def _sample_seconds(self, config: Mapping[str, Any]) -> float:
        size, workers = config["data"]["global_batch_size"], workers_of(config)
        step = self.step_seconds(size, workers) * self._disturbed.pop(size, 1.0)
        return step / size

    def step_seconds(self, size: int, workers: int) -> float:
        """Seconds of a step without accumulation."""
        fixed, sample = self._step_seconds
        return fixed + sample * size / workers + self._exchange_seconds * (workers - 1) / workers

    def _train_segment(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        segment = config["callbacks"][-1]["args"]
        if self._diverges:
            return {**EMPTY, "diverged": True}
        if "resume_from" in options:
            return self._branch(config)
        is_branch = segment.get("metric") == "val/loss"
        if not is_branch and largest_of(config) > self._verified_to:
            return {**EMPTY, "diverged": True}
        critical = self._critical if is_branch else self._verified_critical
        stages = config["data"]["batch_size_schedule"] or [
            {"samples": 0, "global_batch_size": config["data"]["global_batch_size"]}
        ]
        evaluations, samples, step, used = [], 0, 0, 0.0
        luck = self._luck(config["seed"], stages)
        while samples < config["trainer"]["epochs"] * TRAIN:
            size = [each["global_batch_size"] for each in stages if each["samples"] <= samples][-1]
            efficiency = self._efficiency(config, size, critical, used)
            if not is_branch:
                efficiency = self._verified_efficiency.get(size, efficiency)
            used += luck * size * efficiency
            samples, step = samples + size, step + 1
            if step % config["trainer"]["evaluate_every_n_steps"]:
                continue
            evaluations.append([samples, self._metrics(used, size)])
            if self._explodes and not self._works(config, size):
                evaluations[-1][1]["val/loss"] = float(samples)
            if not is_branch and size > OWN and used < self._hesitates[1]:
                metrics = evaluations[-1][1]
                metrics[self._metric] = min(metrics[self._metric], self._hesitates[0])
            value = evaluations[-1][1].get(segment.get("metric"))
            if value is not None and (value <= segment["target"] if is_branch else value >= segment["target"]):
                break
            if samples >= segment.get("until_samples", math.inf):
                break
            if any(samples >= due and value > loss for due, loss in segment.get("deadlines", ())):
                break
        last = evaluations[-1][0]
        return {
            **EMPTY,
            "evaluations": evaluations,
            "samples": last,
            "seconds": step * self._step_seconds[0] + last * self._step_seconds[1],
            "saved": [[each * OWN, f"step-{each}"] for each in segment.get("save_at_steps", ()) if each * OWN < last],
        }

    def _branch(self, config: Mapping[str, Any]) -> dict[str, Any]:
        stages = config["data"]["batch_size_schedule"]
        start, size = stages[1]["samples"], stages[1]["global_batch_size"]
        efficiency = self._efficiency(config, size, self._critical, start)
        every, step, samples = config["trainer"]["evaluate_every_n_steps"], start // OWN, start
        evaluations: list[Any] = []
        while not evaluations or evaluations[-1][0] < config["callbacks"][-1]["args"]["until_samples"]:
            step, samples = step + 1, samples + size
            if step % every == 0:
                evaluations.append([samples, self._metrics(start + (samples - start) * efficiency, size)])
        return {**EMPTY, "evaluations": evaluations, "samples": samples - start}

    def _luck(self, seed: int, stages: Any) -> float:
        """How much faster than expected a training comes to the target."""
        common, own = self._scatter
        of_seed, of_training = Random(f"{self._accident} {seed}"), Random(f"{self._accident} {seed} {stages}")
        return math.exp(common * of_seed.gauss() + own * of_training.gauss())

    def _metrics(self, used: float, size: int) -> dict[str, float]:
        found = metrics_after(used, self._metric)
        if self._begins_after:
            found["val/loss"] = max(found["val/loss"], 1 - max(0.0, used - self._begins_after) / 4_000)
        return found if size <= self._finite_to else {**found, "val/loss": math.nan}

    def _efficiency(self, config: Mapping[str, Any], size: int, critical: float, used: float) -> float:
        if not self._works(config, size):
            return 0.01
        if self._best_factor is not None and size > OWN:
            exponent = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[config["optimizer"]["lr_scaling"]]
            off = math.log2((size / OWN) ** exponent / self._best_factor)
            return expected_efficiency(size, OWN, critical) * 0.8 ** abs(off)
        has_grown = self._later_critical is not None and used >= GROWS_AFTER
        return expected_efficiency(size, OWN, self._later_critical if has_grown else critical)  # type: ignore[arg-type]

    def _works(self, config: Mapping[str, Any], size: int) -> bool:
        return size < self._breaks_at and size <= self._works_to.get(config["optimizer"]["lr_scaling"], 10**6)


def largest_of(config: Mapping[str, Any]) -> int:
    """The largest batch size of a config."""
    stages = config["data"]["batch_size_schedule"] or [config["data"]]
    return max(int(each["global_batch_size"]) for each in stages)


def workers_of(config: Mapping[str, Any]) -> int:
    return max(1, int(config["scaling"]["num_workers"]))


EMPTY: dict[str, Any] = {
    "evaluations": [],
    "noise": [],
    "samples": 0,
    "seconds": 0.0,
    "saved": [],
    "diverged": False,
}


def metrics_after(samples: float, metric: str) -> dict[str, float]:
    """Loss and accuracy after so many samples that were used well."""
    return {"val/loss": 10 / samples**0.5, metric: 1 - 10 / samples**0.5}


FACTS = {"train_samples": TRAIN, "normalises_batches": False, "builds_optimizers": False}


def config_of(**sections: Any) -> ExperimentConfig:
    """A config that batch sizes can be studied with, changed."""
    tree: dict[str, Any] = {
        "name": "planned",
        "model": {"name": "mlp"},
        "data": {"name": "synthetic", "global_batch_size": 64},
        "trainer": {"epochs": 5},
        "scaling": {"num_workers": 0},
    }
    return validate({**tree, **sections})


def config_for(epochs: int, section: Mapping[str, Any]) -> ExperimentConfig:
    """The config of a simulated study."""
    data = {"name": "synthetic", "global_batch_size": OWN}
    return config_of(data=data, trainer={"epochs": epochs}, scale={"target": {"val/accuracy": 0.909}, **section})


def study(bench: SimulatedBench, epochs: int = SHORT, **section: Any) -> ScaleFindings:
    """Run a study on a simulated bench, with a target that takes 12,000 samples or so."""
    config = config_for(epochs, section)
    clock = Clock(1e6, 0.0, lambda: 0.0)
    return ScaleStudy(config, bench, clock, SilentListener(), Path("nowhere")).run()


def study_of_workers(bench: SimulatedBench, **section: Any) -> ScaleFindings:
    """Run a study, then measure with other numbers of workers."""
    clock = Clock(1e6, 0.0, lambda: 0.0)
    config = config_for(SHORT, {"verify": False, **section})
    course = ScaleStudy(config, bench, clock, SilentListener(), Path("nowhere"))
    return course.measure_workers(course.run(), lambda config: nullcontext())


def trained_branches(bench: SimulatedBench) -> set[tuple[int, int, str, int]]:
    """Start, batch size, rule and seed of each branch that was trained."""
    found = set()
    for job in bench.jobs:
        (config, *_) = (json.loads(each.config_json) for each in job.configs)
        schedule, rule = config["data"]["batch_size_schedule"], config["optimizer"]["lr_scaling"]
        if job.name != "train_segment" or config["callbacks"][-1]["args"].get("metric", "val/loss") != "val/loss":
            continue
        if "resume_from" in job.options:
            start, size = schedule[1]["samples"], schedule[1]["global_batch_size"]
        else:
            start, size = 0, config["data"]["global_batch_size"]
        if size != OWN:
            found.add((start, size, rule, config["seed"]))
    return found


@pytest.mark.parametrize(("critical", "linear_to"), [(400.0, 10**6), (400.0, 64), (4.0, 10**6)])
@pytest.mark.parametrize(("epochs", "target"), [(SHORT, 0.909), (LONG, 0.97)])
@pytest.mark.parametrize("in_halves", [False, True])
def test_a_preview_names_all_that_is_trained(
    epochs: int, target: float, critical: float, linear_to: int, in_halves: bool
) -> None:
    bench = SimulatedBench(critical, linear_to=linear_to, sqrt_to=linear_to)
    config = config_for(epochs, {"target": {"val/accuracy": target}})
    if in_halves:
        config = config.with_overrides({"data": HALVES})
    found = ScaleStudy(config, bench, Clock(1e6, 0.0, lambda: 0.0), SilentListener(), Path("nowhere")).run()
    previewed = ScalePreview.of(StudyPlan.of(config, FACTS))
    named = {
        (each.start_samples, each.batch_size, rule, seed)
        for each in previewed.trainings
        for rule in each.rules
        for seed in each.seeds
    }
    assert trained_branches(bench)
    assert trained_branches(bench) <= named
    assert found.samples_spent <= previewed.most_samples
    largest = max(branch.batch_size for branch in found.branches)
    assert [(row.global_batch_size, row.workers, row.is_extrapolated) for row in found.table] == [
        (size.global_batch_size, size.workers, size.is_extrapolated or size.global_batch_size > largest)
        for size in previewed.sizes
        if size.global_batch_size <= 2 * largest
    ]


def best_size(critical: float) -> int:
    """The smallest batch of those that are nearly as fast to the target as the fastest, within a short training."""
    samples = {size: 12_076 / expected_efficiency(size, OWN, critical) for size in (32, 64, 128, 256, 512)}
    seconds = {size: each / size * (0.01 + size * 1e-5) for size, each in samples.items() if each <= SHORT * TRAIN}
    return next(size for size in seconds if seconds[size] <= 1.1 * min(seconds.values()))


@pytest.mark.parametrize(("critical", "largest"), [(100.0, 128), (400.0, 512)])
def test_the_critical_batch_and_the_fastest_batch_are_found(critical: float, largest: int) -> None:
    found = study(SimulatedBench(critical))
    assert found.critical is not None
    assert found.critical.size == pytest.approx(critical, rel=0.15)
    assert found.recommended["data.global_batch_size"] == best_size(critical)
    assert found.rules.text == f"linear up to a batch of {largest}"
    assert found.recommended["optimizer.lr_scaling"] == "linear"
    assert found.speedup is not None
    assert found.speedup_interval is not None
    assert 1 < found.speedup_interval[0] < found.speedup < found.speedup_interval[1]
    assert set(found.own_samples) == {0, 1, 2}
    assert found.measured_seconds == pytest.approx(found.predicted_seconds, rel=0.15)
    assert found.samples_spent > 0


def test_a_long_training_has_branches_from_three_points() -> None:
    found = study(SimulatedBench(400.0), epochs=LONG, target={"val/accuracy": 0.97})
    assert found.critical is not None
    assert [start for start, _ in found.critical.by_samples] == sorted(
        {branch.start_samples for branch in found.branches}
    )
    assert len(found.critical.by_samples) == 3
    assert found.critical.size == pytest.approx(400.0, rel=0.15)
    assert set(found.own_samples) == {0}


def test_where_the_critical_batch_grows_so_does_the_recommended_one() -> None:
    bench = SimulatedBench(30.0, later_critical=3000.0, step_seconds=(0.01, 1e-4))
    found = study(bench, epochs=LONG, target={"val/accuracy": 0.965})
    stages = found.recommended["data.batch_size_schedule"]
    assert stages[0]["samples"] == 0
    sizes = [each["global_batch_size"] for each in stages]
    assert sizes == sorted(set(sizes))
    assert found.verifications[1].batch_sizes == tuple(sizes)
    assert found.measured_seconds == pytest.approx(found.predicted_seconds, rel=0.15)
    for each in found.verifications:  # the ratio of the two changes on the way, so that milestones say another one
        assert each.smoothed_samples == pytest.approx(each.samples)
    # faster than any fixed batch
    assert found.measured_seconds is not None
    assert found.measured_seconds < min(row.seconds for row in found.table if row.workers == 1)
    recommended = config_of().with_overrides(dict(found.recommended))
    assert [each.global_batch_size for each in recommended.data.batch_size_schedule or ()] == sizes


@pytest.mark.parametrize(
    ("linear_to", "sqrt_to", "rules", "rule"),
    [
        (128, 10**6, "linear up to a batch of 128, sqrt at 512", "linear"),
        (64, 10**6, "sqrt up to a batch of 512", "sqrt"),
        (128, 128, "linear up to a batch of 128, none at 512", "linear"),
    ],
)
def test_the_rule_that_works_is_taken_where_the_usual_one_breaks(
    linear_to: int, sqrt_to: int, rules: str, rule: str
) -> None:
    found = study(SimulatedBench(400.0, linear_to=linear_to, sqrt_to=sqrt_to))
    assert (found.rules.text, found.recommended["optimizer.lr_scaling"]) == (rules, rule)


@pytest.mark.parametrize(
    ("epochs", "target", "critical", "later_critical", "rules"),
    [
        (SHORT, 0.909, 400.0, None, "adascale up to a batch of 512"),
        (LONG, 0.97, 400.0, None, "adascale up to a batch of 512"),
        (LONG, 0.968, 30.0, 3000.0, "linear up to a batch of 64, adascale from 128 to 512"),
    ],
)
def test_adascale_is_recommended_where_no_fixed_rule_works(
    epochs: int, target: float, critical: float, later_critical: float | None, rules: str
) -> None:
    """From the start and from checkpoints, also for a batch that grows from the config's own."""
    config = config_for(epochs, {"target": {"val/accuracy": target}}).with_overrides({"data": HALVES})
    bench = SimulatedBench(critical, (0.01, 1e-4), linear_to=64, sqrt_to=64, later_critical=later_critical)
    found = ScaleStudy(config, bench, Clock(1e6, 0.0, lambda: 0.0), SilentListener(), Path("nowhere")).run()
    assert found.rules.text == rules
    assert found.recommended["optimizer.lr_scaling"] == "adascale"
    recommended = config.with_overrides(dict(found.recommended))
    assert recommended.data.micro_batch_size == OWN // 2
    assert bool(recommended.data.batch_size_schedule) == (later_critical is not None)
    assert {lr.endswith(" x gain") for _, _, lr, *_ in rows_of(found)} == {True, False}


def test_where_a_step_takes_as_long_as_its_samples_the_config_stays_as_it_is() -> None:
    found = study(SimulatedBench(100.0, step_seconds=(0.0, 1e-4)))
    assert found.recommended == {}
    assert found.verifications == ()


def test_a_larger_batch_that_turns_out_to_be_faster_still_is_named() -> None:
    found = study(SimulatedBench(60.0, verified_critical=1000.0))
    (size,) = recommended_sizes(found)
    assert found.knee is not None
    assert found.knee.global_batch_size > size
    assert any(f"batch {found.knee.global_batch_size}" in note and "faster still" in note for note in found.notes)
    assert not any("faster still" in note for note in study(SimulatedBench(400.0)).notes)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("disturbed", [{OWN: 4.0}, {64: 4.0}, {128: 4.0, 256: 3.0}])
def test_steps_that_other_programs_have_lengthened_are_measured_again(
    disturbed: dict[int, float], verify: bool
) -> None:
    found = study(SimulatedBench(400.0, disturbed=disturbed), verify=verify)
    assert found == study(SimulatedBench(400.0), verify=verify)
    assert found.recommended


def test_an_answer_that_changes_nothing_names_a_faster_row_that_was_not_measured() -> None:
    found = study(SimulatedBench(100.0, step_seconds=(0.0, 1e-4)))
    best = min(found.table, key=lambda row: row.seconds)
    assert best.is_extrapolated
    assert best.workers > found.workers
    assert f"{best.workers} workers" in summary_text(found)
    assert "extrapolated" in summary_text(found)
    measured = study_of_workers(SimulatedBench(100.0, step_seconds=(0.0, 1e-4), most_workers=best.workers))
    assert f"{best.workers} workers" in summary_text(measured)
    assert "extrapolated" not in summary_text(measured)
    here = tuple(row for row in found.table if row.workers == found.workers)
    assert "worker" not in summary_text(replace(found, table=here))


SAME_TIME = (0.0, 1e-4)
"""Seconds of a step that takes as long as its samples."""


def sizes_trained(bench: SimulatedBench) -> list[int]:
    """Batch sizes other than the config's own that were trained to the target, one for each training."""
    configs = [json.loads(job.configs[0].config_json) for job in bench.jobs if job.name == "train_segment"]
    to_target = [each for each in configs if each["callbacks"][-1]["args"].get("metric") == "val/accuracy"]
    return [size for each in to_target if (size := each["data"]["global_batch_size"]) not in (OWN, None)]


def test_an_answer_that_changes_nothing_is_checked_at_the_critical_batch_size() -> None:
    bench = SimulatedBench(60.0, step_seconds=SAME_TIME, verified_critical=200.0)
    found, unchecked = study(bench), study(SimulatedBench(60.0, step_seconds=SAME_TIME), verify=False)
    assert found.recommended == {}
    assert sizes_trained(bench) == [64]
    assert found.check is not None
    assert found.check.batch_size == 64
    assert found.check.samples is not None
    assert found.check.samples < 0.9 * found.check.predicted_samples
    assert found.critical is not None
    assert unchecked.critical is not None
    assert unchecked.critical.size == pytest.approx(60.0, rel=0.1)
    assert 1.3 * unchecked.critical.size < found.critical.size < 200
    row, before = (
        {each.global_batch_size: each for each in one.table if each.workers == 1} for one in (found, unchecked)
    )
    assert row[256].samples < before[256].samples


def test_a_check_that_does_not_reach_the_target_lowers_the_critical_batch_size() -> None:
    bench = SimulatedBench(200.0, step_seconds=SAME_TIME, verified_critical=30.0)
    found = study(bench, target={"val/accuracy": 0.915})
    assert found.check is not None
    assert found.check.samples is None
    assert found.critical is not None
    assert 30 < found.critical.size < 150


def test_a_check_that_shows_a_larger_batch_to_be_faster_leads_to_its_recommendation() -> None:
    bench = SimulatedBench(30.0, step_seconds=(0.01, 2e-4), verified_critical=1000.0)
    found = study(bench)
    assert sizes_trained(bench) == [64] * 3, "the check is one of the three trainings of the verification"
    assert found.recommended["data.global_batch_size"] >= 64
    assert found.speedup is not None
    assert found.speedup > 1.2


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_training_that_diverges_shows_nothing(is_checked: bool) -> None:
    step_seconds = SAME_TIME if is_checked else (0.01, 1e-5)
    found = study(SimulatedBench(60.0, step_seconds=step_seconds, verified_to=OWN))
    assert (found.recommended, found.check, found.verifications) == ({}, None, ())
    assert found.critical is not None
    assert found.critical.size == pytest.approx(60.0, rel=0.1)
    assert any("diverged" in note for note in found.notes)


def test_no_check_begins_without_the_time_for_it() -> None:
    spent = iter(range(10**9))
    bench = SimulatedBench(60.0, step_seconds=(0.0, 1.0))
    clock = Clock(5000.0, 0.0, lambda: float(next(spent)))
    found = ScaleStudy(config_for(SHORT, {}), bench, clock, SilentListener(), Path("nowhere")).run()
    assert found.critical is not None
    assert (found.check, sizes_trained(bench)) == (None, [])


def test_what_was_measured_over_the_training_is_corrected_like_the_whole() -> None:
    bench = SimulatedBench(60.0, step_seconds=SAME_TIME, verified_critical=300.0)
    target = {"val/accuracy": 0.97}
    found, before = (study(bench, LONG, target=target, verify=verify).critical for verify in (True, False))
    assert found is not None
    assert before is not None
    assert found.size > 1.3 * before.size
    assert found.low <= found.size <= found.high
    factors = [after / size for (_, after), (_, size) in zip(found.by_samples, before.by_samples, strict=True)]
    assert factors == [pytest.approx(found.size / before.size)] * 3


def test_a_batch_that_cannot_be_trained_leaves_a_smaller_one_to_try() -> None:
    found = study(SimulatedBench(400.0, fails_from=128))
    assert {branch.batch_size for branch in found.branches} == {64}
    assert found.recommended["data.global_batch_size"] == 64


def test_a_size_far_beyond_the_critical_one_does_not_count() -> None:
    found = study(SimulatedBench(400.0, breaks_at=512))
    assert {branch.batch_size for branch in found.branches} == {128, 256, 512}
    assert found.critical is not None
    assert found.critical.size == pytest.approx(400.0, rel=0.15)


@pytest.mark.parametrize(
    ("epochs", "target", "sizes"),
    [
        (SHORT, 0.9, {128, 512}),  # 14.0 steps of 512
        (1, 0.72, {64, 128}),  # 8.4 steps of 128, 4.2 of 256
    ],
)
def test_a_size_with_only_a_few_steps_until_it_is_compared_is_not_tried(
    epochs: int, target: float, sizes: set[int]
) -> None:
    found = study(SimulatedBench(2_000.0), epochs, target={"val/accuracy": target}, verify=False)
    assert {branch.batch_size for branch in found.branches} == sizes


def test_a_rule_that_broke_is_not_tried_with_a_larger_batch() -> None:
    found = study(SimulatedBench(400.0, linear_to=64))
    rules = {size: {branch.rule for branch in found.branches if branch.batch_size == size} for size in (128, 512)}
    assert rules == {128: {"linear", "sqrt"}, 512: {"sqrt"}}


@pytest.mark.parametrize(("optimizer", "tried"), [("adamw", ["sqrt", "none"]), ("sgd", ["linear", "sqrt", "none"])])
def test_where_a_rule_breaks_none_with_a_higher_learning_rate_is_tried(optimizer: str, tried: list[str]) -> None:
    bench = SimulatedBench(400.0, linear_to=64, sqrt_to=64, explodes=True)
    config = config_for(SHORT, {"verify": False}).with_overrides({"optimizer": {"name": optimizer, "lr": 0.001}})
    found = ScaleStudy(config, bench, Clock(1e6, 0.0, lambda: 0.0), SilentListener(), Path("nowhere")).run()
    assert [branch.rule for branch in found.branches if branch.batch_size == 128] == tried


@pytest.mark.parametrize(
    ("optimizer", "best_factor", "tried"),
    [
        ("sgd", 4.0, ["linear"]),
        ("sgd", 2.0, ["linear", "sqrt"]),
        ("sgd", 1.0, ["linear", "sqrt", "none"]),  # the config's own learning rate is as high as it may be
        ("adamw", 1.0, ["sqrt", "linear", "none"]),
        ("adamw", 4.0, ["sqrt", "linear"]),
    ],
)
def test_a_lower_learning_rate_is_tried_while_that_helps(optimizer: str, best_factor: float, tried: list[str]) -> None:
    bench = SimulatedBench(2_000.0, best_factor=best_factor)
    config = config_for(SHORT, {"verify": False}).with_overrides({"optimizer": {"name": optimizer, "lr": 0.001}})
    found = ScaleStudy(config, bench, Clock(1e6, 0.0, lambda: 0.0), SilentListener(), Path("nowhere")).run()
    assert [branch.rule for branch in found.branches if branch.batch_size == 128] == tried


def test_a_larger_size_begins_with_the_best_rule_of_the_smaller() -> None:
    found = study(SimulatedBench(2_000.0, best_factor=1.0), verify=False)
    rules = [(branch.batch_size, branch.rule) for branch in found.branches]
    assert rules == [(128, "linear"), (128, "sqrt"), (128, "none"), (512, "none")]


def test_a_rule_that_loses_much_with_a_smaller_batch_is_not_tried_with_a_larger() -> None:
    found = study(SimulatedBench(2_000.0, best_factor=1.0, breaks_at=512), verify=False)
    tried = {size: [each.rule for each in found.branches if each.batch_size == size] for size in (128, 512)}
    assert tried == {128: ["linear", "sqrt", "none"], 512: ["none", "sqrt"]}, "linear has 0.64 of the best one's"


def test_branches_from_checkpoints_begin_with_the_best_rule_from_the_start() -> None:
    found = study(SimulatedBench(2_000.0, best_factor=1.0), LONG, target={"val/accuracy": 0.97}, verify=False)
    rules = {(branch.batch_size, branch.rule) for branch in found.branches if branch.start_samples}
    assert rules == {(128, "none"), (512, "none")}
    assert found.rules.text == "none up to a batch of 512"


def test_a_branch_that_gets_nowhere_is_given_up_early() -> None:
    found = study(SimulatedBench(400.0, linear_to=64), verify=False)
    broken, worked = (
        next(branch.samples for branch in found.branches if (branch.batch_size, branch.rule) == (128, rule))
        for rule in ("linear", "sqrt")
    )
    assert broken < worked
    assert broken <= 0.7 * found.samples_to_target + 512, "with the samples to which the config as it is is compared"


def test_a_prediction_that_does_not_hold_is_not_recommended() -> None:
    # in training, twice the batch takes longer to the target, whatever the branches said
    found = study(SimulatedBench(400.0, step_seconds=(0.01, 2e-4), verified_critical=27.4), batch_sizes=[64])
    own, doubled = found.verifications
    assert doubled.seconds > own.seconds
    assert found.recommended == {}
    assert "was shown to be faster" in summary_text(found)
    assert found.measured_seconds == found.own_seconds


def seeds_of(found: ScaleFindings) -> int:
    """Number of seeds that were compared; 0 if no candidate was predicted to be faster."""
    return len(found.verifications[1].samples) if found.verifications else 0


SCATTER = (0.12, 0.09)
"""As measured on `configs/mnist_batch_lr.yaml`."""
STRONG_SCATTER = (0.12, 0.15)
"""About the most that was measured."""
ACCIDENTS = 60
EQUAL = 40.96
"""Critical batch size at which twice the batch takes as long to the target, with 10 ms a step and 0.2 ms a sample."""


def test_further_seeds_are_trained_while_these_do_not_decide() -> None:
    studies = [
        study(
            SimulatedBench(400.0, step_seconds=(0.01, 2e-4), scatter=STRONG_SCATTER, accident=each),
            target={"val/accuracy": 0.89},  # so that it is reached however long that takes
        )
        for each in range(ACCIDENTS)
    ]
    gains = [bool(each.recommended) for each in studies]
    assert {seeds_of(each) for each in studies} >= {3, 4, 6}
    assert sum(not seeds_of(each) for each in studies) <= 1, "by accident, branches say that no larger batch is faster"
    assert sum(gains) >= 0.8 * ACCIDENTS
    first = [each for each in studies if seeds_of(each) == 3]
    assert sum(bool(each.recommended) for each in first) <= 0.9 * sum(gains), "three seeds would miss some of them"
    plan = StudyPlan.of(config_for(SHORT, {}), FACTS)
    for each in studies:
        low, _ = each.speedup_interval or (0.0, 0.0)
        assert bool(each.recommended) == (low > 1)
        if each.recommended:  # the interval shown is the one that decided
            own, other = each.verifications
            share = LOOK_SHARES[looks(3).index(seeds_of(each))]
            speedup = speedup_of(own, other, plan.evaluation_steps * OWN)
            position = sum("is not recommended" in note for note in each.notes)
            levels = (LEVELS[position], EQUAL_LEVELS[position])
            assert each.speedup_interval in [speedup.interval(level * share) for level in levels]


@pytest.mark.parametrize(
    ("turn_scatter", "pass_seconds", "passes"),
    [
        (0.0, 10.0, 1),
        (0.02, 10.0, 1),  # a standard error of 0.013
        (0.2, 10.0, 3),
        (0.2, 200.0, 1),  # a tenth of the budget is less
    ],
)
def test_times_that_other_programs_disturb_are_measured_again(
    turn_scatter: float, pass_seconds: float, passes: int
) -> None:
    bench = SimulatedBench(400.0, turn_scatter=turn_scatter)

    def now() -> float:
        return pass_seconds * sum(len(job.configs) > 1 for job in bench.jobs)

    config = config_for(SHORT, {})
    found = ScaleStudy(config, bench, Clock(1_000.0, 0.0, now), SilentListener(), Path("nowhere")).run()
    assert now() == passes * pass_seconds
    assert {len(each.sample_seconds) for each in found.verifications} == {5 * passes}


def test_no_further_seeds_are_trained_where_there_is_little_to_gain() -> None:
    slower = SimulatedBench(400.0, step_seconds=(0.01, 2e-4), verified_critical=27.4)
    assert seeds_of(study(slower, batch_sizes=[64])) == 3
    much_faster = SimulatedBench(400.0, step_seconds=(0.01, 1e-6))
    assert seeds_of(study(much_faster)) == 3


def test_branches_are_compared_only_once_the_config_as_it_is_has_made_progress() -> None:
    found = study(SimulatedBench(200.0, begins_after=6_000), verify=False)
    assert found.critical is not None
    assert 100 < found.critical.size < 400  # 200, as far as evaluations after each 512 samples tell
    assert all(branch.samples > 6_000 for branch in found.branches)


def test_a_batch_that_only_comes_close_to_the_target_sooner_is_not_recommended() -> None:
    bench = SimulatedBench(400.0, step_seconds=(0.01, 2e-4), hesitates=(0.8899, 15_000))
    found = study(bench, batch_sizes=[128], target={"val/accuracy": 0.89})
    own, other = found.verifications
    assert found.recommended == {}
    assert other.seconds < own.seconds, "as estimated from what comes before the target"
    assert min(other.samples) > 2 * max(own.samples)
    assert any("and to the target itself 0." in note for note in found.notes)


NEARLY_EQUAL = 200.0
"""Critical batch size at which a batch of 64 is predicted to take 1.03 times as long as one of 128."""


@pytest.mark.parametrize(("verified_critical", "faster"), [(1000.0, 128), (60.0, 64)])
def test_a_training_decides_between_two_batches_of_nearly_the_same_time(verified_critical: float, faster: int) -> None:
    bench = SimulatedBench(NEARLY_EQUAL, step_seconds=(0.01, 2e-4), verified_critical=verified_critical)
    found = study(bench, batch_sizes=[64, 128])
    assert found.verifications[1].batch_sizes == (faster,)
    assert sorted(sizes_trained(bench)) == sorted([64, 128, faster, faster]), "the other one with the first seed alone"


def test_a_batch_that_is_not_faster_is_seldom_recommended() -> None:
    # twice the batch takes exactly as long to the target as the config as it is
    studies = [
        study(
            SimulatedBench(400.0, step_seconds=(0.01, 2e-4), verified_critical=EQUAL, scatter=SCATTER, accident=each),
            batch_sizes=[64],
            target={"val/accuracy": 0.89},  # so that it is reached however long that takes
        )
        for each in range(5 * ACCIDENTS)
    ]
    assert {seeds_of(each) for each in studies} >= {3, 4}
    assert sum(bool(each.recommended) for each in studies) <= 0.05 * len(studies)


def test_neither_of_two_batches_that_are_not_faster_is_often_recommended() -> None:
    # both take exactly as long to the target as the config as it is, so that the luckier one is compared
    sample = {size: 0.01 / size + 2e-4 for size in (OWN, 64, 128)}
    equal = {size: sample[size] / sample[OWN] for size in (64, 128)}
    chosen, recommended, studies = set(), 0, 5 * ACCIDENTS
    for each in range(studies):
        bench = SimulatedBench(NEARLY_EQUAL, (0.01, 2e-4), verified_efficiency=equal, scatter=SCATTER, accident=each)
        found = study(bench, batch_sizes=[64, 128], target={"val/accuracy": 0.89})
        recommended += bool(found.recommended)
        if {64, 128} <= set(sizes_trained(bench)) and found.verifications:
            chosen.add(found.verifications[1].batch_sizes)
            if found.recommended:  # at the level for one of two
                own, other = found.verifications
                speedup = speedup_of(own, other, StudyPlan.of(config_for(SHORT, {}), FACTS).evaluation_steps * OWN)
                level = EQUAL_LEVELS[0] * LOOK_SHARES[looks(3).index(seeds_of(found))]
                assert found.speedup_interval == speedup.interval(level)
    assert chosen == {(64,), (128,)}
    assert recommended <= 0.05 * studies


def test_a_training_that_decides_takes_no_time_from_the_verification() -> None:
    def studied(budget: float) -> tuple[set[int], bool]:
        """Sizes that were trained to the target, and True if one was compared with each seed."""
        bench = SimulatedBench(NEARLY_EQUAL, step_seconds=(0.01, 2e-4), verified_critical=1000.0)

        def now() -> float:  # branches take three times as long as expected
            return 6.5 * len(bench.jobs) + 13.0 * len(trained_branches(bench))

        config = config_for(SHORT, {"batch_sizes": [64, 128], "budget_seconds": budget})
        found = ScaleStudy(config, bench, Clock(budget, 0.0, now), SilentListener(), Path("nowhere")).run()
        return set(sizes_trained(bench)), bool(found.verifications)

    found = [studied(float(budget)) for budget in range(40, 160, 4)]
    compared = [is_compared for _, is_compared in found]
    assert compared == sorted(compared), "more time never loses the comparison"
    assert {len(sizes) for sizes, is_compared in found if is_compared} == {1, 2}


UNOBSERVED = "exchange between workers was not observed"


def test_steps_of_other_numbers_of_workers_are_measured_where_there_is_room() -> None:
    bench = SimulatedBench(400.0, exchange_seconds=0.02, most_workers=2)
    found = study_of_workers(bench)
    assert found.other_workers == (2,)
    seconds = {(row.global_batch_size, row.workers): row.seconds / row.steps for row in found.table}
    assert len(seconds) > 10
    # the exchange is known from two workers, and so are the steps of four
    assert seconds == {key: pytest.approx(bench.step_seconds(*key)) for key in seconds}
    measured = [row.global_batch_size for row in found.table if row.workers == 2 and not row.is_extrapolated]
    assert len(measured) == 3
    # half of the exchange is what one worker does not show
    errors = [0.01 / bench.step_seconds(size, 2) for size in measured]
    assert found.other_workers_error == pytest.approx(median(errors))
    assert all(row.is_extrapolated for row in found.table if row.workers == 4)
    assert not any(UNOBSERVED in note for note in found.notes)
    marked = [found.fastest, found.cheapest, found.knee]
    assert all(row is not None and row.workers in (1, 2) for row in marked)
    # nothing else changes
    alone = study(SimulatedBench(400.0, exchange_seconds=0.02), verify=False)
    assert found.recommended == alone.recommended
    assert [row for row in found.table if row.workers == 1] == [row for row in alone.table if row.workers == 1]


def test_a_batch_that_follows_from_the_workers_stays_the_same() -> None:
    """Without a global batch size, it is 32 for each worker."""
    config = config_of(data={"name": "synthetic"})
    plan = StudyPlan.of(config, FACTS)
    configs = worker_configs(plan, 2, {32: "none", 64: "linear"})
    assert [largest_sizes(each).global_batch_size for each in configs.values()] == list(configs) == [32, 64]


def test_without_room_other_numbers_of_workers_are_extrapolated() -> None:
    found = study_of_workers(SimulatedBench(400.0))
    assert (found.other_workers, found.other_workers_error) == ((), None)
    assert all(row.is_extrapolated for row in found.table if row.workers != 1)
    assert [UNOBSERVED in note for note in found.notes if "workers" in note] == [True]


def test_batches_that_workers_cannot_share_are_left_out() -> None:
    bench = SimulatedBench(400.0, most_workers=9)
    found = study_of_workers(bench, workers=[3, 9], batch_sizes=[96, 192])
    assert found.other_workers == (3,)
    assert {row.global_batch_size for row in found.table if row.workers == 3} == {96, 192}


def test_a_study_without_any_finite_larger_batch_ends_with_a_note() -> None:
    found = study(SimulatedBench(400.0, finite_to=OWN))
    assert found.recommended == {}
    assert found.critical is not None
    assert any("no finite loss" in note for note in found.notes)


@pytest.mark.parametrize(("epochs", "target"), [(SHORT, 0.909), (LONG, 0.97)])
def test_batches_whose_loss_is_not_finite_are_not_recommended(epochs: int, target: float) -> None:
    found = study(SimulatedBench(10_000.0, finite_to=256), epochs=epochs, target={"val/accuracy": target})
    assert {branch.efficiency for branch in found.branches if branch.batch_size > 256} == {0.0}
    assert max(branch.efficiency for branch in found.branches if branch.batch_size <= 256) > 0.9
    assert found.recommended["data.global_batch_size"] == 256
    json.dumps(findings_json(found), allow_nan=False)


def test_without_a_finite_loss_there_is_no_answer() -> None:
    found = study(SimulatedBench(finite_to=0))
    assert (found.critical, found.branches, found.recommended) == (None, (), {})
    assert found.undecided


def test_without_verification_the_recommendation_is_a_prediction() -> None:
    found = study(SimulatedBench(400.0), verify=False)
    assert found.recommended
    assert (found.measured_seconds, found.speedup) == (None, None)


def test_without_a_target_it_is_the_loss_after_most_of_the_training() -> None:
    found = study(SimulatedBench(400.0), target=None)
    assert found.target.name == "val/loss"
    assert found.samples_to_target == pytest.approx(0.8 * SHORT * TRAIN, rel=0.05)
    assert found.recommended


@pytest.mark.parametrize(
    ("bench", "section", "code"),
    [
        (SimulatedBench(), {"target": {"val/accuracy": 0.99}}, "target-not-reached"),
        (SimulatedBench(), {"target": {"val/accuracy": 0.01}}, "target-at-once"),
        (SimulatedBench(), {"target": {"f1": 0.9}}, "target-unknown"),
        (SimulatedBench(diverges=True), {}, "baseline-diverged"),
    ],
)
def test_bad_targets_are_answered_in_words(bench: SimulatedBench, section: dict[str, Any], code: str) -> None:
    assert refused(StudyFailed, study, bench, **section).code == code


def test_a_loss_that_is_not_finite_is_not_offered_as_the_target() -> None:
    evaluations = [(samples, {"val/loss": math.nan, "val/accuracy": 0.5}) for samples in (60, 120)]
    failed = refused(StudyFailed, target_of, plan_of(), {"evaluations": evaluations, "samples": 120})
    assert failed.code == "target-unknown"
    assert "choose one of val/accuracy with" in str(failed)


def test_a_training_that_is_evaluated_once_is_too_short() -> None:
    failed = refused(StudyFailed, target_of, plan_of(), {"evaluations": [(120, {"val/loss": 1.0})], "samples": 120})
    assert failed.code == "target-at-once"


def plan_of(train_samples: int | None = 4001, builds_optimizers: bool = False, **sections: Any) -> StudyPlan:
    changed = {"train_samples": train_samples, "builds_optimizers": builds_optimizers}
    return StudyPlan.of(config_of(**sections), {**FACTS, **changed})


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"train_samples": None}, "data"),
        ({"builds_optimizers": True}, "task"),
        ({"data": {"name": "synthetic", "global_batch_size": 64, "micro_batch_size": "max"}}, "data.micro_batch_size"),
        (
            {"data": {"name": "synthetic", "batch_size_schedule": [{"samples": 0, "global_batch_size": 64}]}},
            "data.batch_size_schedule",
        ),
        (
            {
                "optimizer": {"name": "sgd", "lr": 0.1, "lr_scaling": "adascale"},
                "trainer": {"gradient_accumulation_steps": 2},
            },
            "optimizer.lr_scaling",
        ),
    ],
)
def test_what_cannot_be_studied_is_refused_before_it_is_trained(given: dict[str, Any], place: str) -> None:
    assert [problem.key for problem in refused(ConfigError, plan_of, **given).problems] == [place]


def test_adascale_is_tried_where_a_step_has_several_gradients() -> None:
    """It is the rule of the branches that neither fixed rule suits, and only for SGD: its gain is derived for no other
    update."""
    plan = plan_of(data=HALVES)
    assert plan.rules == ("linear", "sqrt", "adascale")
    assert plan_of(data={**HALVES, "micro_batch_size": OWN}).rules == ("linear", "sqrt")
    assert plan_of(data=HALVES, optimizer={"name": "adamw", "lr": 0.01}).rules == ("sqrt", "linear")
    found = plan.overrides(64, "adascale")
    assert (found["optimizer.lr_scaling"], found["optimizer.base_batch_size"]) == ("adascale", OWN)
    assert "lr_scheduler.warmup_samples" not in found
    assert plan.at_batch(OWN // 2, "adascale").optimizer.lr_scaling == "linear"  # it has one gradient
    watching = plan_of(data=HALVES, trainer={"epochs": 5, "noise_scale": True})
    assert not watching.at_batch(64, "adascale").trainer.noise_scale


@pytest.mark.parametrize("global_batch_size", [OWN, None])
def test_micro_batches_stay_where_the_config_gives_their_number_too(global_batch_size: int | None) -> None:
    data = {"name": "synthetic", "global_batch_size": global_batch_size, "micro_batch_size": OWN // 2}
    plan = plan_of(data=data, trainer={"epochs": 5, "gradient_accumulation_steps": 2})
    assert plan.shares(128) == (OWN // 2, 8)
    branch = plan.branch_config(640, 20, 128, "linear")
    assert (branch.data.micro_batch_size, branch.trainer.gradient_accumulation_steps) == (OWN // 2, "auto")


def test_a_smaller_batch_with_one_gradient_measures_no_noise_scale() -> None:
    plan = plan_of(data=HALVES, trainer={"epochs": 5, "noise_scale": True}, scale={"batch_sizes": [16, 64]})
    assert [plan.at_batch(size, "linear").trainer.noise_scale for size in (16, 64)] == [False, True]


def test_a_batch_size_that_cannot_be_trained_is_refused_at_its_place() -> None:
    (problem,) = refused(ConfigError, plan_of, data=HALVES, scale={"batch_sizes": [8]}).problems
    assert problem.key == "scale.batch_sizes"
    assert "a batch of 8 " in problem.reason


def test_a_study_without_time_for_a_branch_says_so() -> None:
    clock = Clock(1.0, 0.0, lambda: 2.0)
    config = config_for(SHORT, {})
    found = ScaleStudy(config, SimulatedBench(), clock, SilentListener(), Path("nowhere")).run()
    assert "the notes" in found.undecided
    assert any("scale.budget_seconds" in note for note in found.notes)


def test_a_length_in_steps_stays_the_same_in_samples_and_a_warmup_in_steps() -> None:
    plan = plan_of(trainer={"max_steps": 1000}, lr_scheduler={"name": "cosine", "warmup_steps": 100})
    changed = plan.at_batch(256, "linear")
    assert changed.trainer.max_steps == 250
    assert (changed.lr_scheduler.warmup_steps, changed.lr_scheduler.warmup_samples) == (50, None)  # a fifth of them
    assert plan.at_batch(128, "linear").lr_scheduler.warmup_steps == 100
    assert plan.branch_config(640, 10, 256, "linear").trainer.max_steps == 10 + (64_000 - 640 + 255) // 256


def test_averages_and_stops_of_the_config_do_not_disturb_the_study() -> None:
    plan = plan_of(
        callbacks=[
            {"name": "ema", "decay": 0.999},
            {"name": "early_stopping", "monitor": "val/loss", "mode": "min", "patience": 3},
        ]
    )
    assert [each.describe() for each in plan.own_config(0).callbacks[:-1]] == ["ema"]
    assert "ema" not in [each.describe() for each in plan.branch_config(640, 10, 128, "linear").callbacks]


def test_evaluations_hit_both_ends_of_branches_and_the_steps_that_are_saved() -> None:
    plan = plan_of(trainer={"epochs": 400})
    first, *_ = plan.point_steps
    assert all(step % plan.evaluation_steps == 0 for step in plan.point_steps)
    assert plan.branch_sizes
    for size in (plan.own_batch_size, *plan.branch_sizes):
        config = plan.branch_config(1000, first, size, "linear")
        every = config.trainer.evaluate_every_n_steps
        assert every is not None
        assert every >= 16
        assert (first % every, HALF_BRANCH % every) == (0, 0)


def test_a_short_training_is_compared_from_its_start_alone() -> None:
    short, long = plan_of(trainer={"epochs": 4}), plan_of(trainer={"epochs": 400})
    assert (short.branch_sizes, short.own_seeds) == ([], [0, 1, 2])
    assert (short.start_samples(12_000), short.start_samples(20_000)) == (8_400, 14_000)
    assert long.start_samples(10**6) == long.point_steps[0] * long.own_batch_size
    assert (long.branch_sizes, long.own_seeds) == (long.start_sizes[1::2], [0])
    assert [plan.own_config(0).callbacks[-1].args["save_at_steps"] for plan in (short, long)] == [[], long.point_steps]


def test_one_worker_without_a_batch_size_of_its_own_measures_its_noise() -> None:
    config = plan_of(data={"name": "synthetic", "micro_batch_size": 64}).own_config(0)
    assert (config.data.global_batch_size, config.data.micro_batch_size) == (64, 32)
    assert config.trainer.noise_scale


def test_the_json_has_the_promised_keys() -> None:
    found = findings_json(study(SimulatedBench(400.0)))
    promised = (
        *("critical_batch_size", "noise_scale", "recommended", "samples_spent"),
        *("predicted_seconds", "measured_seconds", "table"),
    )
    assert set(promised) <= found.keys()
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))
