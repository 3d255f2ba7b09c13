"""Branches of a training: from the start, and from checkpoints of the config as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Any

from paceline.batch_scaling.critical_batch import (
    LEAST_TELLING,
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
from paceline.batch_scaling.plan import GIVEN_UP, StudyPlan
from paceline.batch_scaling.study_jobs import StudyJobs
from paceline.cluster.listener import Stages

LEAST_PROGRESS = 0.25
"""Share of the way from the first loss to that at the target which the config as it is has gone before branches from
the start are compared with it."""
NEARLY_BEST = 0.9
"""Efficiency of branches from the start from which on no other rule and no other seed are tried."""
BROKEN = 0.5
"""Share of the best rule's efficiency below which a rule is not tried with larger batches."""
MOST_TRIED = 3
"""Batch sizes that are tried from the start, until two of them tell something."""


def train_branches(
    plan: StudyPlan, jobs: StudyJobs, listener: Stages, trained: Mapping[int, Mapping[str, Any]], reached: int
) -> list[Branch]:
    """Train larger batches at each point of training; empty, with a note, where that says nothing.

    Args:
        trained: the answers to the training of the config as it is, by seed.
        reached: samples that it took to the target.
    """
    losses = {seed: losses_of(values) for seed, values in trained.items()}
    if not all(len(each) >= 2 and all(isfinite(loss) for _, loss in each) for each in losses.values()):
        jobs.notes.append(f"the task reports no finite {LOSS}: the critical batch size is not measured")
        return []
    listener.stage("branches from the start")
    curves = {seed: LossCurve.of(each) for seed, each in losses.items()}
    end = _first_progress(losses, curves, min(plan.start_samples, reached), reached)
    found = _from_start(plan, jobs, curves, end)
    if not plan.branch_sizes:
        jobs.notes.append("the training is too short for branches from its checkpoints: all begin at its start")
        return found
    first = plan.seeds[0]
    points = [(start, name) for start, name in trained[first]["saved"] if start < min(reached, losses[first][-1][0])]
    rules = {branch.batch_size: branch.rule for branch in found if branch.rule == best_rule(found, branch)}
    for number, (start, name) in enumerate(points, 1):
        listener.stage(f"branches after {start:,} samples ({number} of {len(points)})")
        found += _from_checkpoint(plan, jobs, _Point(start, name), rules)
    return found


def _first_progress(
    losses: Mapping[int, Sequence[tuple[int, float]]], curves: Mapping[int, LossCurve], least: int, reached: int
) -> int:
    """Return the samples after which the config as it is has made some progress with each seed. Any branch has the
    losses before at once: that of a deep model may rise during its warmup.

    Args:
        least: samples to return where that is so by then.
        reached: samples to the target, which are returned at most.
    """
    found = least
    for seed, curve in curves.items():
        first = losses[seed][0][1]
        found = max(found, ceil(curve.samples_to(first - LEAST_PROGRESS * (first - curve.loss_at(reached)))))
    return min(found, reached)


def _from_start(plan: StudyPlan, jobs: StudyJobs, curves: Mapping[int, LossCurve], end: int) -> list[Branch]:
    """Train larger batches until they have the loss that the config's own has after `end` samples.

    Args:
        curves: of the config as it is, by seed.
    """
    found: list[Branch] = []
    left = list(plan.start_sizes)
    size = left[:2][-1] if left else None
    for _ in range(MOST_TRIED):
        if size is None:
            break
        is_trained = _train_size(plan, jobs, curves, end, size, _rules_for(size, plan.rules, found), found)
        left.remove(size)
        if not is_trained or is_far_beyond(found, size):
            left = [each for each in left if each < size]
        elif len({branch.batch_size for branch in found if not is_far_beyond(found, branch.batch_size)}) > 1:
            break  # the fitted curve has one unknown
        size = _next_size(left, found, plan.own_batch_size) if jobs.clock.has(0.0) else None
    return found


def _rules_for(size: int, rules: Sequence[Rule], found: Sequence[Branch]) -> list[Rule]:
    """Return the rules to try with a batch size: one that broke with a smaller batch does not hold with a larger."""
    broken = {
        rule
        for (_, smaller), by_rule in efficiencies(found).items()
        for rule, efficiency in by_rule.items()
        if smaller < size and efficiency < BROKEN * max(by_rule.values())
    }
    return [rule for rule in rules if rule not in broken]


def _next_size(sizes: Sequence[int], found: Sequence[Branch], own_batch_size: int) -> int | None:
    """Return the largest batch size that is expected to tell something; None if there is no other size."""
    best = {
        size: max(rules.values()) for (_, size), rules in efficiencies(found).items() if not is_far_beyond(found, size)
    }
    critical = fitted_critical_batch({size: 1 / each for size, each in best.items()}, own_batch_size)
    near = [size for size in sizes if expected_efficiency(size, own_batch_size, critical) >= LEAST_TELLING]
    return max(near, default=None)


def _train_size(
    plan: StudyPlan,
    jobs: StudyJobs,
    curves: Mapping[int, LossCurve],
    end: int,
    size: int,
    rules: Sequence[Rule],
    found: list[Branch],
) -> bool:
    """Train with a batch size: each rule with the first seed, the best one with the others. Return False if one could
    not be trained.

    Args:
        found: is extended by the branches.
    """
    rules = [*rules, "none"]
    for seed, curve in curves.items():
        own: list[Branch] = []
        for rule in rules:
            if rule == "none" and len(rules) > 1 and not _saves_no_steps(own, plan.own_batch_size):
                continue
            goal = curve.loss_at(end)
            config = plan.start_config(size, rule, seed, goal, round(GIVEN_UP * end))
            values = jobs.branch(config, f"of batch {size:,} from the start")
            if values is None:
                found += own
                return False
            own.append(branch_from_start(curve, goal, size, rule, seed, values))
            if own[-1].efficiency >= NEARLY_BEST:
                break
        found += own
        by_rule = efficiencies(found)[0, size]
        best = max(by_rule, key=lambda rule: by_rule[rule])
        if by_rule[best] >= NEARLY_BEST:
            break  # where nothing is lost, other seeds say no more
        if by_rule[best] < LEAST_TELLING:
            break  # it is far beyond the critical batch size, with other seeds as well
        rules = [best]
    return True


def _saves_no_steps(branches: Sequence[Branch], own_batch_size: int) -> bool:
    """Return True if all took about as many steps as the config's own batch does, or more: what they lost is due to the
    learning rate."""
    return all(branch.efficiency < STEPS_SAVED * own_batch_size / branch.batch_size for branch in branches)


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
            next smaller one. `none` is for the start alone.
    """
    trained: list[tuple[int, Rule, Mapping[str, Any]]] = []
    for size in plan.branch_sizes:
        begun = f"of batch {size:,} after {point.samples:,} samples"
        best = rules[max(tried for tried in rules if tried <= size)] if rules else "none"
        first = plan.rules[0] if best == "none" else best
        for rule in (first, *(each for each in plan.rules if each != first)):
            config = plan.branch_config(point.samples, point.step, size, rule)
            values = jobs.branch(config, begun, point.checkpoint)
            if values is None:
                return []
            trained.append((size, rule, values))
            if _has_learned(values):
                break
    ends = [losses_of(values)[-1][1] for _, _, values in trained if _has_learned(values)]
    config = plan.reference_config(point.samples, point.step, min(ends, default=None))
    reference = jobs.branch(config, f"as it is after {point.samples:,} samples", point.checkpoint)
    losses = losses_of(reference) if reference is not None else []
    if len(losses) < 2 or not all(isfinite(loss) for _, loss in losses):
        return []
    curve = LossCurve.of(losses)
    return [branch_of(point.samples, curve, size, rule, plan.seeds[0], values) for size, rule, values in trained]


def _has_learned(values: Mapping[str, Any]) -> bool:
    """Return True if a branch ended with a lower loss than its first finite one."""
    finite = [loss for _, loss in losses_of(values) if isfinite(loss)]
    return ended_finite(values) and len(finite) >= 2 and finite[-1] < finite[0]
