"""Verification: candidates and the config as it is are trained to the target, with each seed.

    seconds to the target = optimizer steps to it * seconds of a step

The steps scatter between seeds, partly in common: with the same seed, both begin with the same weights and see the
samples in the same order. So they are compared seed by seed (Student's test for paired samples). The time of a step is
measured in turns, so that what slows the machine for a while does not decide.

Few seeds show only a large difference. While they do not decide, and more of them might, further seeds are trained, up
to `looks` fixed beforehand. The chance of a false recommendation is divided among the looks (Bonferroni's correction).
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

LEVELS = (0.04, 0.01)
"""Chance of each candidate to be recommended though it is not faster: 5 % together."""
SHARES = (0.2, 0.4, 0.4)
"""Share of a candidate's chance that is spent at each of the `looks`."""


def looks(seeds: int) -> tuple[int, int, int]:
    """Return the numbers of seeds after which a candidate is compared.

    Args:
        seeds: the least number of seeds, at least 2.
    """
    return seeds, seeds + max(1, seeds // 3), 2 * seeds


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

    def with_seeds(self, number: int) -> "Speedup":
        """Return what this number of seeds would show if estimate and scatter stayed as they are."""
        seeds = self.freedom + 1
        return Speedup(self.log_ratio, self.standard_error * sqrt(seeds / number), number - 1)

    @property
    def interval(self) -> tuple[float, float]:
        """Both limits at 95 %."""
        low = self.lower_limit(0.025)
        return low, self.estimate**2 / low


def speedup_of(own: Verification, other: Verification, resolution: float) -> Speedup:
    """Compare trainings to the target, seed by seed. All of them reached it.

    Args:
        resolution: samples between two evaluations: that is how well the samples to the target are known.
    """
    pairs = zip(own.samples, other.samples, strict=True)
    logs = [log(mine / theirs) for mine, theirs in pairs if mine is not None and theirs is not None]
    # the true value of each is anywhere between the evaluations: a uniform distribution
    rounding = 2 * (resolution / own.mean_samples) ** 2 / 12
    variance = max(stdev(logs) ** 2, rounding) / len(logs)
    turns = [log(mine / theirs) for mine, theirs in zip(own.sample_seconds, other.sample_seconds, strict=True)]
    if len(turns) > 1:
        variance += stdev(turns) ** 2 / len(turns)
    return Speedup(fmean(logs) + fmean(turns), sqrt(variance), len(logs) - 1)


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
            _train(plan, jobs, found, trained, plan.seeds)
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
        found = _compared(plan, jobs, found, (own, other), seconds, level)
        break  # the next one is predicted to gain less
    return _corrected(found, plan, own, tried)


def _compared(
    plan: StudyPlan,
    jobs: StudyJobs,
    found: ScaleFindings,
    both: tuple[_Trained, _Trained],
    seconds: Mapping[int, Sequence[float]],
    level: float,
) -> ScaleFindings:
    """Recommend a candidate if it is surely faster. Trains both with further seeds while these may decide.

    Args:
        both: the config as it is, and the candidate, trained with the seeds of the plan.
        seconds: of a sample by batch size, for each turn.
        level: chance to recommend it though it is not.
    """
    candidate, planned = both[1].candidate, looks(len(plan.seeds))
    for number, share in zip(planned, SHARES, strict=True):
        seeds = range(plan.seeds[0], plan.seeds[0] + number)
        for trained in both:
            _train(plan, jobs, found, trained, seeds)
        if problems := [trained.problem for trained in both if trained.problem]:
            jobs.notes.append(f"{candidate.text} was not trained with {number} seeds: {problems[0]}")
            break
        own, other = (trained.result(seeds, seconds) for trained in both)
        speedup = speedup_of(own, other, plan.evaluation_steps * plan.own_batch_size)
        found = replace(found, own_seconds=own.seconds, measured_seconds=own.seconds, verifications=(own, other))
        if speedup.lower_limit(level * share) > 1:
            return replace(
                found,
                recommended=plan.overrides_of(candidate),
                predicted_seconds=candidate.seconds,
                measured_seconds=other.seconds,
                speedup=speedup.estimate,
                speedup_interval=speedup.interval,
            )
        if not speedup.with_seeds(planned[-1]).lower_limit(level * SHARES[-1]) > 1:
            break
    low, high = speedup.interval
    jobs.notes.append(
        f"{candidate.text} is not recommended: {speedup.estimate:.2f}x as fast (95 % CI {low:.2f}-{high:.2f}) over "
        f"{len(own.samples)} seeds is not surely faster; more seeds (scale.seeds) would tell"
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


def _train(plan: StudyPlan, jobs: StudyJobs, found: ScaleFindings, trained: _Trained, seeds: Sequence[int]) -> None:
    """Train with each seed where that has not been done."""
    for seed in seeds:
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
