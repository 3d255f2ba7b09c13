"""Branches of a training: from the start, and from checkpoints of the config as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from paceline.batch_scaling.critical_batch import (
    LOSS,
    Branch,
    LossCurve,
    Rule,
    best_rule,
    branch_from_start,
    branch_of,
    efficiencies,
    ended_finite,
    expected_efficiency,
    fitted_critical_batch,
    is_far_beyond,
    losses_of,
)
from paceline.batch_scaling.lr_rules import STEPS_SAVED
from paceline.batch_scaling.plan import FEWEST_STEPS, GIVEN_UP, StudyPlan
from paceline.batch_scaling.study_jobs import StudyJobs
from paceline.cluster.listener import Stages

LEAST_PROGRESS = 0.25
"""Share of the way from the first loss to that at the target which the config as it is has gone before branches from
the start are compared with it."""
COMPARED = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Shares of the reference at whose losses branches from the start are compared with it. Over 12 to 16 seeds, in three
models with 4 or 8 times the batch, the logarithm of the efficiency then scatters by 0.09 to 0.18."""
NEARLY_BEST = 0.8
"""Efficiency of a branch from the start from which on no other rule is tried."""
AS_EXPECTED = 0.8
"""The same for further batch sizes, as a share of what the others let expect."""
HOPELESS = 1 / 3
"""A branch from the start is given up early if, after as many samples as the reference has, it has not reached the loss
that the reference had after this share of them."""
LEAST_EXPECTED = 0.45
"""Least efficiency expected of a further batch size to try: beyond, a learning rate breaks rather than a batch size
loses."""
BROKEN = 0.7
"""Share of the best rule's efficiency below which a rule is not tried with larger batches."""
MOST_TRIED = 3
"""Batch sizes that are tried from the start, until two of them tell something."""


def train_branches(
    plan: StudyPlan, jobs: StudyJobs, listener: Stages, own: Mapping[str, Any], reached: int
) -> list[Branch]:
    """Train larger batches at each point of training; empty, with a note, where that says nothing.

    Args:
        own: the answer to the training of the config as it is with the first seed, which all branches have.
        reached: samples that it took to the target.
    """
    losses = losses_of(own)
    if len(losses) < 2 or not all(isfinite(loss) for _, loss in losses):
        jobs.notes.append(f"the task reports no finite {LOSS}: the critical batch size is not measured")
        return []
    listener.stage("branches from the start")
    found = _from_start(plan, jobs, _Reference.of(losses, plan.start_samples(reached), reached))
    if not plan.branch_sizes:
        jobs.notes.append("the training is too short for branches from its checkpoints: all begin at its start")
        return found
    points = [(start, name) for start, name in own["saved"] if start < min(reached, losses[-1][0])]
    rules = {branch.batch_size: branch.rule for branch in found if branch.rule == best_rule(found, branch)}
    for number, (start, name) in enumerate(points, 1):
        listener.stage(f"branches after {start:,} samples ({number} of {len(points)})")
        found += _from_checkpoint(plan, jobs, _Point(start, name), rules)
    return found


@dataclass(frozen=True)
class _Reference:
    """The training of the config as it is, as far as branches from the start are compared with it."""

    curve: LossCurve
    length: int
    """Samples."""
    goals: tuple[float, ...]
    """Losses on its last part, falling; the last one is that at its end."""

    @classmethod
    def of(cls, losses: Sequence[tuple[int, float]], length: int, reached: int) -> "_Reference":
        """Build it, longer where the config has hardly made progress by then: any branch has the losses before at once,
        since that of a deep model may rise during its warmup.

        Args:
            losses: samples and loss of each evaluation.
            length: samples.
            reached: samples to the target, where it ends at the latest.
        """
        curve, first = LossCurve.of(losses), losses[0][1]
        begun = min(reached, ceil(curve.samples_to(first - LEAST_PROGRESS * (first - curve.loss_at(reached)))))
        length = max(length, begun)
        return cls(curve, length, tuple(curve.loss_at(max(begun, share * length)) for share in COMPARED))


def _from_start(plan: StudyPlan, jobs: StudyJobs, own: _Reference) -> list[Branch]:
    """Train larger batches until they have the loss at the end of the reference."""
    found: list[Branch] = []
    left = [size for size in plan.start_sizes if FEWEST_STEPS * size <= own.length]
    size = left[:2][-1] if left else None
    for _ in range(MOST_TRIED):
        if size is None:
            break
        is_trained = _train_size(plan, jobs, own, size, found)
        left.remove(size)
        if not is_trained or is_far_beyond(found, size):
            left = [each for each in left if each < size]
        elif len({branch.batch_size for branch in found if not is_far_beyond(found, branch.batch_size)}) > 1:
            break  # the fitted curve has one unknown
        size = _next_size(left, found, plan.own_batch_size) if jobs.clock.has(0.0) else None
    return found


def _rules_for(size: int, rules: Sequence[Rule], found: Sequence[Branch]) -> list[Rule]:
    """Return the rules to try with a batch size: the best one of the next smaller size first, `none` last where nothing
    is known of it. One that broke with a smaller batch does not hold with a larger."""
    smaller = {tried: by_rule for (_, tried), by_rule in efficiencies(found).items() if tried < size}
    broken = {
        rule
        for by_rule in smaller.values()
        for rule, efficiency in by_rule.items()
        if efficiency < BROKEN * max(by_rule.values())
    }
    nearest = smaller[max(smaller)] if smaller else {}
    left: list[Rule] = [rule for rule in (*rules, "none") if rule not in broken]
    return sorted(left, key=lambda rule: -nearest.get(rule, 0.0))


def _next_size(sizes: Sequence[int], found: Sequence[Branch], own_batch_size: int) -> int | None:
    """Return the largest batch size that is expected to tell something; None if there is no other size."""
    critical = _critical(found, own_batch_size)
    near = [size for size in sizes if expected_efficiency(size, own_batch_size, critical) >= LEAST_EXPECTED]
    return max(near, default=None)


def _critical(found: Sequence[Branch], own_batch_size: int) -> float:
    """Return the critical batch size from branches from the start; `inf` without any."""
    best = {
        size: max(rules.values()) for (_, size), rules in efficiencies(found).items() if not is_far_beyond(found, size)
    }
    return fitted_critical_batch(best, own_batch_size)


def _train_size(plan: StudyPlan, jobs: StudyJobs, own: _Reference, size: int, found: list[Branch]) -> bool:
    """Train with a batch size and each rule, until one is nearly as efficient as can be. Return False if one could not
    be trained.

    Args:
        found: branches with other batch sizes; those with this one are added.
    """
    rules, own_size, enough = _rules_for(size, plan.rules, found), plan.own_batch_size, NEARLY_BEST
    if found:
        enough = min(enough, AS_EXPECTED * expected_efficiency(size, own_size, _critical(found, own_size)))
    hopeless = (own.length, own.curve.loss_at(HOPELESS * own.length))
    tried: list[Branch] = []
    broken: list[Rule] = []
    is_trained = True
    for rule in rules:
        if rule == "none" and tried and not _may_be_too_high(plan, tried):
            continue
        if _breaks_too(plan, size, rule, broken):
            continue
        config = plan.start_config(size, rule, own.goals[-1], round(GIVEN_UP * own.length), [hopeless])
        values = jobs.branch(config, f"of batch {size:,} from the start")
        if values is None:
            is_trained = False
            break
        tried.append(branch_from_start(own.curve, own.goals, size, rule, values))
        if tried[-1].efficiency >= enough:
            break
        if not _has_learned(values):
            broken.append(rule)
    found += tried
    return is_trained


def _breaks_too(plan: StudyPlan, size: int, rule: Rule, broken: Sequence[Rule]) -> bool:
    """Return True if a rule has a higher learning rate than one that broke. That of `adascale` depends on the noise."""
    fixed = [each for each in broken if each != "adascale"]
    return rule != "adascale" and any(plan.lr(size, rule) > plan.lr(size, each) for each in fixed)


def _may_be_too_high(plan: StudyPlan, branches: Sequence[Branch]) -> bool:
    """Return True if the learning rate of the config itself may be the best one: the lowest tried is the best, or none
    saves steps, so that what they lost is due to the learning rate."""
    best = max(branches, key=lambda branch: branch.efficiency)
    lowest = min(branches, key=lambda branch: plan.lr(branch.batch_size, branch.rule))
    return best is lowest or best.efficiency < STEPS_SAVED * plan.own_batch_size / best.batch_size


@dataclass(frozen=True)
class _Point:
    """A point of training at which branches begin."""

    samples: int
    checkpoint: str
    """Name of its folder, such as `step-48`."""

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return int(self.checkpoint.partition("-")[2])


def _from_checkpoint(plan: StudyPlan, jobs: StudyJobs, point: _Point, rules: Mapping[int, Rule]) -> list[Branch]:
    """Train with larger batches, then with the config's own as far as these came.

    Args:
        rules: that was the best one from the start, by batch size; a size that was not tried there has the rule of the
            next smaller one.
    """
    trained: list[tuple[int, Rule, Mapping[str, Any]]] = []
    for size in plan.branch_sizes:
        begun = f"of batch {size:,} after {point.samples:,} samples"
        first = rules[max(tried for tried in rules if tried <= size)] if rules else plan.rules[0]
        broken: list[Rule] = []
        for rule in dict.fromkeys((first, *plan.rules)):
            if _breaks_too(plan, size, rule, broken):
                continue
            config = plan.branch_config(point.samples, point.step, size, rule)
            values = jobs.branch(config, begun, point.checkpoint)
            if values is None:
                return []
            trained.append((size, rule, values))
            if _has_learned(values):
                break
            broken.append(rule)
    ends = [losses_of(values)[-1][1] for _, _, values in trained if _has_learned(values)]
    config = plan.reference_config(point.samples, point.step, min(ends, default=None))
    reference = jobs.branch(config, f"as it is after {point.samples:,} samples", point.checkpoint)
    losses = losses_of(reference) if reference is not None else []
    if len(losses) < 2 or not all(isfinite(loss) for _, loss in losses):
        return []
    curve = LossCurve.of(losses)
    return [branch_of(point.samples, curve, size, rule, values) for size, rule, values in trained]


def _has_learned(values: Mapping[str, Any]) -> bool:
    """Return True if a branch ended with a lower loss than its first finite one."""
    finite = [loss for _, loss in losses_of(values) if isfinite(loss)]
    return ended_finite(values) and len(finite) >= 2 and finite[-1] < finite[0]
