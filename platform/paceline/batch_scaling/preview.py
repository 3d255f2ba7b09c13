"""Preview of a study: the trainings and batch sizes that it would compare, without training anything."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.batch_scaling.critical_batch import Rule
from paceline.batch_scaling.findings import StudyFailed
from paceline.batch_scaling.folder import SCALE
from paceline.batch_scaling.other_workers import worker_counts
from paceline.batch_scaling.plan import GIVEN_UP, HALF_BRANCH, StudyPlan
from paceline.batch_scaling.segment import LOOK
from paceline.batch_scaling.speedup import LEVELS, looks
from paceline.batch_scaling.target import OWN_TARGET_SHARE
from paceline.batch_scaling.texts import start_text
from paceline.bench.bench import LocalBench
from paceline.bench.jobs import Job, part_of
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.errors import ConfigError
from paceline.redaction import redact, redact_tree

AS_IT_IS, BRANCH, REFERENCE, VERIFICATION = "as it is", "branch", "reference of branches", "verification"
"""Names of the trainings."""
TRAININGS = ("training", "batch", "rule", "seeds", "samples at the most")
SIZES = ("batch", "workers", "lr", "micro-batch", "accumulation", "")


@dataclass(frozen=True)
class PlannedTraining:
    """Trainings that differ only in their rule and their seed."""

    name: str
    """`as it is`, `branch`, `reference of branches` or `verification`."""
    start_samples: int
    """Samples of the config's own training before it begins."""
    batch_size: int | None
    """Global batch size; None if it depends on earlier measurements."""
    rules: tuple[Rule, ...]
    """Learning-rate rules in the order of trial, but a larger size begins with the best one of a smaller. A later rule
    is tried only if the earlier ones lose samples."""
    seeds: tuple[int, ...]
    most_samples: int
    """Upper limit of the training samples of all of them together. Branches from the start take more where the loss of
    the config as it is has hardly fallen by the first checkpoint."""


@dataclass(frozen=True)
class PlannedSize:
    """A batch size with a number of workers, for which the time to the target is predicted.

    It is left out where smaller batches lose so much that no branch comes near it.
    """

    global_batch_size: int
    workers: int
    lr: float
    """Peak learning rate, by the optimizer's usual rule."""
    micro_batch_size: int
    gradient_accumulation_steps: int
    is_extrapolated: bool
    """True if it is not measured; with another number of workers than the config's, it is where there is room."""


@dataclass(frozen=True)
class ScalePreview:
    """Planned trainings and batch sizes of a study."""

    plan: StudyPlan
    trainings: tuple[PlannedTraining, ...]
    sizes: tuple[PlannedSize, ...]

    @classmethod
    def of(cls, plan: StudyPlan) -> "ScalePreview":
        """Build the preview with everything that a study may train; most studies train less."""
        trainings = (_own(plan), *_from_start(plan), *_from_checkpoints(plan))
        return cls(plan, (*trainings, *(_verification(plan) if plan.section.verify else [])), tuple(_sizes(plan)))

    @property
    def most_samples(self) -> int:
        """Upper limit of the training samples of the study."""
        return sum(each.most_samples for each in self.trainings)

    @property
    def target_text(self) -> str:
        """`val/accuracy >= 0.96`."""
        share = f"{100 * OWN_TARGET_SHARE:.0f} %"
        own = f"val/loss of the config as it is after {share} of its training"
        return own if self.plan.target is None else self.plan.target.text

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `paceline scale --dry-run --json` prints, without secrets."""
        target = self.plan.target
        content: Mapping[str, Any] = {
            "target": None if target is None else {target.name: target.value},
            "budget_seconds": self.plan.section.budget_seconds,
            "own_batch_size": self.plan.own_batch_size,
            "train_samples": self.plan.train_samples,
            "seeds": self.plan.seeds,
            "trainings": [asdict(each) for each in self.trainings],
            "most_samples": self.most_samples,
            "table": [asdict(each) for each in self.sizes],
        }
        return dict(redact_tree(content))

    def tables(self) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
        """Return the tables of trainings and of batch sizes, each as its heading and its rows."""
        return [
            (TRAININGS, [_training_row(each) for each in self.trainings]),
            (SIZES, list(map(_size_row, self.sizes))),
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows below the tables, as label and text."""
        plan = self.plan
        return [
            ("target", redact(self.target_text)),
            ("as it is", f"{plan.steps:,} steps of batch {plan.own_batch_size:,}, {plan.samples:,} samples"),
            ("samples", f"{self.most_samples:,} at the most"),
            ("budget", f"{plan.section.budget_seconds:,.0f} s"),
        ]


def preview(config: ExperimentConfig) -> ScalePreview:
    """Return the preview of a study of the config. Builds the model and the data in this process.

    Args:
        config: with its section `scale`.

    Raises:
        ConfigError: a module that the config names is missing, or its batch sizes cannot be studied.
        StudyFailed: the model or the data cannot be built.
    """
    if problems := missing_modules(config.model_dump()):
        raise ConfigError(problems)
    alone = config.with_overrides({"scaling": {**config.scaling.model_dump(), "num_workers": 0, "min_workers": None}})
    answer = LocalBench(alone, SCALE).do(Job(LOOK, (part_of(config),)))
    if answer.problem:
        raise StudyFailed(f"the config as it is cannot be built: {answer.problem}", "baseline-failed")
    return ScalePreview.of(StudyPlan.of(config, answer.values))


def _own(plan: StudyPlan) -> PlannedTraining:
    seeds = tuple(plan.own_seeds)
    return PlannedTraining(AS_IT_IS, 0, plan.own_batch_size, (), seeds, len(seeds) * plan.samples)


def _rules(plan: StudyPlan) -> tuple[Rule, ...]:
    return (*plan.rules, "none")


def _from_start(plan: StudyPlan) -> list[PlannedTraining]:
    rules = _rules(plan)
    until = round(GIVEN_UP * plan.start_samples(plan.samples))
    found = []
    for size in plan.start_sizes:
        every = plan.start_config(size, rules[0], 0.0, until).trainer.evaluate_every_n_steps or 1
        longest = min(-(-until // (every * size)) * every, -(-plan.samples // size)) * size
        found.append(PlannedTraining(BRANCH, 0, size, rules, tuple(plan.seeds[:1]), len(rules) * longest))
    return found


def _from_checkpoints(plan: StudyPlan) -> list[PlannedTraining]:
    found = []
    for step in plan.point_steps if plan.branch_sizes else ():
        start, seeds = step * plan.own_batch_size, (plan.seeds[0],)
        for size in plan.branch_sizes:
            # where `none` comes first and breaks, no fixed rule is tried
            most = len(plan.rules) * 2 * HALF_BRANCH * size
            found.append(PlannedTraining(BRANCH, start, size, _rules(plan), seeds, most))
        most = 2 * HALF_BRANCH * max(plan.branch_sizes)
        found.append(PlannedTraining(REFERENCE, start, plan.own_batch_size, (), seeds, most))
    return found


def _verification(plan: StudyPlan) -> list[PlannedTraining]:
    most_seeds = looks(len(plan.seeds))[-1]
    seeds = tuple(range(plan.seeds[0], plan.seeds[0] + most_seeds))
    others = seeds[len(plan.own_seeds) :]
    own = PlannedTraining(VERIFICATION, 0, plan.own_batch_size, (), others, len(others) * plan.samples)
    # one larger batch is trained where none is predicted to be faster, and one candidate at most with further seeds
    most = (1 + (len(LEVELS) - 1) * len(plan.seeds) + most_seeds) * plan.samples
    return [own, PlannedTraining(VERIFICATION, 0, None, (), seeds, most)]


def _sizes(plan: StudyPlan) -> list[PlannedSize]:
    largest = max(plan.start_sizes, default=plan.own_batch_size)
    found = []
    for size in plan.batch_sizes(largest):
        micro_batch_size, accumulation = plan.shares(size)
        for count in worker_counts(plan):
            if size % count:
                continue
            is_measured = count == plan.workers and plan.own_batch_size <= size <= largest
            micro = micro_batch_size if count == plan.workers else min(micro_batch_size, size // count)
            steps = accumulation if count == plan.workers else -(-size // (micro * count))
            found.append(PlannedSize(size, count, plan.lr(size, plan.rules[0]), micro, steps, not is_measured))
    return found


def _training_row(training: PlannedTraining) -> tuple[str, ...]:
    start = f", {start_text(training.start_samples)}" if training.name in (BRANCH, REFERENCE) else ""
    size = "the candidates" if training.batch_size is None else f"{training.batch_size:,}"
    seeds = ", ".join(map(str, training.seeds))
    return f"{training.name}{start}", size, ", ".join(training.rules), seeds, f"{training.most_samples:,}"


def _size_row(size: PlannedSize) -> tuple[str, ...]:
    numbers = (size.global_batch_size, size.workers, size.lr, size.micro_batch_size, size.gradient_accumulation_steps)
    return *(f"{each:,.4g}" if isinstance(each, float) else f"{each:,}" for each in numbers), _mark(size)


def _mark(size: PlannedSize) -> str:
    return "extrapolated" if size.is_extrapolated else "measured"
