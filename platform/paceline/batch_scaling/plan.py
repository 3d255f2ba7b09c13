"""Configs of a study: the config as it is, its branches, and the verified candidates."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import exp, gcd, inf, sqrt
from typing import Any

from paceline.batch_scaling.candidate import BatchStage, Candidate
from paceline.batch_scaling.critical_batch import LOSS, Rule
from paceline.batch_scaling.findings import TargetMetric
from paceline.batch_scaling.noise_overrides import noise_overrides
from paceline.batch_scaling.unstudied import check_sizes, unstudied
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.scale import ScaleConfig
from paceline.direction import default_mode
from paceline.errors import ConfigError

EVALUATIONS, EVALUATION_STEPS = 40, 16
"""Target number of evaluations over the config's training length; their interval is a multiple of this many steps."""
POINTS = (0.2, 0.35)
"""Shares of that length after which branches begin, besides those from the start; not before the warmup is over."""
HALF_BRANCH = 64
"""Optimizer steps of each half of a branch from a checkpoint. Only the second one counts: the first steps after a
change are unlike those of a training that had the batch all along."""
MOST_SHARE = 0.5
"""Longest such branch, as a share of the config's training length."""
START_SHARE = 0.7
"""Share of the samples to the target up to which branches from the start are compared, where there are no others: after
half of them, they say too little of larger batches, 0.85 where 0.97 is right."""
GIVEN_UP = 1.5
"""A branch from the start ends after this many times the samples that the config's own batch takes."""
FEWEST_STEPS = 8
"""Fewest optimizer steps of a branch from the start up to the last loss at which it is compared, if it uses its samples
as well as the config's own batch. More would leave out sizes that tell something: with `configs/mnist_batch_lr.yaml`
they are 14 with a batch of 512, by whose low efficiency the critical batch size is found."""
AVERAGED_STEPS = 32
"""Steps of the config's own batch; weights are averaged over the samples of this many steps."""
MOST_DOUBLINGS = 4
NEVER = 10**12
WARMUP_SHARE = 0.05
"""Length of the warmup, as a share of the samples, for a larger batch where the config has none."""
MOST_WARMUP = 0.2
"""The longest share of the steps that a warmup of the config, given in steps, may get with a larger batch."""
STOPPERS = ("early_stopping", "time_limit")
SEGMENT = "paceline.batch_scaling.segment:Segment"
AVERAGE = "paceline.batch_scaling.segment:TrailingAverage"


@dataclass(frozen=True)
class StudyPlan:
    """Plan of a study, derived from the config and from facts about its model and data."""

    config: ExperimentConfig
    own_batch_size: int
    own_lr: float
    """Peak learning rate of the config as it is."""
    train_samples: int
    steps: int
    """Optimizer steps of the config as it is."""
    warmup_steps: int
    """Number of these steps that are warmup."""
    normalises_batches: bool
    """True if the model normalises over micro-batches, so that they must not be split."""

    @classmethod
    def of(cls, config: ExperimentConfig, facts: Mapping[str, Any]) -> "StudyPlan":
        """Build the plan from the answer of `segment.look`, and check that all configs of the study are valid.

        Raises:
            ConfigError: the batch sizes of this config cannot be studied.
        """
        if problems := unstudied(config, facts):
            raise ConfigError(problems)
        plain = config.with_overrides({"sweep": None, "tuneup": None, "callbacks": _without_stoppers(config)})
        derived = derive(plain, Sizes(facts["train_samples"], 1))
        assert derived.total_steps is not None
        assert derived.lr is not None
        plan = cls(
            plain,
            derived.batch.global_batch_size,
            derived.lr,
            facts["train_samples"],
            derived.total_steps,
            derived.warmup_steps or 0,
            facts["normalises_batches"],
        )
        plan.own_config(config.seed)
        sizes = (*plan.start_sizes, *plan.batch_sizes(plan.train_samples))
        check_sizes(sizes, lambda size: (plan.at_batch(size, plan.rules[0]), plan.shares(size)))
        return plan

    @property
    def section(self) -> ScaleConfig:
        """The section `scale`."""
        return self.config.scale or ScaleConfig()

    @property
    def workers(self) -> int:
        """Number of worker processes."""
        return max(1, self.config.scaling.num_workers)

    @property
    def samples(self) -> int:
        """Samples of the config's length of training, at most."""
        return self.steps * self.own_batch_size

    @property
    def seeds(self) -> list[int]:
        """Seeds of the verification."""
        return [self.config.seed + number for number in range(self.section.seeds)]

    @property
    def target(self) -> TargetMetric | None:
        """Target metric of the section `scale`; None if the target follows from the training of the config as it is."""
        if self.section.target is None:
            return None
        ((name, value),) = self.section.target.items()
        return TargetMetric(name, value, self.section.mode or default_mode(name))

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Rules of branches, in the order in which they are tried: the one that fits the optimizer, the other fixed
        one, and `adascale` where it is possible, which is for SGD with several gradients in each step."""
        fixed: tuple[Rule, Rule] = ("linear", "sqrt")
        if self.config.optimizer.lr_scaling_rule == "sqrt":
            fixed = ("sqrt", "linear")
        with suppress(ConfigError):
            self.config.with_overrides(self._rule("adascale"))
            return *fixed, "adascale"
        return fixed

    @property
    def evaluation_steps(self) -> int:
        """Steps of the config's own batch between two evaluations."""
        return EVALUATION_STEPS * max(1, round(self.steps / EVALUATIONS / EVALUATION_STEPS))

    @property
    def point_steps(self) -> list[int]:
        """Optimizer steps after which branches begin."""
        every, warmup = self.evaluation_steps, self.warmup_steps
        return sorted({max(1, round(max(share * self.steps, warmup) / every)) * every for share in POINTS})

    def start_samples(self, reached: int) -> int:
        """Return the samples of the config's own batch up to which branches from the start are compared: to the first
        checkpoint where others begin there.

        Args:
            reached: samples that it takes to the target.
        """
        first = min(self._first_point, reached)
        return first if self.branch_sizes else max(first, round(START_SHARE * reached))

    @property
    def _first_point(self) -> int:
        return self.point_steps[0] * self.own_batch_size

    @property
    def start_sizes(self) -> list[int]:
        """Batch sizes that branches from the start may have, the smallest first; up to three are tried."""
        most = self.start_samples(self.samples)
        return [size for size in self._doubled if FEWEST_STEPS * size <= most]

    @property
    def branch_sizes(self) -> list[int]:
        """Batch sizes of the branches from checkpoints; empty where the training is too short for them. Every other
        doubling is enough, since the fitted curve has one unknown."""
        longest = MOST_SHARE * self.samples
        return [
            size for size in self._doubled[1::2] if 2 * HALF_BRANCH * size <= longest and size > 2 * self.own_batch_size
        ]

    @property
    def own_seeds(self) -> list[int]:
        """Seeds with which the config as it is is trained before the branches: all of them where it is too short for
        branches from checkpoints, since one training says little about the samples to the target."""
        return self.seeds[:1] if self.branch_sizes else self.seeds

    @property
    def _doubled(self) -> list[int]:
        sizes = (self.own_batch_size * 2**each for each in range(1, MOST_DOUBLINGS + 1))
        return [size for size in sizes if size <= self.train_samples]

    def batch_sizes(self, largest_trained: int) -> list[int]:
        """Return the batch sizes of the table: the own and the requested ones, or up to twice the largest trained."""
        if self.section.batch_sizes != "auto":
            return sorted({self.own_batch_size, *self.section.batch_sizes})
        return [size for size in (self.own_batch_size, *self._doubled) if size <= 2 * largest_trained]

    def shares(self, size: int) -> tuple[int, int]:
        """Return the micro-batch size and the number of accumulation steps of a global batch."""
        return self.shares_of(self.at_batch(size, "none"), size)

    @staticmethod
    def shares_of(config: ExperimentConfig, size: int) -> tuple[int, int]:
        """Return the micro-batch size and the number of accumulation steps of a config."""
        batch = derive(config, None).batch
        # with `micro_batch_size: max`, neither is known in advance
        micro_batch_size = batch.micro_batch_size or max(1, size // max(1, config.scaling.num_workers))
        return micro_batch_size, batch.gradient_accumulation_steps or 1

    def lr(self, size: int, rule: Rule) -> float:
        """Return the peak learning rate at a batch size; with `adascale`, before the gain of each step."""
        rule = self._possible(rule, size)
        ratio = size / self.own_batch_size
        return self.own_lr * {"none": 1.0, "sqrt": sqrt(ratio), "linear": ratio, "adascale": 1.0}[rule]

    # --- configs

    def overrides(self, size: int, rule: Rule) -> dict[str, Any]:
        """Return the overrides for a batch size; empty for the config's own."""
        if size == self.own_batch_size:
            return {}
        rule = self._possible(rule, size)
        found: dict[str, Any] = {"data.global_batch_size": size, **self._rule(rule)}
        if self.config.trainer.max_steps is not None:
            found["trainer.max_steps"] = self._steps_of(self.config.trainer.max_steps * self.own_batch_size, size)
        if warmup := self.config.lr_scheduler.warmup_steps:
            # a warmup given in steps keeps its number of steps: Adam's second moments need them at any batch size
            most = round(MOST_WARMUP * self.samples / size)
            found["lr_scheduler.warmup_steps"] = max(1, min(warmup, most))
        if not self._has_warmup and rule in ("linear", "sqrt"):  # adascale's gain follows the noise from the start on
            found["lr_scheduler.warmup_samples"] = round(WARMUP_SHARE * self.samples)
        if self.config.trainer.noise_scale and size < self.own_batch_size:  # it may have only one gradient
            found["trainer.noise_scale"] = False
        return found

    @property
    def _has_warmup(self) -> bool:
        schedule = self.config.lr_scheduler
        lengths = (schedule.warmup_epochs, schedule.warmup_steps, schedule.warmup_samples)
        return any(each is not None for each in lengths)

    @property
    def own_candidate(self) -> Candidate:
        """The config as it is."""
        return Candidate((BatchStage(0, self.own_batch_size, 1.0),), "none", inf, inf)

    def overrides_of(self, candidate: Candidate) -> dict[str, Any]:
        """Return the overrides for a candidate."""
        first, *others = candidate.stages
        found = self.overrides(first.batch_size, candidate.rule)
        if not others:
            return found
        stages = [{"samples": each.start_samples, "global_batch_size": each.batch_size} for each in candidate.stages]
        found |= {"data.global_batch_size": None, "data.batch_size_schedule": stages, **self._rule(candidate.rule)}
        if self.config.trainer.max_steps is not None:
            rest = self.config.trainer.max_steps * self.own_batch_size
            steps = 0
            for each, following in zip(candidate.stages, [*candidate.stages[1:], None], strict=True):
                length = rest if following is None else min(rest, following.start_samples - each.start_samples)
                steps, rest = steps + self._steps_of(length, each.batch_size), rest - length
            found["trainer.max_steps"] = steps
        return found

    def at_batch(self, size: int, rule: Rule) -> ExperimentConfig:
        """Return the config with another batch size."""
        return self.config.with_overrides(self.overrides(size, rule))

    def own_config(self, seed: int) -> ExperimentConfig:
        """Return the config as it is with a seed. With the first seed it measures the noise scale, and saves
        checkpoints where branches begin."""
        target, is_first = self.target, seed == self.seeds[0]
        points = self.point_steps if is_first and self.branch_sizes else []
        noise = noise_overrides(self.config, self.steps, self.normalises_batches) if is_first else {}
        return self._watched(
            self.config.with_overrides({"seed": seed, **noise, **_saving}),
            self.evaluation_steps,
            {"save_at_steps": points, **({} if target is None else _goal(target))},
        )

    def branch_config(self, start_samples: int, start_step: int, size: int, rule: Rule) -> ExperimentConfig:
        """Return the config that continues from a checkpoint with another batch, and is evaluated after each half."""
        # evaluations are at multiples of a number of steps that divides both ends; an epoch's last batch is short
        until = start_samples + round(1.75 * HALF_BRANCH) * size
        return self._branch(start_samples, start_step, size, rule, gcd(start_step, HALF_BRANCH), until)

    def reference_config(self, start_samples: int, start_step: int, goal: float | None) -> ExperimentConfig:
        """Return the config that continues from a checkpoint with its own batch, evaluated where the halves of branches
        are compared with it. It ends at the lowest loss of the branches, or after as many samples as the longest."""
        until = start_samples + 2 * HALF_BRANCH * max(self.branch_sizes)
        size, every = self.own_batch_size, gcd(start_step, HALF_BRANCH)
        return self._branch(start_samples, start_step, size, "none", every, until, goal)

    def start_config(
        self, size: int, rule: Rule, goal: float, until: int, deadlines: Sequence[tuple[int, float]] = ()
    ) -> ExperimentConfig:
        """Return the config that trains with a batch size from the start until it reaches a loss. It is evaluated as
        often, in samples, as the config's own batch.

        Args:
            deadlines: pairs of samples and a loss: it is given up if it has not reached that loss by then.
        """
        every = max(1, round(self.evaluation_steps * self.own_batch_size / size))
        segment = {**_goal(TargetMetric(LOSS, goal, "min")), "until_samples": until, "deadlines": list(deadlines)}
        return self._watched(self.at_batch(size, rule), every, segment)

    def _branch(
        self,
        start_samples: int,
        start_step: int,
        size: int,
        rule: Rule,
        every: int,
        until: int,
        goal: float | None = None,
    ) -> ExperimentConfig:
        stages = [
            {"samples": 0, "global_batch_size": self.own_batch_size},
            {"samples": start_samples, "global_batch_size": size},
        ]
        # average over the same number of samples in each branch, not the same number of steps
        decay = exp(-size / (AVERAGED_STEPS * self.own_batch_size))
        average = {"path": AVERAGE, "args": {"decay": decay}}
        overrides: dict[str, Any] = {
            "data.global_batch_size": None,
            "data.batch_size_schedule": stages,
            "callbacks": [*(each for each in self.config.callbacks if each.describe() != "ema"), average],
            **self._rule(rule),
            **_saving,
        }
        if self.config.trainer.max_steps is not None:  # the same length in samples
            overrides["trainer.max_steps"] = start_step + self._steps_of(self.samples - start_samples, size)
        segment = {} if goal is None else _goal(TargetMetric(LOSS, goal, "min"))
        return self._watched(self.config.with_overrides(overrides), every, {**segment, "until_samples": until})

    @staticmethod
    def _steps_of(samples: int, size: int) -> int:
        return max(1, -(-samples // size))

    def verification_config(self, candidate: Candidate, seed: int, target: TargetMetric) -> ExperimentConfig:
        """Return the config that trains a candidate to the target."""
        config = self.config.with_overrides({**self.overrides_of(candidate), "seed": seed})
        every = max(1, round(self.evaluation_steps * self.own_batch_size / candidate.largest))
        return self._watched(config, every, _goal(target))

    def _watched(self, config: ExperimentConfig, every: int, segment: Mapping[str, Any]) -> ExperimentConfig:
        callbacks = [*config.callbacks, {"path": SEGMENT, "args": dict(segment)}]
        return config.with_overrides(
            {
                "callbacks": callbacks,
                "trainer.evaluate_every_n_steps": every,
                "trainer.evaluate_every_n_epochs": 0,
                "scale": None,
            }
        )

    def _possible(self, rule: Rule, size: int) -> Rule:
        """Return another rule in place of `adascale` for a smaller batch, which may have only one gradient."""
        return self.rules[0] if rule == "adascale" and size < self.own_batch_size else rule

    def _rule(self, rule: Rule) -> dict[str, Any]:
        found: dict[str, Any] = {"optimizer.lr": self.own_lr, "optimizer.lr_scaling": rule}
        if rule != "none":
            found["optimizer.base_batch_size"] = self.own_batch_size
        has_both = self.config.data.micro_batch_size and self.config.trainer.gradient_accumulation_steps != "auto"
        if has_both:  # the micro-batches stay, and their number follows
            found["trainer.gradient_accumulation_steps"] = "auto"
        if rule == "adascale" and self.config.trainer.noise_scale:  # either one sets the gradients of a step aside
            found["trainer.noise_scale"] = False
        return found


def _goal(target: TargetMetric) -> dict[str, Any]:
    return {"metric": target.name, "target": target.value, "mode": target.mode}


def _without_stoppers(config: ExperimentConfig) -> list[Any]:
    """Return the callbacks without those that stop a training early, since a study has its own limits."""
    return [each for each in config.callbacks if each.describe() not in STOPPERS]


_saving: Mapping[str, Any] = {
    "checkpoint.every_n_steps": NEVER,
    "checkpoint.every_n_epochs": None,
    "checkpoint.keep": 100,
    "checkpoint.monitor": None,
}
