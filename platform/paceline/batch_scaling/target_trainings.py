"""Trainings to the target: of the config as it is, and of candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.batch_scaling.candidate import Candidate
from paceline.batch_scaling.findings import TargetMetric, Verification
from paceline.batch_scaling.milestones import Passed, milestones_of, passed_in, shares_of, smoothed_samples
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.study_jobs import StudyJobs
from paceline.batch_scaling.target import reached_in


@dataclass
class Trained:
    """Trainings of a candidate, or of the config as it is, to the target."""

    candidate: Candidate
    trainings: dict[int, Passed | None] = field(default_factory=dict)
    """By seed; None where the target was not reached."""
    problem: str = ""
    longest_seconds: float = 0.0
    """Duration of the longest training so far."""

    @property
    def reached(self) -> dict[int, Passed]:
        """The trainings that have reached the target, by seed."""
        return {seed: each for seed, each in self.trainings.items() if each is not None}


class TargetTrainings:
    """Trains to the target, each candidate with each seed once.

    Args:
        own: answers to trainings of the config as it is, by seed, see `segment.train_segment`. At least one has
            reached the target.
    """

    def __init__(
        self, plan: StudyPlan, jobs: StudyJobs, target: TargetMetric, own: Mapping[int, Mapping[str, Any]]
    ) -> None:
        self._plan, self._jobs, self._target = plan, jobs, target
        first = next(values for values in own.values() if reached_in(values, target) is not None)
        self._milestones = milestones_of(target, first)
        self.own = Trained(plan.own_candidate)
        for seed, values in own.items():
            self._add(self.own, seed, values)
        self.others: list[Trained] = []

    @property
    def own_samples(self) -> dict[int, int]:
        """Samples to the target with the config as it is, by seed."""
        return {seed: passed[-1] for seed, passed in self.own.reached.items()}

    def of(self, candidate: Candidate) -> Trained:
        """Return the trainings of a candidate; those of one that trains like it are its own."""
        found = next((each for each in self.others if each.candidate.trains_like(candidate)), None)
        if found is None:
            found = Trained(candidate)
            self.others.append(found)
        found.candidate = candidate
        return found

    def train(self, trained: Trained, seed: int) -> None:
        """Train with a seed unless that has been done, or another one has failed."""
        if seed in trained.trainings or trained.problem:
            return
        if not self._jobs.clock.has(0.0):
            trained.problem = "no time was left (scale.budget_seconds)"
            return
        answer = self._jobs.train(self._plan.verification_config(trained.candidate, seed, self._target))
        if answer.problem:
            trained.problem = answer.problem
            return
        if answer.values.get("diverged"):
            trained.problem = f"with seed {seed} it diverged"
            return
        self._add(trained, seed, answer.values)

    def _add(self, trained: Trained, seed: int, values: Mapping[str, Any]) -> None:
        trained.longest_seconds = max(trained.longest_seconds, values["seconds"])
        trained.trainings[seed] = passed_in(self._milestones, values)
        if trained.trainings[seed] is None:
            trained.problem = f"with seed {seed} the target was not reached"

    def compared(
        self, other: Trained, seeds: Sequence[int], sample_seconds: Mapping[int, Sequence[float]]
    ) -> tuple[Verification, Verification]:
        """Return the trainings of the config as it is, and those of a candidate, with these seeds. All of them have
        reached the target.

        Args:
            sample_seconds: seconds of a sample by batch size, for each turn.
        """
        mine, theirs = ([trained.reached[seed] for seed in seeds] for trained in (self.own, other))
        if len(other.candidate.stages) > 1:  # its ratio to the config as it is changes on the way
            mine, theirs = ([each[-1:] for each in passed] for passed in (mine, theirs))
        shares = shares_of(mine)
        return (
            _verification(self.own.candidate, mine, shares, sample_seconds),
            _verification(other.candidate, theirs, shares, sample_seconds),
        )


def _verification(
    candidate: Candidate,
    trainings: Sequence[Passed],
    shares: Sequence[float],
    sample_seconds: Mapping[int, Sequence[float]],
) -> Verification:
    turns = zip(*(sample_seconds[stage.batch_size] for stage in candidate.stages), strict=True)
    of_stage = [stage.share for stage in candidate.stages]
    return Verification(
        tuple(stage.batch_size for stage in candidate.stages),
        tuple(passed[-1] for passed in trainings),
        tuple(smoothed_samples(passed, shares) for passed in trainings),
        tuple(sum(share * each for share, each in zip(of_stage, turn, strict=True)) for turn in turns),
    )
