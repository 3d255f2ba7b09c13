"""Trainings to the target: of the config as it is, and of candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.batch_scaling.candidate import Candidate
from paceline.batch_scaling.findings import TargetMetric, Verification
from paceline.batch_scaling.milestones import Milestones
from paceline.batch_scaling.plan import StudyPlan
from paceline.batch_scaling.study_jobs import StudyJobs
from paceline.batch_scaling.target import reached_in


@dataclass(frozen=True)
class ToTarget:
    """A training that has reached the target."""

    samples: int
    """Samples to the first evaluation at the target."""
    smoothed_samples: float
    """Samples to the target, estimated from those to each milestone."""


@dataclass
class Trained:
    """Trainings of a candidate, or of the config as it is, to the target."""

    candidate: Candidate
    trainings: dict[int, ToTarget | None] = field(default_factory=dict)
    """By seed; None where the target was not reached."""
    problem: str = ""
    longest_seconds: float = 0.0
    """Duration of the longest training so far."""

    def result(self, seeds: Sequence[int], sample_seconds: Mapping[int, Sequence[float]]) -> Verification:
        """Return the trainings of these seeds, all of which have reached the target.

        Args:
            sample_seconds: seconds of a sample by batch size, for each turn.
        """
        turns = zip(*(sample_seconds[stage.batch_size] for stage in self.candidate.stages), strict=True)
        shares = [stage.share for stage in self.candidate.stages]
        trainings = [each for seed in seeds if (each := self.trainings[seed]) is not None]
        return Verification(
            tuple(stage.batch_size for stage in self.candidate.stages),
            tuple(each.samples for each in trainings),
            tuple(each.smoothed_samples for each in trainings),
            tuple(sum(share * each for share, each in zip(shares, turn, strict=True)) for turn in turns),
        )


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
        reached = [values for values in own.values() if reached_in(values, target) is not None]
        self._milestones = Milestones.of(target, reached)
        self.own = Trained(plan.own_candidate)
        for seed, values in own.items():
            self._add(self.own, seed, values)
        self.others: list[Trained] = []

    @property
    def own_samples(self) -> dict[int, int]:
        """Samples to the target with the config as it is, by seed."""
        return {seed: each.samples for seed, each in self.own.trainings.items() if each is not None}

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
        samples = reached_in(values, self._target)
        if samples is None:
            trained.trainings[seed] = None
            trained.problem = f"with seed {seed} the target was not reached"
        else:
            trained.trainings[seed] = ToTarget(samples, self._milestones.samples_to_target(values))
