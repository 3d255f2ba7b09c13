"""Examines a config: builds its task, runs it on fake tensors, and asks each rule."""

import copy
import io
import logging
import re
from contextlib import redirect_stdout
from dataclasses import replace

import torch

from paceline._compat.torch import FakeTensorMode
from paceline.config.data import Sizes
from paceline.config.experiment import ExperimentConfig
from paceline.engine.trial_steps import undisturbed
from paceline.errors import PacelineError, UnusableCode, text_of
from paceline.linting.building import (
    Batches,
    CollationFailed,
    build_batches,
    build_fake_task,
    build_task,
    may_be_loaded_whole,
    may_succeed_elsewhere,
    micro_batch,
)
from paceline.linting.fake_tensors import caches_emptied, copyable_fake_tensors, untold_failures
from paceline.linting.finding import Finding, Severity
from paceline.linting.rules import RULES, Rule
from paceline.linting.subject import Obstacle, Subject
from paceline.linting.tracing import LARGEST_REAL, TaskTrace, run_once, trace
from paceline.tasks._task import Task

_log = logging.getLogger(__name__)


def lint(config: ExperimentConfig) -> list[Finding]:
    """Find, without training, faults of the user's model and config that slow training down or break it; errors first.

    The model is built and run on fake tensors. Where that is not possible it is run for real, if it is small,
    or a finding says that what only a run shows was not looked for.

    Raises:
        UnusableCode: the model or the task cannot be built.
        ConfigError: their modules cannot be imported.
        EnvironmentFault: pretrained weights cannot be had.
    """
    quiet = redirect_stdout(io.StringIO())  # the user's code is run more often than it would be
    with undisturbed(torch.device("cpu")), copyable_fake_tensors(), caches_emptied(), untold_failures(), quiet:
        subject = examine(config)
        found = [*_unusable_code(subject), *(finding for rule in RULES for finding in _ask(rule, subject))]
        found += _parts_not_used(subject.task)
    return sorted(found, key=lambda finding: finding.severity != "error")


def examine(config: ExperimentConfig) -> Subject:
    """All that the rules look at."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    task = build_fake_task(config, mode)
    asleep = frozenset(name for name, module in task.named_modules() if not module.training)
    batches, obstacle = _batches(config)
    seen = None
    if batches is not None:
        seen, obstacle = _traced(task, config, batches, mode)
    task.train()
    return Subject(config, task, asleep, batches, seen, obstacle, _sizes(config, batches))


def _batches(config: ExperimentConfig) -> tuple[Batches | None, Obstacle | None]:
    try:
        return build_batches(config), None
    except CollationFailed as error:
        return None, Obstacle("data", str(error), ends_training=True)
    except Exception as error:  # of user code, or of files that only the cluster has
        return None, _obstacle("data", "the data cannot be loaded here", error)


def _sizes(config: ExperimentConfig, batches: Batches | None) -> Sizes | None:
    if (known := config.data.sizes()) is not None or batches is None:
        return known
    train, validation = batches.datasets.train, next(iter(batches.datasets.validation.values()))
    return Sizes(len(train), len(validation))


def _traced(
    task: Task, config: ExperimentConfig, batches: Batches, mode: FakeTensorMode
) -> tuple[TaskTrace | None, Obstacle | None]:
    """Return the trace of a run, or the reason why there is none."""
    try:
        return trace(task, config, batches, mode), None
    except Exception as error:
        obstacle = _obstacle("task", "the forward pass cannot be run without values", error)
    if sum(parameter.numel() for parameter in task.parameters()) > LARGEST_REAL:
        return None, obstacle
    try:
        return trace(copy.deepcopy(build_task(config)), config, batches, None), None
    except Exception as error:
        obstacle = _obstacle("task", "the forward pass fails", error)
        ends_training = obstacle.unusable is None and _ends_training(config, batches, error)
        return None, replace(obstacle, ends_training=ends_training)


def _ends_training(config: ExperimentConfig, batches: Batches, first: Exception) -> bool:
    """Return True if a micro-batch as large as in training fails with the same error as the first, small one.

    A model may need batches of just that size, another device, or other ranks: then training may well succeed.
    """
    if may_succeed_elsewhere(first) or not may_be_loaded_whole(config, batches):
        return False
    try:
        batch = micro_batch(config, batches.datasets)
    except Exception as error:  # of user code
        _log.debug("a whole micro-batch cannot be loaded here", exc_info=error)
        return False
    try:
        run_once(build_task(config), config, batch)
    except Exception as error:
        return _kind(error) == _kind(first)
    return False


def _kind(error: Exception) -> tuple[type, str]:
    """Return what two errors of batches of different sizes have in common."""
    return type(error), re.sub(r"\d+", "#", next(iter(text_of(error).splitlines()), ""))


def _obstacle(place: str, what: str, error: Exception) -> Obstacle:
    _log.debug(what, exc_info=error)
    first = next(iter(text_of(error).splitlines()), "")
    if isinstance(error, UnusableCode):
        return Obstacle(place, first, error)
    kind = "" if isinstance(error, PacelineError) else f"{type(error).__name__}: "
    return Obstacle(place, f"{what}: {kind}{first}")


def _unusable_code(subject: Subject) -> list[Finding]:
    """The error of user code with which training would end."""
    obstacle = subject.obstacle
    if obstacle is None or obstacle.unusable is None:
        return []
    code = obstacle.unusable.code
    return [Finding(code, obstacle.place, obstacle.reason, f"see `paceline explain {code}`", "error")]


def _parts_not_used(task: Task) -> list[Finding]:
    """Return the parts of the user's module that the task does not use, as it reports them when training begins."""
    notices: list[tuple[str, str, Severity]]
    try:
        if task.builds_optimizers:
            task.configure_optimizers(torch.optim.SGD)
        notices = [(code, message, "warning") for code, message in task.notices()]
    except UnusableCode as error:
        notices = [(error.code, error.message, "error")]
    except Exception as error:  # of user code that may need what only a training has
        _log.debug("the optimizers cannot be built here", exc_info=error)
        return []
    return [Finding(code, "task", text, f"see `paceline explain {code}`", severity) for code, text, severity in notices]


def _ask(rule: Rule, subject: Subject) -> list[Finding]:
    name = rule.__name__.replace("_", "-")
    try:
        return [Finding(name, *fault) for fault in rule(subject)]
    except Exception as error:  # a model may be anything; the other rules still have something to say
        _log.debug("the rule %s is dropped", name, exc_info=error)
        return []
