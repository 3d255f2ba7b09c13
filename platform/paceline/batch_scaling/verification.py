"""Verification: candidates and the config as it is are trained to the target, with each seed.

    seconds to the target = optimizer steps to it * seconds of a step

The steps scatter between seeds, partly in common: with the same seed, both begin with the same weights and see the
samples in the same order. So they are compared seed by seed (Student's test for paired samples, whose variance is
moderated by the usual one). The time of a step is measured in turns, so that what slows the machine for a while does
not decide.

Where no candidate is predicted to be faster, one larger batch is trained all the same, with one seed. All trainings to
the target correct the critical batch size.

Few seeds show only a large difference. While they do not decide, and more of them might, further seeds are trained, up
to `looks` fixed beforehand. The chance of a false recommendation is divided among the looks (Bonferroni's correction).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, hypot, inf, log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from paceline.batch_scaling.candidate import Candidate
from paceline.batch_scaling.critical_batch import SamplesRatio, critical_batch, refined, smallest_untrainable
from paceline.batch_scaling.findings import LargerBatchCheck, ScaleFindings, Verification
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.study_jobs import StudyJobs
from paceline.batch_scaling.texts import check_text, corrected_text
from paceline.cluster.listener import Stages

LEVELS = (0.04, 0.01)
"""Chance of each candidate to be recommended though it is not faster: 5 % together."""
LOOK_SHARES = (0.2, 0.4, 0.4)
"""Share of a candidate's chance that is spent at each of the `looks`."""

USUAL_SCATTER = 0.13
"""Usual standard deviation, over the seeds, of the logarithm of the ratio of the samples with two batch sizes."""
USUAL_FREEDOM = 2
"""Degrees of freedom that it counts for.

The grids of four models (`docs/records/*_cpu_batch_size*`) have a scatter of 0.127 with 4.3 degrees. Fewer count, so
that false recommendations stay below 5 % for a model whose samples scatter by up to 0.25."""


def looks(num_seeds: int) -> tuple[int, int, int]:
    """Return the numbers of seeds after which a candidate is compared.

    Args:
        num_seeds: the least number of seeds, at least 2.
    """
    return num_seeds, num_seeds + max(1, num_seeds // 3), 2 * num_seeds


class Speedup(NamedTuple):
    """Time of the config as it is over that of a candidate, as the logarithm."""

    log_ratio: float
    scatter: float
    """Standard deviation over the seeds."""
    num_seeds: int
    step_error: float
    """Standard error of the time of a step, which further seeds do not change."""

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return USUAL_FREEDOM + self.num_seeds - 1

    @property
    def standard_error(self) -> float:
        """Standard error of the logarithm."""
        return hypot(self.scatter / sqrt(self.num_seeds), self.step_error)

    @property
    def estimate(self) -> float:
        """The ratio."""
        return exp(self.log_ratio)

    def lower_limit(self, level: float) -> float:
        """Return the one-sided lower confidence limit of the ratio (moderated Student's t).

        Args:
            level: chance that the ratio is below the limit.
        """
        from scipy.stats import t

        return exp(self.log_ratio - float(t.ppf(1 - level, self.freedom)) * self.standard_error)

    def with_seeds(self, num_seeds: int) -> "Speedup":
        """Return what this number of seeds would show if estimate and scatter stayed as they are."""
        return self._replace(num_seeds=num_seeds)

    def interval(self, level: float) -> tuple[float, float]:
        """Return both confidence limits of the ratio; `level` is the chance that it is below the lower one."""
        low = self.lower_limit(level)
        return low, self.estimate**2 / low


def speedup_of(own: Verification, other: Verification, resolution: float) -> Speedup:
    """Compare trainings to the target, seed by seed. All of them reached it.

    Args:
        resolution: samples between two evaluations: that is how well the samples to the target are known.
    """
    pairs = zip(own.samples, other.samples, strict=True)
    logs = [log(mine / theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    # the true value of each is anywhere between the evaluations: a uniform distribution
    rounding = resolution / own.mean_samples * sqrt(2 / 12)
    turns = [log(mine / theirs) for mine, theirs in zip(own.sample_seconds, other.sample_seconds, strict=True)]
    step_error = stdev(turns) / sqrt(len(turns)) if len(turns) > 1 else 0.0
    return Speedup(fmean(logs) + fmean(turns), max(moderated_scatter(logs), rounding), len(logs), step_error)


def moderated_scatter(logs: Sequence[float]) -> float:
    """Return the standard deviation between seeds, moderated by the usual one (Smyth 2004, doi:10.2202/1544-6115.1027,
    section 3).

    Few seeds hardly tell how much they scatter. Student's t with this standard deviation has `USUAL_FREEDOM` more
    degrees of freedom.

    Args:
        logs: logarithms of the ratio of the samples, one for each seed.
    """
    freedom = len(logs) - 1
    own = stdev(logs) if freedom else 0.0
    return sqrt((USUAL_FREEDOM * USUAL_SCATTER**2 + freedom * own**2) / (USUAL_FREEDOM + freedom))


@dataclass
class Trained:
    """Trainings of a candidate, or of the config as it is, to the target."""

    candidate: Candidate
    samples: dict[int, int | None] = field(default_factory=dict)
    """To the target, by seed."""
    problem: str = ""
    longest_seconds: float = 0.0
    """Duration of the longest training so far."""

    def result(self, seeds: Sequence[int], sample_seconds: Mapping[int, Sequence[float]]) -> Verification:
        """Return the trainings of these seeds, with the seconds of a sample by batch size for each turn."""
        turns = zip(*(sample_seconds[stage.batch_size] for stage in self.candidate.stages), strict=True)
        shares = [stage.share for stage in self.candidate.stages]
        return Verification(
            tuple(stage.batch_size for stage in self.candidate.stages),
            tuple(self.samples[seed] for seed in seeds),
            tuple(sum(share * each for share, each in zip(shares, turn, strict=True)) for turn in turns),
        )


def verify(
    plan: StudyPlan,
    jobs: StudyJobs,
    listener: Stages,
    found: ScaleFindings,
    candidates: Sequence[Candidate],
    checked: Trained | None = None,
) -> ScaleFindings:
    """Train candidates to the target until one reaches it with each seed, and tell whether it is shown to be faster
    than the config as it is.

    Args:
        candidates: the most promising one first, at most as many as there are `LEVELS`.
        checked: the training of `check_larger_batch`; a candidate that is the same is not trained with its seed again.
    """
    own = Trained(plan.own_candidate, dict(found.own_samples))
    tried: list[Trained] = [] if checked is None else [checked]
    for candidate, level in zip(candidates, LEVELS, strict=False):
        listener.stage(f"training {candidate.text} to the target, beside the config as it is")
        if checked is not None and checked.candidate.trains_like(candidate):
            other = checked
            other.candidate = candidate
        else:
            other = Trained(candidate)
            tried.append(other)
        for trained in (own, other):
            for seed in plan.seeds:
                _train(plan, jobs, found, trained, seed)
        if own.problem:
            reason = f"the config as it is could not be trained to the target with each seed: {own.problem}"
            return replace(found, undecided=reason)
        if other.problem:
            jobs.notes.append(f"{candidate.text} is not recommended: {other.problem}")
            continue
        sizes = sorted({plan.own_batch_size, *(stage.batch_size for stage in candidate.stages)})
        seconds = jobs.sample_seconds_in_turn({size: plan.at_batch(size, candidate.rule) for size in sizes})
        if isinstance(seconds, str):
            jobs.notes.append(f"{candidate.text} is not recommended: {seconds}")
            continue
        found = _compared(plan, jobs, found, own, other, seconds, level)
        break  # the next one is predicted to gain hardly more
    return _corrected(found, plan, own, tried)


def _compared(
    plan: StudyPlan,
    jobs: StudyJobs,
    found: ScaleFindings,
    own: Trained,
    other: Trained,
    seconds: Mapping[int, Sequence[float]],
    level: float,
) -> ScaleFindings:
    """Recommend a candidate if it is shown to be faster. Further seeds are trained while they may show that.

    Args:
        own: the config as it is, trained with the seeds of the plan.
        other: the candidate, likewise.
        seconds: of a sample by batch size, for each turn.
        level: chance to recommend the candidate though it is not faster.
    """
    planned = looks(len(plan.seeds))
    for num_seeds, share in zip(planned, LOOK_SHARES, strict=True):
        seeds = range(plan.seeds[0], plan.seeds[0] + num_seeds)
        if reason := _train_further(plan, jobs, found, own, other, seeds):
            break
        results = own.result(seeds, seconds), other.result(seeds, seconds)
        speedup = speedup_of(*results, plan.evaluation_steps * plan.own_batch_size)
        found = replace(
            found, own_seconds=results[0].seconds, measured_seconds=results[0].seconds, verifications=results
        )
        interval = speedup.interval(level * share)
        if interval[0] > 1:
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
    figure = f"{speedup.estimate:.2f}x as fast ({ends}) over {speedup.freedom + 1} seeds"
    jobs.notes.append(
        f"{other.candidate.text} is not recommended: {figure}, which does not show that it is faster"
        f"{f'; {reason}' if reason else ''}"
    )
    return found


def _train_further(
    plan: StudyPlan, jobs: StudyJobs, found: ScaleFindings, own: Trained, other: Trained, seeds: Sequence[int]
) -> str:
    """Train both with the seeds that are missing, and return the reason if that was not possible; empty if it was."""
    missing = [seed for seed in seeds if seed not in own.samples or seed not in other.samples]
    seconds = max(own.longest_seconds, other.longest_seconds, found.own_seconds or 0.0)
    needed = 2 * len(missing) * seconds
    if missing and not jobs.clock.has(needed):
        return f"further seeds would take some {ceil(needed)} s (scale.budget_seconds)"
    for seed in missing:
        for trained, text in ((own, "the config as it is"), (other, other.candidate.text)):
            _train(plan, jobs, found, trained, seed)
            if trained.problem:
                return f"{text}: {trained.problem}"
    return ""


def check_larger_batch(
    plan: StudyPlan, jobs: StudyJobs, listener: Stages, found: ScaleFindings
) -> tuple[ScaleFindings, "Trained | None"]:
    """Train one larger batch to the target where none is predicted to be faster, and correct the critical batch size.

    It is the smallest one from the critical batch size on, where the samples depend much on it and the trade-off still
    holds; or the largest that is predicted to reach the target, if that is smaller.

    Returns:
        The findings, and the training; None if there was none.
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
        return found, None
    row = next((row for row in larger if row.global_batch_size >= found.critical.size), larger[-1])
    other, seed = Trained(Candidate.of_row(row, found.rules)), plan.seeds[0]
    if not jobs.clock.has(row.seconds):
        other.problem = "no time was left (scale.budget_seconds)"
    else:
        listener.stage(f"training {other.candidate.text} to the target")
        _train(plan, jobs, found, other, seed)
    if seed not in other.samples:
        jobs.notes.append(f"{other.candidate.text} was not trained to the target: {other.problem}")
        return found, None
    check = LargerBatchCheck(row.global_batch_size, other.samples[seed], row.samples)
    jobs.notes.append(check_text(check, plan.samples))
    found = replace(found, check=check)
    own = Trained(plan.own_candidate, {seed: found.own_samples[seed]})
    return _corrected(found, plan, own, [other]), other


def _corrected(found: ScaleFindings, plan: StudyPlan, own: Trained, tried: Sequence[Trained]) -> ScaleFindings:
    """Correct the critical batch size of the branches by all trainings to the target with one batch size."""
    fixed = [each for each in tried if each.samples and len(each.candidate.stages) == 1]
    if found.critical is None or not fixed:
        return found
    of_branches = critical_batch(found.branches, plan.own_batch_size, found.samples_to_target)
    failed = smallest_untrainable(found.branches)
    largest = max(branch.batch_size for branch in found.branches if branch.batch_size < failed or failed == inf)
    ratios = [_ratio_of(own, each, plan) for each in fixed]
    return replace(found, critical=refined(of_branches, plan.own_batch_size, ratios, largest))


def _ratio_of(own: Trained, other: Trained, plan: StudyPlan) -> SamplesRatio:
    """Compare the samples seed by seed. One that did not reach the target would have taken more than the whole length
    of training."""
    logs = [
        log((samples or plan.samples) / (own.samples[seed] or plan.samples)) for seed, samples in other.samples.items()
    ]
    error = moderated_scatter(logs) / sqrt(len(logs))
    return SamplesRatio(other.candidate.largest, exp(fmean(logs)), error, None in other.samples.values())


def _train(plan: StudyPlan, jobs: StudyJobs, found: ScaleFindings, trained: Trained, seed: int) -> None:
    """Train with a seed unless that has been done, or another one has failed."""
    if seed in trained.samples or trained.problem:
        return
    if not jobs.clock.has(0.0):
        trained.problem = "no time was left (scale.budget_seconds)"
        return
    answer = jobs.train(plan.verification_config(trained.candidate, seed, found.target))
    if answer.problem:
        trained.problem = answer.problem
        return
    if answer.values.get("diverged"):
        trained.problem = f"with seed {seed} it diverged"
        return
    trained.longest_seconds = max(trained.longest_seconds, float(answer.values.get("seconds", 0.0)))
    trained.samples[seed] = answer.values.get("reached_samples")
    if trained.samples[seed] is None:
        trained.problem = f"with seed {seed} the target was not reached"
