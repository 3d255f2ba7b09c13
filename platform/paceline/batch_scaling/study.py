"""The course of a study.

look at the model and the data  ->  the config as it is, trained to the target, with checkpoints on its way
  ->  branches from these, with larger batches  ->  the time of a step at each batch size
  ->  what each batch size takes to the target  ->  the best of them, trained to the target with each seed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, isfinite, log
from pathlib import Path
from statistics import median
from typing import Any

from paceline.batch_scaling.critical_batch import (
    LOSS,
    Branch,
    CriticalBatch,
    LossCurve,
    branch_of,
    critical_batch,
    rule_that_held,
)
from paceline.batch_scaling.findings import NoisePoint, ScaleFindings, ScaleRow, StudyFailed, TargetMetric, Verification
from paceline.batch_scaling.goodput import cheapest_of, fastest_of, goodput_table, knee_of
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.segment import LOOK, TRAIN_SEGMENT, is_reached
from paceline.batch_scaling.step_time import MeasuredStep, fit_step_time, held_out_errors
from paceline.batch_scaling.verification import TargetReached, interval_of, lower_limit, median_of, verification_of
from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import THROUGHPUT, Answer, Job, part_of
from paceline.cluster.listener import Stages
from paceline.config.experiment import ExperimentConfig

OWN, BRANCH = "own", "branch"
"""Folders of checkpoints: of the config as it is, and of the branch that is being trained."""
LEAST_EFFICIENCY = 0.35
"""Of a branch: larger batches are not tried after it."""
NEARLY_BEST = 0.9
"""Efficiency of a branch from which on no other rule is tried."""
RULE_TOLERANCE = 0.1
LEAST_GAIN = 1.03
"""Predicted speedup below which the config stays as it is."""
WINDOWS, WINDOW_SECONDS = 5, 0.3
OWN_TARGET_SHARE = 0.8
"""Without a target, the loss after this share of the config's length of training is it."""
LEVELS = (0.03, 0.015, 0.005)
"""Chance of each candidate to be recommended though it is not faster: 5 % together."""
VERIFYING_SHARE = 0.6
"""Of the budget, what is kept back for the verification at the most."""


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
        own = self._required(self._segment(plan.own_config(), checkpoints=OWN), "trained")
        target, reached = self._target(plan, own)
        if self._verifies:
            trainings = 2 * len(plan.seeds) * own["seconds"]
            self._clock.reserved = min(trainings, VERIFYING_SHARE * self._clock.budget_seconds)
        branches = self._branches(plan, own)
        critical = critical_batch(branches, plan.own_batch_size) if branches else None
        noise = tuple(NoisePoint(*point) for point in own["noise"])
        if not noise:
            self._notes.append("the noise scale was not measured: a step has one gradient, or none that is whole")
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
        part, folder = part_of(config), str(self._folder)
        return self._bench.do(Job(function, (part,), options, limit, checks_again=checks_again, folder=folder))

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
        evaluations = own["evaluations"]
        if not evaluations:
            raise StudyFailed("the config as it is has no evaluation: give it a validation set", "no-evaluation")
        target = plan.target or self._own_target(plan, evaluations)
        names = sorted(evaluations[-1][1])
        if target.name not in names:
            raise StudyFailed(
                f"the target's metric does not exist: {target.name} is not among {', '.join(names)}. Choose one of "
                "them with --target or scale.target",
                "target-unknown",
                metric=target.name,
            )
        values = [(samples, metrics[target.name]) for samples, metrics in evaluations if target.name in metrics]
        reached = next((samples for samples, value in values if is_reached(value, target.value, target.mode)), None)
        if reached is None:
            best = (max if target.mode == "max" else min)(value for _, value in values)
            raise StudyFailed(
                f"the config as it is never reaches the target {target.text}: the best {target.name} in "
                f"{own['samples']:,} samples is {best:.6g}. Train longer, choose a target that it reaches, or say with "
                "scale.mode which way is better",
                "target-not-reached",
                best=best,
            )
        if (reached == values[0][0] and len(values) > 1) or (plan.target is not None and len(values) == 1):
            raise StudyFailed(
                f"the target {target.text} is reached at once: {target.name} is {values[0][1]:.6g} after "
                f"{values[0][0]:,} samples. Choose a target that takes training",
                "target-at-once",
                first=values[0][1],
            )
        return target, reached

    def _own_target(self, plan: StudyPlan, evaluations: Sequence[tuple[int, Mapping[str, float]]]) -> TargetMetric:
        """Return the loss after most of the training, made monotone: other seeds and batches reach it in time.

        Raises:
            StudyFailed: there is no such loss.
        """
        losses = [(samples, metrics[LOSS]) for samples, metrics in evaluations if LOSS in metrics]
        if len(losses) < 2 or not all(isfinite(loss) for _, loss in losses):
            names = ", ".join(sorted(evaluations[-1][1]))
            raise StudyFailed(
                f"there is no finite {LOSS} to take as the target: choose one of {names} with --target",
                "target-unknown",
            )
        curve = LossCurve(*zip(*losses, strict=True))
        return TargetMetric(LOSS, curve.loss_at(OWN_TARGET_SHARE * losses[-1][0]), "min")

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
            found += self._branches_at(_Point(plan, start, name))
        return found

    def _branches_at(self, point: "_Point") -> list[Branch]:
        plan = point.plan
        config = plan.reference_config(point.start_samples, point.start_step)
        reference = self._trained_branch(point, config, plan.own_batch_size)
        losses = [(each, metrics[LOSS]) for each, metrics in reference["evaluations"]] if reference is not None else []
        if len(losses) < 2 or not all(isfinite(loss) for _, loss in losses):
            return []
        curve = LossCurve(*zip(*losses, strict=True))
        found: list[Branch] = []
        for size in plan.branch_sizes:
            best = 0.0
            for rule in plan.rules:
                config = plan.branch_config(point.start_samples, point.start_step, size, rule)
                values = self._trained_branch(point, config, size)
                if values is None:
                    return found
                found.append(branch_of(point.start_samples, curve, size, rule, values))
                best = max(best, found[-1].efficiency)
                if best >= NEARLY_BEST:
                    break
            if best < LEAST_EFFICIENCY:
                break
        return found

    def _trained_branch(self, point: "_Point", config: ExperimentConfig, size: int) -> Mapping[str, Any] | None:
        if not self._clock.has(0.0):
            return None
        answer = self._segment(config, checkpoints=BRANCH, resume_from=f"{OWN}/{point.checkpoint}")
        if answer.problem:
            told = f"batch {size:,} after {point.start_samples:,} samples could not be trained: {answer.problem}"
            self._notes.append(told)
            return None
        return answer.values

    # --- what follows

    def _with_table(self, found: ScaleFindings, plan: StudyPlan, critical: CriticalBatch) -> ScaleFindings:
        largest = max((each.batch_size for each in found.branches), default=plan.own_batch_size)
        sizes = plan.batch_sizes(largest)
        self._listener.stage("measuring the time of a step")
        measured: dict[int, MeasuredStep] = {}
        micro: dict[int, int] = {}
        for size in sizes:
            micro[size], accumulation = plan.shares(size)
            if self._clock.has(WINDOWS * WINDOW_SECONDS) or not measured:
                seconds = self._step_seconds(plan.at_batch(size, found.rule), size)
                if seconds is not None:
                    measured[size] = MeasuredStep(micro[size], accumulation, plan.workers, seconds)
        if not measured:
            return replace(found, undecided="no step could be measured")
        model = fit_step_time(list(measured.values()))
        if not model.has_exchange and len(plan.worker_counts) > 1:
            self._notes.append("the exchange between workers was not observed: times of other numbers may be too low")
        rows = goodput_table(
            sizes,
            plan.worker_counts,
            own_batch_size=plan.own_batch_size,
            own_samples=found.samples_to_target,
            measured_workers=plan.workers,
            largest_trained=largest,
            critical=critical,
            seconds_per_step={size: each.seconds for size, each in measured.items()},
            step_time=model,
            micro_batch_size=micro,
            lr={size: plan.lr(size, found.rule) for size in sizes},
            most_samples=plan.samples,
        )
        sure = [row for row in rows if model.has_exchange or row.workers == plan.workers]
        errors = [abs(each) for each in held_out_errors(list(measured.values()))] if len(measured) >= 3 else []
        return replace(
            found,
            step_time=model,
            step_time_error=median(errors) if errors else None,
            table=tuple(rows),
            fastest=fastest_of(sure),
            cheapest=cheapest_of(sure),
            knee=knee_of(sure),
        )

    def _step_seconds(self, config: ExperimentConfig, size: int) -> float | None:
        answer = self._do(THROUGHPUT, config, windows=WINDOWS, window_seconds=WINDOW_SECONDS)
        if answer.problem:
            self._notes.append(f"the step of batch {size:,} could not be measured: {answer.problem}")
            return None
        (seconds,) = answer.values["seconds_per_sample"]
        return float(median(seconds)) * size

    def _chosen(self, found: ScaleFindings, plan: StudyPlan) -> ScaleFindings:
        here = [row for row in found.table if row.workers == plan.workers and not row.is_extrapolated]
        own_row = next((row for row in here if row.global_batch_size == plan.own_batch_size), None)
        if own_row is None:
            return replace(found, undecided=found.undecided or "the step of the config as it is could not be measured")
        if not found.branches:
            reason = "no larger batch was trained with, see the notes"
            return replace(found, undecided=found.undecided or reason, predicted_seconds=own_row.seconds)
        tried = [row for row in here if plan.own_batch_size < row.global_batch_size <= found.rule_holds_to]
        candidates = [row for row in tried if row.is_in_reach and row.seconds * LEAST_GAIN <= own_row.seconds]
        candidates.sort(key=lambda row: row.seconds)
        if not candidates:
            if any(not row.is_in_reach for row in tried):
                self._notes.append("larger batches are not predicted to reach the target within the config's length")
            self._notes.append("no larger batch is predicted to reach the target sooner")
            return replace(found, predicted_seconds=own_row.seconds)
        if not self._verifies:
            best = candidates[0]
            self._notes.append("not verified (--no-verify): the recommendation is a prediction")
            overrides = plan.overrides(best.global_batch_size, found.rule)
            return replace(found, recommended=overrides, predicted_seconds=best.seconds)
        self._clock.reserved = 0.0
        return self._verified(found, plan, candidates[: len(LEVELS)], own_row)

    # --- verification

    def _verified(
        self, found: ScaleFindings, plan: StudyPlan, candidates: Sequence[ScaleRow], own_row: ScaleRow
    ) -> ScaleFindings:
        """Train candidates to the target, beside the config as it is, until one is surely faster."""
        own: dict[int, TargetReached] = {}
        tried: list[Verification] = []
        changes: dict[str, Any] = {"predicted_seconds": own_row.seconds}
        for row, level in zip(candidates, LEVELS, strict=False):
            size = row.global_batch_size
            self._listener.stage(f"training batch {size:,} to the target, beside the config as it is")
            other = self._trained_beside(plan, found, size, own)
            tried.append(verification_of(size, other.values()))
            if problem := next((each.problem for each in own.values() if each.problem), ""):
                changes["undecided"] = (
                    f"the config as it is could not be trained to the target with each seed: {problem}"
                )
                break
            if problem := next((each.problem for each in other.values() if each.problem), ""):
                self._notes.append(f"batch {size:,} is not recommended: {problem}")
                continue
            ratios = [log((own[seed].seconds or 0.0) / (other[seed].seconds or inf)) for seed in own]
            if lower_limit(ratios, level) > 1:
                changes = {
                    "recommended": plan.overrides(size, found.rule),
                    "predicted_seconds": row.seconds,
                    "measured_seconds": median_of(tried[-1].seconds),
                    "speedup_interval": interval_of(ratios),
                }
                break
            times = ", ".join(f"{exp(each):.2f}x" for each in ratios)
            self._notes.append(
                f"batch {size:,} is not recommended: as fast as {times} over the seeds is not surely faster"
            )
        base = verification_of(plan.own_batch_size, own.values())
        changes.setdefault("measured_seconds", median_of(base.seconds))
        return replace(found, **changes, own_seconds=median_of(base.seconds), verifications=(base, *tried))

    def _trained_beside(
        self, plan: StudyPlan, found: ScaleFindings, size: int, own: dict[int, TargetReached]
    ) -> dict[int, TargetReached]:
        """Train a batch size with each seed, and the config as it is where that has not been done. They take turns, so
        that what slows the machine for a while hits both."""
        trained: dict[int, TargetReached] = {}
        for number, seed in enumerate(plan.seeds):
            turns = [(plan.own_batch_size, own), (size, trained)]
            for each, known in reversed(turns) if number % 2 else turns:
                if seed not in known:
                    known[seed] = self._trained(plan, found, each, seed)
        return trained

    def _trained(self, plan: StudyPlan, found: ScaleFindings, size: int, seed: int) -> TargetReached:
        if not self._clock.has(0.0):
            return TargetReached(None, None, "no time was left (scale.budget_seconds)")
        answer = self._segment(plan.verification_config(size, found.rule, seed, found.target))
        samples = answer.values.get("reached_samples")
        if answer.problem or samples is None:
            return TargetReached(None, None, answer.problem or "the target was not reached")
        return TargetReached(samples, answer.values["seconds"])


@dataclass(frozen=True)
class _Point:
    """A point of training at which branches begin."""

    plan: StudyPlan
    start_samples: int
    checkpoint: str
    """Name of its folder, such as `step-48`."""

    @property
    def start_step(self) -> int:
        """Optimizer steps done."""
        return int(self.checkpoint.partition("-")[2])
