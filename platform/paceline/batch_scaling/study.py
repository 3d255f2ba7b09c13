"""The course of a study.

inspect the model and the data  ->  the config as it is, trained to the target, with checkpoints on its way
  ->  branches with larger batches, from the start and from these  ->  the time of a step at each batch size
  ->  the time to the target with each batch size  ->  the best of them, trained to the target with each seed,
  or a larger one where none is predicted to be faster
  ->  the time of a step with other numbers of workers, where there is room for them
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from statistics import geometric_mean, median

from paceline.batch_scaling.branching import train_branches
from paceline.batch_scaling.candidate import LEAST_GAIN, Candidate, growing_candidate
from paceline.batch_scaling.critical_batch import CriticalBatch, smallest_untrainable
from paceline.batch_scaling.findings import NoisePoint, ScaleFindings, ScaleRow
from paceline.batch_scaling.goodput import cheapest_of, fastest_of, first_candidate, goodput_table, knee_of
from paceline.batch_scaling.lr_rules import rules_that_held
from paceline.batch_scaling.other_workers import other_worker_counts, worker_configs, worker_counts
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.prediction_spread import spread_of
from paceline.batch_scaling.refinement import critical_batch_of
from paceline.batch_scaling.speedup import LEVELS
from paceline.batch_scaling.step_time import MeasuredStep, StepTimeModel, fit_step_time, held_out_errors
from paceline.batch_scaling.study_jobs import MOST_PASSES, WINDOW_SECONDS, WINDOWS, StudyJobs
from paceline.batch_scaling.target import target_of
from paceline.batch_scaling.target_trainings import TargetTrainings
from paceline.batch_scaling.texts import batch_text, recommended_sizes, seconds_text
from paceline.batch_scaling.verification import check_larger_batch, verify
from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.cluster.listener import Stages
from paceline.config.experiment import ExperimentConfig
from paceline.reports.text import counted

VERIFYING_SHARE = 0.6
"""Largest share of the budget that is reserved for the verification."""
PLAUSIBLE_ERROR = 0.2
"""Largest error of a step time that is left out of the fit from which on they do not."""
OTHER_WORKERS_SECONDS = 40.0
"""Time that must be left for another number of workers: its processes have to start first."""


class ScaleStudy:
    """Runs a study on a bench, and draws its conclusions.

    Args:
        folder: for checkpoints; all workers see it.
        notes: notes to add to the findings.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        bench: Bench,
        clock: Clock,
        listener: Stages,
        folder: Path,
        notes: Sequence[str] = (),
    ) -> None:
        self._config, self._clock, self._listener = config, clock, listener
        self._jobs = StudyJobs(bench, clock, folder)
        self._jobs.notes += notes
        self._plan: StudyPlan | None = None
        self._steps = _Steps(0, {})

    def run(self) -> ScaleFindings:
        """Run the whole study.

        Raises:
            StudyFailed: the config as it is cannot be trained, or does not reach the target.
        """
        jobs = self._jobs
        self._listener.stage("looking at the model and the data")
        plan = self._plan = StudyPlan.of(self._config, jobs.look(self._config))
        self._listener.stage("training the config as it is")
        own = jobs.train_own(plan.own_config(plan.seeds[0]))
        target = target_of(plan, own)
        if plan.section.verify:
            verifying_seconds = (2 * len(plan.seeds) + 1 - len(plan.own_seeds)) * own["seconds"]
            self._clock.reserved = min(verifying_seconds, VERIFYING_SHARE * self._clock.budget_seconds)
        trained = {plan.seeds[0]: own}
        for seed in plan.own_seeds[1:]:
            if self._clock.has(own["seconds"]):
                trained[seed] = jobs.train_own(plan.own_config(seed))
        trainings = TargetTrainings(plan, jobs, target, trained)
        own_samples = trainings.own_samples
        reached = round(geometric_mean(own_samples.values()))
        branches = train_branches(plan, jobs, self._listener, own, reached)
        noise = tuple(NoisePoint(*point) for point in own["noise"])
        if not noise:
            jobs.notes.append("the noise scale was not measured: a step has one gradient, or none that is whole")
        found = ScaleFindings(
            target=target,
            own_batch_size=plan.own_batch_size,
            workers=plan.workers,
            samples_to_target=reached,
            own_samples=own_samples,
            critical=critical_batch_of(branches, plan.own_batch_size, reached) if branches else None,
            branches=tuple(branches),
            noise=noise,
            rules=rules_that_held(branches, plan.rules[0], plan.own_batch_size),
            step_time=None,
            step_time_error=None,
            table=(),
            fastest=None,
            cheapest=None,
            knee=None,
        )
        found = self._concluded(found, plan, trainings)
        return replace(found, samples_spent=jobs.samples_spent, notes=tuple(jobs.notes))

    def measure_workers(
        self, found: ScaleFindings, moved_to: Callable[[ExperimentConfig], AbstractContextManager[object]]
    ) -> ScaleFindings:
        """Measure steps with other numbers of workers, if resources and time allow, and make the table again.

        Args:
            found: from `run`.
            moved_to: returns a context in which jobs are run by a config's number of workers.
        """
        plan, steps = self._plan, self._steps
        if plan is None or not steps.measured:
            return found
        self._clock.reserved = 0.0  # nothing is verified any more
        others: dict[tuple[int, int], MeasuredStep] = {}
        for count in other_worker_counts(plan):
            configs = worker_configs(plan, count, {size: found.rules.at(size) for size, _ in steps.measured})
            if configs and self._clock.has(OTHER_WORKERS_SECONDS):
                self._listener.stage(f"measuring steps with {counted(count, 'worker')}")
                with moved_to(next(iter(configs.values()))):
                    others |= self._other_steps(count, configs)
        steps = _Steps(steps.largest_trained, {**steps.measured, **others})
        if not steps.model.has_exchange and len(worker_counts(plan)) > 1:
            self._jobs.notes.append(
                "the exchange between workers was not observed: times of other numbers may be too low"
            )
        errors = [abs(self._steps.model.error(each)) for each in others.values()]
        found = replace(
            found,
            notes=tuple(self._jobs.notes),
            other_workers=tuple(sorted({count for _, count in others})),
            other_workers_error=median(errors) if errors else None,
        )
        return _with_table(found, plan, steps) if others else found

    def _other_steps(self, count: int, configs: Mapping[int, ExperimentConfig]) -> dict[tuple[int, int], MeasuredStep]:
        assert self._plan is not None
        found = {}
        for size, config in configs.items():
            seconds = self._jobs.step_seconds(config, size)
            if seconds is None:
                break  # there is no room for so many, or they cannot train
            found[size, count] = MeasuredStep(*self._plan.shares_of(config, size), count, seconds)
        return found

    def _concluded(self, found: ScaleFindings, plan: StudyPlan, trainings: TargetTrainings) -> ScaleFindings:
        self._listener.stage("measuring the time of a step")
        steps = self._steps = self._measured_steps(found, plan)
        if not steps.measured:
            return replace(found, undecided="no step could be measured")
        return self._chosen(_with_table(found, plan, steps), plan, steps, trainings)

    def _measured_steps(self, found: ScaleFindings, plan: StudyPlan) -> "_Steps":
        largest = max((each.batch_size for each in found.branches), default=plan.own_batch_size)
        before = self._clock.left
        steps = _Steps(largest, self._measured_once(found, plan, plan.batch_sizes(largest)))
        seconds = before - self._clock.left
        for _ in range(MOST_PASSES - 1):
            fits = max(steps.errors(plan.workers), default=0.0) <= PLAUSIBLE_ERROR
            if fits or not self._jobs.has_time_again(seconds):
                break
            again = self._measured_once(found, plan, [size for size, _ in steps.measured])
            # other programs only lengthen a step
            least = {key: min(each, again.get(key, each), key=_seconds) for key, each in steps.measured.items()}
            steps = _Steps(largest, least)
        return steps

    def _measured_once(
        self, found: ScaleFindings, plan: StudyPlan, sizes: Sequence[int]
    ) -> dict[tuple[int, int], MeasuredStep]:
        measured: dict[tuple[int, int], MeasuredStep] = {}
        for size in sizes:
            if self._clock.has(WINDOWS * WINDOW_SECONDS) or not measured:
                seconds = self._jobs.step_seconds(plan.at_batch(size, found.rules.at(size)), size)
                if seconds is not None:
                    measured[size, plan.workers] = MeasuredStep(*plan.shares(size), plan.workers, seconds)
        return measured

    def _chosen(
        self, found: ScaleFindings, plan: StudyPlan, steps: "_Steps", trainings: TargetTrainings
    ) -> ScaleFindings:
        own_row = _own_row(found, plan)
        if own_row is None:
            return replace(found, undecided="the step of the config as it is could not be measured")
        found = replace(found, predicted_seconds=own_row.seconds)
        if not found.branches:
            return replace(found, undecided="no larger batch was trained with, see the notes")
        failed = smallest_untrainable(found.branches)
        if isfinite(failed):
            self._jobs.notes.append(
                f"a batch of {failed:,.0f} has no finite loss, with any rule tried: none so large is considered"
            )
        candidates = self._candidates(found, plan)
        if not plan.section.verify:
            return self._predicted(found, plan, candidates)
        self._clock.reserved = 0.0
        if not candidates:
            found = check_larger_batch(plan, self._jobs, self._listener, found, trainings)
            found = _with_table(found, plan, steps)
            candidates = self._candidates(found, plan)
        if not candidates:
            self._note_that_none_is_faster(found, plan)
            return found
        verified = verify(plan, self._jobs, self._listener, found, candidates[: len(LEVELS)], trainings)
        if verified.critical != found.critical:  # the verification has corrected what the table was made with
            verified = _with_table(verified, plan, steps)
        knee = verified.knee
        if verified.recommended and knee is not None and knee.global_batch_size > max(recommended_sizes(verified)):
            self._jobs.notes.append(
                f"since these trainings, {batch_text([knee.global_batch_size], knee.workers)} is predicted to be "
                f"faster still ({seconds_text(knee.seconds)}); that was not verified"
            )
        return verified

    def _predicted(self, found: ScaleFindings, plan: StudyPlan, candidates: Sequence[Candidate]) -> ScaleFindings:
        if not candidates:
            self._note_that_none_is_faster(found, plan)
            return found
        best = candidates[0]
        self._jobs.notes.append("not verified (scale.verify): the recommendation is a prediction")
        return replace(found, recommended=plan.overrides_of(best), predicted_seconds=best.seconds)

    def _note_that_none_is_faster(self, found: ScaleFindings, plan: StudyPlan) -> None:
        far = [row.global_batch_size for row in _larger_rows(found, plan) if not row.is_in_reach]
        if far:
            self._jobs.notes.append(
                f"batches of {min(far):,} and more are not predicted to reach the target within the config's length"
            )
        self._jobs.notes.append(
            f"no larger batch is predicted to reach the target sooner with {counted(plan.workers, 'worker')}"
        )

    def _candidates(self, found: ScaleFindings, plan: StudyPlan) -> list[Candidate]:
        """Return the candidates that are predicted to be faster than the config as it is.

        The order is: a growing batch size if that is faster than any fixed one; then the smallest batch that is hardly
        slower than the fastest, since it is the smaller change; then the others, the fastest first.
        """
        own_row = _own_row(found, plan)
        assert own_row is not None
        larger = _larger_rows(found, plan)
        rows = [row for row in larger if row.is_in_reach and row.seconds * LEAST_GAIN <= own_row.seconds]
        first = first_candidate(rows, own_row.seconds)
        rows.sort(key=lambda row: (row != first, row.seconds))
        fixed = [Candidate.of_row(row, found.rules) for row in rows]
        growing = self._growing(found, plan, [own_row, *larger])
        if growing is not None and growing.seconds * LEAST_GAIN <= min(row.seconds for row in (own_row, *rows)):
            return [growing, *fixed]
        return fixed

    def _growing(self, found: ScaleFindings, plan: StudyPlan, here: Sequence[ScaleRow]) -> Candidate | None:
        if found.critical is None:
            return None
        step_seconds = {row.global_batch_size: row.seconds / row.steps for row in here}
        return growing_candidate(
            found.critical, found.rules, plan.own_batch_size, found.samples_to_target, step_seconds, plan.samples
        )


@dataclass(frozen=True)
class _Steps:
    """Steps whose time was measured."""

    largest_trained: int
    measured: dict[tuple[int, int], MeasuredStep]
    """Measured steps by batch size and number of workers."""

    @property
    def model(self) -> StepTimeModel:
        return fit_step_time(list(self.measured.values()))

    def errors(self, workers: int) -> list[float]:
        """Return the errors of the steps with this number of workers, each left out of the fit; empty if there are too
        few."""
        here = [each for each in self.measured.values() if each.workers == workers]
        return [abs(each) for each in held_out_errors(here)] if len(here) >= 3 else []


def _seconds(step: MeasuredStep) -> float:
    return step.seconds


def _own_row(found: ScaleFindings, plan: StudyPlan) -> ScaleRow | None:
    """Return the row of the config as it is; None if its step could not be measured."""
    here = (row for row in found.table if row.workers == plan.workers and not row.is_extrapolated)
    return next((row for row in here if row.global_batch_size == plan.own_batch_size), None)


def _larger_rows(found: ScaleFindings, plan: StudyPlan) -> list[ScaleRow]:
    """Return the rows of larger batches that were measured and can be trained."""
    failed = smallest_untrainable(found.branches)
    here = (row for row in found.table if row.workers == plan.workers and not row.is_extrapolated)
    return [row for row in here if plan.own_batch_size < row.global_batch_size < failed]


def _with_table(found: ScaleFindings, plan: StudyPlan, steps: _Steps) -> ScaleFindings:
    """Add the table of the time and cost to the target of each batch size and number of workers."""
    sizes, model = plan.batch_sizes(steps.largest_trained), steps.model
    critical = found.critical or CriticalBatch(inf, inf, inf, ())
    errors = steps.errors(plan.workers)
    rows = goodput_table(
        sizes,
        worker_counts(plan),
        own_batch_size=plan.own_batch_size,
        own_samples=found.samples_to_target,
        largest_trained=steps.largest_trained,
        critical=critical,
        seconds_per_step={key: each.seconds for key, each in steps.measured.items()},
        step_time=model,
        micro_batch_size={size: plan.shares(size)[0] for size in sizes},
        lr={size: plan.lr(size, found.rules.at(size)) for size in sizes},
        most_samples=plan.samples,
        untrainable=smallest_untrainable(found.branches),
        spread=spread_of(critical, plan.own_batch_size, list(found.own_samples.values()), sizes),
        step_error=median(errors) if errors else 0.0,
    )
    sure = [row for row in rows if not row.is_extrapolated]
    return replace(
        found,
        step_time=model,
        step_time_error=median(errors) if errors else None,
        table=tuple(rows),
        fastest=fastest_of(sure),
        cheapest=cheapest_of(sure),
        knee=knee_of(sure),
    )
