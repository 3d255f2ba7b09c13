"""Verification: candidates and the config as it is are trained to the target, with each seed.

    seconds to the target = optimizer steps to it * seconds of a step

The steps scatter between seeds; the time of a step is measured in turns, so that what slows the machine for a while
does not decide. The steps of both have one variance, that of all their seeds together (Student's test for two samples).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import fmean, geometric_mean, stdev
from typing import NamedTuple

from paceline.batch_scaling.candidate import Candidate
from paceline.batch_scaling.critical_batch import refined
from paceline.batch_scaling.findings import ScaleFindings, Verification
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.study_jobs import StudyJobs
from paceline.cluster.listener import Stages

LEVELS = (0.03, 0.02)
"""Chance of each candidate to be recommended though it is not faster: 5 % together."""


class Speedup(NamedTuple):
    """Time of the config as it is over that of a candidate, as the logarithm."""

    log_ratio: float
    standard_error: float
    freedom: int
    """Degrees of freedom."""

    @property
    def estimate(self) -> float:
        """The ratio."""
        return exp(self.log_ratio)

    def lower_limit(self, level: float) -> float:
        """Return the one-sided lower confidence limit of the ratio (Student's t).

        Args:
            level: chance that the ratio is below the limit.
        """
        from scipy.stats import t

        return exp(self.log_ratio - float(t.ppf(1 - level, self.freedom)) * self.standard_error)

    @property
    def interval(self) -> tuple[float, float]:
        """Both limits at 95 %."""
        low = self.lower_limit(0.025)
        return low, self.estimate**2 / low


def speedup_of(own: Verification, other: Verification, resolution: float) -> Speedup:
    """Compare trainings to the target, all of which reached it.

    Args:
        resolution: samples between two evaluations: that is how well the samples to the target are known.
    """
    logs = [[log(samples) for samples in each.samples if samples is not None] for each in (own, other)]
    counts = [len(each) for each in logs]
    freedom = sum(counts) - 2
    squares = sum((count - 1) * stdev(each) ** 2 for count, each in zip(counts, logs, strict=True) if count > 1)
    # the true value is anywhere between the evaluations: a uniform distribution
    rounding = (resolution / exp(fmean(logs[0]))) ** 2 / 12
    variance = max(squares / freedom, rounding) * sum(1 / count for count in counts)
    turns = [log(mine / theirs) for mine, theirs in zip(own.sample_seconds, other.sample_seconds, strict=True)]
    if len(turns) > 1:
        variance += stdev(turns) ** 2 / len(turns)
    return Speedup(fmean(logs[0]) - fmean(logs[1]) + fmean(turns), sqrt(variance), freedom)


@dataclass
class _Trained:
    """Trainings of a candidate, or of the config as it is."""

    candidate: Candidate
    samples: dict[int, int | None] = field(default_factory=dict)
    """To the target, by seed."""
    problem: str = ""

    def mean_samples(self, longest: int) -> float:
        """Geometric mean over the seeds; `longest` of those that did not reach the target."""
        return geometric_mean([each or longest for each in self.samples.values()])

    def result(self, sample_seconds: Mapping[int, Sequence[float]]) -> Verification:
        """Add the seconds of a sample, by batch size, for each turn."""
        turns = zip(*(sample_seconds[stage.batch_size] for stage in self.candidate.stages), strict=True)
        shares = [stage.share for stage in self.candidate.stages]
        return Verification(
            tuple(stage.batch_size for stage in self.candidate.stages),
            tuple(self.samples[seed] for seed in sorted(self.samples)),
            tuple(sum(share * each for share, each in zip(shares, turn, strict=True)) for turn in turns),
        )


def verify(
    plan: StudyPlan, jobs: StudyJobs, listener: Stages, found: ScaleFindings, candidates: Sequence[Candidate]
) -> ScaleFindings:
    """Train candidates to the target until one reaches it with each seed, and tell whether it is surely faster than the
    config as it is.

    Args:
        candidates: the most promising one first, at most as many as there are `LEVELS`.
    """
    own = _Trained(plan.own_candidate, dict(found.own_samples))
    tried: list[_Trained] = []
    for candidate, level in zip(candidates, LEVELS, strict=False):
        listener.stage(f"training {candidate.text} to the target, beside the config as it is")
        other = _Trained(candidate)
        tried.append(other)
        for trained in (own, other):
            _train(plan, jobs, found, trained)
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
        found = _compared(plan, jobs, found, (own.result(seconds), other.result(seconds)), candidate, level)
        break  # the next one is predicted to gain less
    return _corrected(found, plan, own, tried)


def _compared(
    plan: StudyPlan,
    jobs: StudyJobs,
    found: ScaleFindings,
    results: tuple[Verification, Verification],
    candidate: Candidate,
    level: float,
) -> ScaleFindings:
    """Recommend a candidate if it is surely faster.

    Args:
        results: of the config as it is, and of the candidate.
        level: chance to recommend it though it is not.
    """
    own, other = results
    found = replace(found, own_seconds=own.seconds, measured_seconds=own.seconds, verifications=results)
    speedup = speedup_of(own, other, plan.evaluation_steps * plan.own_batch_size)
    if speedup.lower_limit(level) > 1:
        return replace(
            found,
            recommended=plan.overrides_of(candidate),
            predicted_seconds=candidate.seconds,
            measured_seconds=other.seconds,
            speedup=speedup.estimate,
            speedup_interval=speedup.interval,
        )
    low, high = speedup.interval
    jobs.notes.append(
        f"{candidate.text} is not recommended: {speedup.estimate:.2f}x as fast (95 % CI {low:.2f}-{high:.2f}) over "
        f"{len(plan.seeds)} seeds is not surely faster; more seeds (scale.seeds) would tell"
    )
    return found


def _corrected(found: ScaleFindings, plan: StudyPlan, own: _Trained, tried: Sequence[_Trained]) -> ScaleFindings:
    """Correct the critical batch size by all trainings to the target with one batch size. One that did not reach it
    would have taken more than the whole length of training."""
    own_mean = own.mean_samples(plan.samples)
    ratios = [
        (each.candidate.largest, each.mean_samples(plan.samples) / own_mean, len(each.samples))
        for each in tried
        if each.samples and len(each.candidate.stages) == 1
    ]
    if found.critical is None or not ratios:
        return found
    return replace(found, critical=refined(found.critical, plan.own_batch_size, found.branches, ratios))


def _train(plan: StudyPlan, jobs: StudyJobs, found: ScaleFindings, trained: _Trained) -> None:
    """Train with each seed where that has not been done."""
    for seed in plan.seeds:
        if seed in trained.samples or trained.problem:
            continue
        if not jobs.clock.has(0.0):
            trained.problem = "no time was left (scale.budget_seconds)"
            return
        answer = jobs.train(plan.verification_config(trained.candidate, seed, found.target))
        if answer.problem:
            trained.problem = answer.problem
            return
        trained.samples[seed] = answer.values.get("reached_samples")
        if trained.samples[seed] is None:
            trained.problem = f"with seed {seed} the target was not reached"
