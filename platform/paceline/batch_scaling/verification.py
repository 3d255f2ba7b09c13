"""Verification: candidates and the config as it is are trained to the target, with each seed.

    seconds to the target = samples to it * seconds of a sample

The seconds are measured in turns, so that what slows the machine for a while does not decide.

Where no candidate is predicted to be faster, one larger batch is trained all the same, with one seed. All trainings to
the target correct the critical batch size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, exp, inf, log, sqrt
from statistics import fmean

from paceline.batch_scaling.candidate import Candidate
from paceline.batch_scaling.findings import LargerBatchCheck, ScaleFindings
from paceline.batch_scaling.milestones import Passed, shares_of, smoothed_samples
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.refinement import SamplesRatio, critical_batch_of
from paceline.batch_scaling.speedup import (
    AT_TARGET_LEVEL,
    EQUAL_LEVELS,
    LEVELS,
    LOOK_SHARES,
    MOST_STEP_ERROR,
    USUAL_FREEDOM,
    looks,
    moderated_scatter,
    speedup_at_target,
    speedup_of,
    step_error,
)
from paceline.batch_scaling.study_jobs import MOST_PASSES, StudyJobs
from paceline.batch_scaling.target_trainings import TargetTrainings, Trained
from paceline.batch_scaling.texts import check_text, corrected_text
from paceline.cluster.listener import Stages


def verify(
    plan: StudyPlan,
    jobs: StudyJobs,
    listener: Stages,
    found: ScaleFindings,
    candidates: Sequence[Candidate],
    trainings: TargetTrainings,
) -> ScaleFindings:
    """Train candidates to the target until one reaches it with each seed, and tell whether it is shown to be faster
    than the config as it is.

    Args:
        candidates: the most promising one first, at most as many as there are `LEVELS`. If the second one is predicted
            to be the faster one, a training with each decides.
    """
    own, levels = trainings.own, LEVELS
    if any(seed not in own.trainings for seed in plan.seeds):
        listener.stage("training the config as it is to the target")
    for seed in plan.seeds:
        trainings.train(own, seed)
    if own.problem:
        reason = f"the config as it is could not be trained to the target with each seed: {own.problem}"
        return _corrected(replace(found, undecided=reason), plan, trainings)
    if len(candidates) > 1 and candidates[1].seconds < candidates[0].seconds and _has_time_to_choose(plan, jobs, own):
        candidates, levels = _in_order_of_training(plan, listener, candidates, trainings), EQUAL_LEVELS
    for candidate, level in zip(candidates, levels, strict=False):
        listener.stage(f"training {candidate.text} to the target")
        other = trainings.of(candidate)
        for seed in plan.seeds:
            trainings.train(other, seed)
        if other.problem:
            jobs.notes.append(f"{candidate.text} is not recommended: {other.problem}")
            continue
        seconds = _sample_seconds(plan, jobs, trainings, other)
        if isinstance(seconds, str):
            jobs.notes.append(f"{candidate.text} is not recommended: {seconds}")
            continue
        found = _compared(plan, jobs, found, trainings, other, seconds, level)
        break  # the next one is predicted to gain hardly more
    return _corrected(found, plan, trainings)


def _has_time_to_choose(plan: StudyPlan, jobs: StudyJobs, own: Trained) -> bool:
    """Return True if there is time for a training with a second candidate, besides those with each seed."""
    return jobs.clock.has((len(plan.seeds) + 1) * own.longest_seconds)


def _in_order_of_training(
    plan: StudyPlan, listener: Stages, candidates: Sequence[Candidate], trainings: TargetTrainings
) -> list[Candidate]:
    """Return the candidates in the order of their times to the target with the first seed."""
    seed, shares = plan.seeds[0], shares_of(list(trainings.own.reached.values()))

    def seconds_of(candidate: Candidate) -> float:
        listener.stage(f"training {candidate.text} to the target")
        trained = trainings.of(candidate)
        trainings.train(trained, seed)
        passed = trained.trainings.get(seed)
        return inf if passed is None else candidate.seconds * smoothed_samples(passed, shares) / candidate.samples

    return sorted(candidates, key=seconds_of)


def _sample_seconds(
    plan: StudyPlan, jobs: StudyJobs, trainings: TargetTrainings, other: Trained
) -> dict[int, list[float]] | str:
    """Return the seconds per sample with each batch size of a candidate and of the config as it is, measured in turn
    until their ratio is known well enough; or the reason why they cannot be measured."""
    sizes = sorted({plan.own_batch_size, *(stage.batch_size for stage in other.candidate.stages)})
    configs = {size: plan.at_batch(size, other.candidate.rule) for size in sizes}
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(MOST_PASSES):
        before = jobs.clock.left
        measured = jobs.sample_seconds_in_turn(configs)
        if isinstance(measured, str):
            return seconds if number else measured
        for size, turns in measured.items():
            seconds[size] += turns
        is_exact = step_error(*trainings.compared(other, plan.seeds, seconds)) <= MOST_STEP_ERROR
        if is_exact or not jobs.has_time_again(before - jobs.clock.left):
            break
    return seconds


def _compared(
    plan: StudyPlan,
    jobs: StudyJobs,
    found: ScaleFindings,
    trainings: TargetTrainings,
    other: Trained,
    seconds: Mapping[int, Sequence[float]],
    level: float,
) -> ScaleFindings:
    """Recommend a candidate if it is shown to be faster. Further seeds are trained while they may show that.

    Args:
        other: the candidate. It and the config as it is have been trained with the seeds of the plan.
        seconds: of a sample by batch size, for each turn.
        level: chance to recommend the candidate though it is not faster.
    """
    planned = looks(len(plan.seeds))
    for num_seeds, share in zip(planned, LOOK_SHARES, strict=True):
        seeds = range(plan.seeds[0], plan.seeds[0] + num_seeds)
        if reason := _train_further(jobs, trainings, other, seeds):
            break
        results = trainings.compared(other, seeds, seconds)
        speedup = speedup_of(*results, plan.evaluation_steps * plan.own_batch_size)
        at_target = speedup_at_target(*results, plan.evaluation_steps * plan.own_batch_size)
        found = replace(
            found, own_seconds=results[0].seconds, measured_seconds=results[0].seconds, verifications=results
        )
        interval = speedup.interval(level * share)
        if interval[0] > 1 and at_target.lower_limit(AT_TARGET_LEVEL) > 1:
            return replace(
                found,
                recommended=plan.overrides_of(other.candidate),
                predicted_seconds=other.candidate.seconds,
                measured_seconds=results[1].seconds,
                speedup=speedup.estimate,
                speedup_interval=interval,
            )
        if not speedup.with_seeds(planned[-1]).lower_limit(level * LOOK_SHARES[-1]) > 1:
            break
    if not reason and speedup.log_ratio > 0:
        reason = "more seeds (scale.seeds) may show it"
    ends = corrected_text(speedup.estimate, *interval)
    figure = f"{speedup.estimate:.2f}x as fast ({ends}) over {speedup.num_seeds} seeds"
    if interval[0] > 1:
        text = f"it comes close to the target {figure}, and to the target itself {at_target.estimate:.2f}x as fast"
    else:
        text = figure
    jobs.notes.append(
        f"{other.candidate.text} is not recommended: {text}, which does not show that it is faster"
        f"{f'; {reason}' if reason else ''}"
    )
    return found


def _train_further(jobs: StudyJobs, trainings: TargetTrainings, other: Trained, seeds: Sequence[int]) -> str:
    """Train both with the seeds that are missing, and return the reason if that was not possible; empty if it was."""
    own = trainings.own
    missing = [seed for seed in seeds if seed not in own.trainings or seed not in other.trainings]
    needed = 2 * len(missing) * max(own.longest_seconds, other.longest_seconds)
    if missing and not jobs.clock.has(needed):
        return f"further seeds would take some {ceil(needed)} s (scale.budget_seconds)"
    for seed in missing:
        for trained, text in ((own, "the config as it is"), (other, other.candidate.text)):
            trainings.train(trained, seed)
            if trained.problem:
                return f"{text}: {trained.problem}"
    return ""


def check_larger_batch(
    plan: StudyPlan, jobs: StudyJobs, listener: Stages, found: ScaleFindings, trainings: TargetTrainings
) -> ScaleFindings:
    """Train one larger batch to the target where none is predicted to be faster, and correct the critical batch size.

    It is the smallest one from the critical batch size on, where the samples depend much on it and the trade-off still
    holds; or the largest that is predicted to reach the target, if that is smaller.
    """
    larger = [
        row
        for row in found.table
        if row.workers == plan.workers
        and row.is_in_reach
        and not row.is_extrapolated
        and row.global_batch_size > plan.own_batch_size
    ]
    if found.critical is None or not larger:
        return found
    row = next((row for row in larger if row.global_batch_size >= found.critical.size), larger[-1])
    other, seed = trainings.of(Candidate.of_row(row, found.rules)), plan.seeds[0]
    if not jobs.clock.has(row.seconds):
        other.problem = "no time was left (scale.budget_seconds)"
    else:
        listener.stage(f"training {other.candidate.text} to the target")
        trainings.train(other, seed)
    if seed not in other.trainings:
        jobs.notes.append(f"{other.candidate.text} was not trained to the target: {other.problem}")
        return found
    passed = other.trainings[seed]
    check = LargerBatchCheck(row.global_batch_size, None if passed is None else passed[-1], row.samples)
    jobs.notes.append(check_text(check, plan.samples))
    return _corrected(replace(found, check=check), plan, trainings)


def _corrected(found: ScaleFindings, plan: StudyPlan, trainings: TargetTrainings) -> ScaleFindings:
    """Correct the critical batch size of the branches by all trainings to the target with one batch size."""
    fixed = [each for each in trainings.others if each.trainings and len(each.candidate.stages) == 1]
    if found.critical is None or not fixed:
        return found
    ratios = [_ratio_of(trainings.own, each, plan.samples) for each in fixed]
    critical = critical_batch_of(found.branches, plan.own_batch_size, found.samples_to_target, ratios)
    return replace(found, critical=critical)


def _ratio_of(own: Trained, other: Trained, most: int) -> SamplesRatio:
    """Compare the samples seed by seed.

    Args:
        most: samples of the whole length of training; one that did not reach the target would have taken more.
    """
    shares = shares_of(list(own.reached.values()))

    def samples_of(passed: Passed | None) -> float:
        return most if passed is None else smoothed_samples(passed, shares)

    logs = [log(samples_of(each) / samples_of(own.trainings[seed])) for seed, each in other.trainings.items()]
    error, freedom = moderated_scatter(logs) / sqrt(len(logs)), USUAL_FREEDOM + len(logs) - 1
    has_failed = None in other.trainings.values()
    return SamplesRatio(other.candidate.largest, exp(fmean(logs)), error, freedom, has_failed)
