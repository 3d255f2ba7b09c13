"""The course of a study.

look at the model and the data  ->  the config as it is, trained to the target, with checkpoints on its way
  ->  branches from these, with larger batches  ->  the time of a step at each batch size
  ->  what each batch size takes to the target  ->  the best of them, trained to the target with each seed
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from paceline.batch_scaling.critical_batch import (
    Branch,
    CriticalBatch,
    LossCurve,
    Rule,
    critical_batch,
    efficiency_of,
    rule_that_held,
)
from paceline.batch_scaling.findings import NoisePoint, ScaleFindings, ScaleRow, TargetMetric, Verification
from paceline.batch_scaling.goodput import cheapest_of, fastest_of, goodput_table, knee_of
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.segment import LOOK, TRAIN_SEGMENT, is_reached
from paceline.batch_scaling.step_time import MeasuredStep, fit_step_time, held_out_errors
from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import THROUGHPUT, Answer, Job, part_of
from paceline.cluster.listener import Stages
from paceline.config.experiment import ExperimentConfig
from paceline.errors import RunFailed

LOSS = "val/loss"
"""The metric by which branches are compared."""
LEAST_EFFICIENCY = 0.35
"""Of a branch: larger batches are not tried after it."""
NEARLY_BEST = 0.9
"""Efficiency of a branch from which on no other rule is tried."""
RULE_TOLERANCE = 0.1
LEAST_GAIN = 1.03
"""Predicted speedup below which the config stays as it is."""
MOST_CANDIDATES = 3
"""Batch sizes that are verified, one after the other, until one holds."""
WINDOWS, WINDOW_SECONDS = 5, 0.3


class StudyFailed(RunFailed):
    """There is nothing to compare larger batches with."""

    def __init__(self, message: str, code: str, **fields: object) -> None:
        super().__init__(message, code=code)
        self.fields = fields


class ScaleStudy:
    """Measures on a bench, and concludes.

    Args:
        folder: for checkpoints; all workers see it.
        verifies: whether the recommendation is trained to the target.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        bench: Bench,
        clock: Clock,
        listener: Stages,
        folder: Path,
        verifies: bool = True,
    ) -> None:
        self._config, self._bench, self._clock, self._listener = config, bench, clock, listener
        self._folder, self._verifies = folder, verifies
        self._samples_spent = 0
        self._notes: list[str] = []

    def run(self) -> ScaleFindings:
        """Do everything.

        Raises:
            StudyFailed: the config as it is cannot be trained, or does not reach the target.
        """
        self._listener.stage("looking at the model and the data")
        plan = StudyPlan.of(self._config, self._required(self._do(LOOK, self._config, checks_again=True), "built"))
        self._listener.stage("training the config as it is")
        own = self._required(self._segment(plan.own_config(), checkpoints=str(self._folder / "own")), "trained")
        target, reached = self._target(plan, own)
        branches = self._branches(plan, own)
        critical = critical_batch(branches, plan.own_batch_size) if branches else None
        noise = tuple(NoisePoint(*point) for point in own["noise"])
        rule, holds_to = rule_that_held(branches, RULE_TOLERANCE) if branches else (plan.rules[0], plan.own_batch_size)
        found = ScaleFindings(
            target=target,
            own_batch_size=plan.own_batch_size,
            workers=plan.workers,
            samples_to_target=reached,
            critical=critical,
            branches=tuple(branches),
            noise=noise,
            rule=rule,
            rule_holds_to=holds_to,
            step_time=None,
            step_time_error=None,
            table=(),
            fastest=None,
            cheapest=None,
            knee=None,
        )
        found = self._with_table(found, plan, critical or CriticalBatch(inf, inf, inf, ()))
        found = self._chosen(found, plan)
        return replace(found, samples_spent=self._samples_spent, notes=tuple(self._notes))

    # --- jobs

    def _do(self, function: str, config: ExperimentConfig, checks_again: bool = False, **options: Any) -> Answer:
        limit = max(self._clock.longest, 1.0)
        return self._bench.do(Job(function, (part_of(config),), options, limit, checks_again=checks_again))

    def _segment(self, config: ExperimentConfig, **options: Any) -> Answer:
        answer = self._do(TRAIN_SEGMENT, config, **options)
        self._samples_spent += int(answer.values.get("samples", 0))
        return answer

    def _required(self, answer: Answer, doing: str) -> Mapping[str, Any]:
        if answer.problem:
            raise StudyFailed(f"the config as it is cannot be {doing}: {answer.problem}", "baseline-failed")
        if answer.values.get("diverged"):
            raise StudyFailed("the config as it is diverges: lower its learning rate first", "baseline-diverged")
        return answer.values

    # --- the config as it is

    def _target(self, plan: StudyPlan, own: Mapping[str, Any]) -> tuple[TargetMetric, int]:
        """Return the target, and the samples that the config as it is takes to it.

        Raises:
            StudyFailed: it never reaches it, has reached it before it was worth a study, or the metric does not exist.
        """
        target, evaluations = plan.target, own["evaluations"]
        if target is None:
            samples, metrics = evaluations[-1]
            return TargetMetric(LOSS, metrics[LOSS], "min"), samples
        names = sorted(evaluations[-1][1])
        if target.name not in names:
            raise StudyFailed(
                f"the target's metric does not exist: {target.name} is not among {', '.join(names)}. Choose one of "
                "them with --target or scale.target",
                "target-unknown",
                metric=target.name,
            )
        values = [metrics[target.name] for _, metrics in evaluations]
        if own["reached_samples"] is None:
            best = (max if target.mode == "max" else min)(values)
            raise StudyFailed(
                f"the config as it is never reaches the target {target.text}: the best {target.name} in "
                f"{plan.samples:,} samples is {best:.6g}. Train longer, or choose a target that it reaches",
                "target-not-reached",
                best=best,
            )
        if is_reached(values[0], target.value, target.mode):
            raise StudyFailed(
                f"the target {target.text} is reached at once: {target.name} is {values[0]:.6g} after "
                f"{evaluations[0][0]:,} samples. Choose a target that takes training",
                "target-at-once",
                first=values[0],
            )
        return target, own["reached_samples"]

    # --- branches

    def _branches(self, plan: StudyPlan, own: Mapping[str, Any]) -> list[Branch]:
        samples, metrics = own["evaluations"][-1]
        points = [(start, name) for start, name in own["saved"] if start < samples]
        if LOSS not in metrics:
            self._notes.append(f"the task reports no {LOSS}: the critical batch size is not measured")
            return []
        if not points:
            self._notes.append("the target is reached too early for branches: the critical batch size is not measured")
        found: list[Branch] = []
        for number, (start, name) in enumerate(points, 1):
            self._listener.stage(f"branches after {start:,} samples ({number} of {len(points)})")
            found += self._branches_at(_Point(plan, start, self._folder / "own" / name))
        return found

    def _branches_at(self, point: "_Point") -> list[Branch]:
        plan = point.plan
        reference = self._trained_branch(point, plan.reference_config(point.start_samples), plan.own_batch_size)
        if reference is None or reference["diverged"] or len(reference["evaluations"]) < 2:
            return []
        curve = LossCurve(*zip(*((each, metrics[LOSS]) for each, metrics in reference["evaluations"]), strict=True))
        found: list[Branch] = []
        for size in plan.branch_sizes:
            best = 0.0
            for rule in plan.rules:
                config = plan.branch_config(point.start_samples, point.start_step, size, rule)
                values = self._trained_branch(point, config, size)
                if values is None:
                    return found
                found.append(_branch_of(point, curve, size, rule, values))
                best = max(best, found[-1].efficiency)
                if best >= NEARLY_BEST:
                    break
            if best < LEAST_EFFICIENCY:
                break
        return found

    def _trained_branch(self, point: "_Point", config: ExperimentConfig, size: int) -> Mapping[str, Any] | None:
        if not self._clock.has(0.0):
            return None
        folder = str(self._folder / "branch")
        answer = self._segment(config, resume_from=str(point.checkpoint), folder=folder)
        if answer.problem:
            told = f"batch {size} after {point.start_samples:,} samples could not be trained: {answer.problem}"
            self._notes.append(told)
            return None
        return answer.values

    # --- what follows

    def _with_table(self, found: ScaleFindings, plan: StudyPlan, critical: CriticalBatch) -> ScaleFindings:
        largest = max((each.batch_size for each in found.branches), default=plan.own_batch_size)
        sizes = plan.batch_sizes(largest)
        self._listener.stage("measuring the time of a step")
        measured: list[MeasuredStep] = []
        micro: dict[int, int] = {}
        for size in sizes:
            micro[size], accumulation = plan.shares(size)
            if self._clock.has(WINDOWS * WINDOW_SECONDS) or not measured:
                seconds = self._step_seconds(plan.at_batch(size, found.rule), size)
                if seconds is not None:
                    measured.append(MeasuredStep(micro[size], accumulation, plan.workers, seconds))
        if not measured:
            return found
        model = fit_step_time(measured)
        if plan.workers == 1 and any(count > 1 for count in plan.worker_counts):
            self._notes.append("the exchange between workers was not observed: times of several workers are too low")
        rows = goodput_table(
            sizes,
            plan.worker_counts,
            own_batch_size=plan.own_batch_size,
            own_samples=found.samples_to_target,
            measured_workers=plan.workers,
            largest_trained=largest,
            critical=critical,
            seconds_per_step={each.global_batch_size: each.seconds for each in measured},
            step_time=model,
            micro_batch_size=micro,
            lr={size: plan.lr(size, found.rule) for size in sizes},
            most_samples=plan.samples,
        )
        errors = [abs(each) for each in held_out_errors(measured)] if len(measured) >= 3 else []
        return replace(
            found,
            step_time=model,
            step_time_error=median(errors) if errors else None,
            table=tuple(rows),
            fastest=fastest_of(rows),
            cheapest=cheapest_of(rows),
            knee=knee_of(rows),
        )

    def _step_seconds(self, config: ExperimentConfig, size: int) -> float | None:
        answer = self._do(THROUGHPUT, config, windows=WINDOWS, window_seconds=WINDOW_SECONDS)
        if answer.problem:
            self._notes.append(f"the step of batch {size} could not be measured: {answer.problem}")
            return None
        (seconds,) = answer.values["seconds_per_sample"]
        return float(median(seconds)) * size

    def _chosen(self, found: ScaleFindings, plan: StudyPlan) -> ScaleFindings:
        own_row = next((row for row in found.table if self._is_measured(row, plan, plan.own_batch_size)), None)
        if own_row is None:
            return found
        candidates = [
            row
            for row in found.table
            if self._is_measured(row, plan) and row.is_in_reach and row.global_batch_size != plan.own_batch_size
            if row.seconds * LEAST_GAIN <= own_row.seconds
        ]
        candidates.sort(key=lambda row: row.seconds)
        if not candidates:
            self._notes.append("no larger batch is predicted to reach the target sooner: the config is best as it is")
            return replace(found, predicted_seconds=own_row.seconds)
        if not self._verifies:
            best = candidates[0]
            self._notes.append("not verified (--no-verify): the recommendation is a prediction")
            overrides = plan.overrides(best.global_batch_size, found.rule)
            return replace(found, recommended=overrides, predicted_seconds=best.seconds)
        return self._verified(found, plan, candidates[:MOST_CANDIDATES], own_row)

    def _is_measured(self, row: ScaleRow, plan: StudyPlan, size: int | None = None) -> bool:
        return row.workers == plan.workers and not row.is_extrapolated and size in (None, row.global_batch_size)

    # --- verification

    def _verified(
        self, found: ScaleFindings, plan: StudyPlan, candidates: Sequence[ScaleRow], own_row: ScaleRow
    ) -> ScaleFindings:
        """Train candidates to the target until one is faster with each seed than the config as it is."""
        own: dict[int, TargetReached] = {}
        tried: list[Verification] = []
        for row in candidates:
            size = row.global_batch_size
            self._listener.stage(f"training batch {size:,} to the target, beside the config as it is")
            other = self._trained_beside(plan, found, size, own)
            tried.append(_verification(size, other.values()))
            if problem := _why_not(own, other):
                self._notes.append(f"batch {size:,} is not recommended: {problem}")
                continue
            return replace(
                found,
                recommended=plan.overrides(size, found.rule),
                predicted_seconds=row.seconds,
                measured_seconds=_median(tried[-1].seconds),
                own_seconds=_median(_verification(plan.own_batch_size, own.values()).seconds),
                verifications=(_verification(plan.own_batch_size, own.values()), *tried),
            )
        base = _verification(plan.own_batch_size, own.values())
        seconds = _median(base.seconds)
        return replace(
            found,
            predicted_seconds=own_row.seconds,
            measured_seconds=seconds,
            own_seconds=seconds,
            verifications=(base, *tried),
        )

    def _trained_beside(
        self, plan: StudyPlan, found: ScaleFindings, size: int, own: dict[int, "TargetReached"]
    ) -> dict[int, "TargetReached"]:
        """Train a batch size with each seed, and the config as it is where that has not been done. They take turns, so
        that what slows the machine for a while hits both."""
        trained: dict[int, TargetReached] = {}
        for number, seed in enumerate(plan.seeds):
            turns = [(plan.own_batch_size, own), (size, trained)]
            for each, known in reversed(turns) if number % 2 else turns:
                if seed not in known:
                    known[seed] = self._trained(plan, found, each, seed)
        return trained

    def _trained(self, plan: StudyPlan, found: ScaleFindings, size: int, seed: int) -> "TargetReached":
        if not self._clock.has(0.0):
            return TargetReached(None, None, "no time was left (scale.budget_seconds)")
        answer = self._segment(plan.verification_config(size, found.rule, seed, found.target))
        samples = answer.values.get("reached_samples")
        if answer.problem or samples is None:
            return TargetReached(None, None, answer.problem or "the target was not reached")
        return TargetReached(samples, answer.values["seconds"])


class TargetReached(NamedTuple):
    """A training to the target."""

    samples: int | None
    """None where it was not reached; `seconds` likewise."""
    seconds: float | None
    problem: str = ""


def _why_not(own: Mapping[int, TargetReached], other: Mapping[int, TargetReached]) -> str:
    """Return the reason why a batch size is not surely faster; empty where it is with each seed."""
    problems = [each.problem for each in (*own.values(), *other.values()) if each.problem]
    if problems:
        return f"with {len(problems)} of the trainings, {problems[0]}"
    slower = [seed for seed in own if (other[seed].seconds or inf) >= (own[seed].seconds or 0.0)]
    return f"it took longer to the target with {len(slower)} of {len(own)} seeds" if slower else ""


def _verification(size: int, trained: Iterable[TargetReached]) -> Verification:
    those = list(trained)
    return Verification(size, tuple(each.samples for each in those), tuple(each.seconds for each in those))


@dataclass(frozen=True)
class _Point:
    """A point of training at which branches begin."""

    plan: StudyPlan
    start_samples: int
    checkpoint: Path

    @property
    def start_step(self) -> int:
        """Optimizer steps done."""
        return int(self.checkpoint.name.partition("-")[2])


def _branch_of(point: _Point, curve: LossCurve, size: int, rule: Rule, values: Mapping[str, Any]) -> Branch:
    evaluations = [(samples, float(metrics[LOSS])) for samples, metrics in values["evaluations"]]
    efficiency, loss, middle = 0.0, inf, point.start_samples + values["samples"] / 2
    if len(evaluations) >= 2 and not values["diverged"]:
        loss = evaluations[-1][1]
        half = min(evaluations[:-1], key=lambda each: abs(each[0] - middle))
        efficiency = efficiency_of(curve, half, evaluations[-1])
    return Branch(point.start_samples, size, rule, values["samples"], loss, efficiency)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
