"""Examines a config: builds its task, runs it on stand-ins, and asks each rule."""

import copy
import logging

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from paceline.config.experiment import ExperimentConfig
from paceline.data.base import Sizes
from paceline.engine.trial_steps import undisturbed
from paceline.study.lint.building import Batches, build_batches, build_fake_task, build_task, copyable_stand_ins
from paceline.study.lint.finding import Finding
from paceline.study.lint.rules import RULES, Rule
from paceline.study.lint.subject import Subject
from paceline.study.lint.tracing import LARGEST_REAL, Trace, trace
from paceline.tasks._task import Task

_log = logging.getLogger(__name__)


def lint(config: ExperimentConfig) -> list[Finding]:
    """What of the user's model and config slows training down or breaks it, found without training; errors first.

    The model is built and run on stand-ins for tensors. Where that is not possible it is run for real, if it is small,
    or what would be seen in a run is not looked for; `paceline.study.lint` tells its logger so at the level DEBUG.

    Raises:
        UnusableCode: the model or the task cannot be built.
        ConfigError: their modules cannot be imported.
        EnvironmentFault: pretrained weights cannot be had.
    """
    with undisturbed(torch.device("cpu")), copyable_stand_ins():
        subject = examine(config)
        found = [finding for rule in RULES for finding in _ask(rule, subject)]
    return sorted(found, key=lambda finding: finding.severity != "error")


def examine(config: ExperimentConfig) -> Subject:
    """All that the rules look at."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    task = build_fake_task(config, mode)
    asleep = frozenset(name for name, module in task.named_modules() if not module.training)
    batches = _batches(config)
    seen = _seen(task, config, batches, mode)
    task.train()
    return Subject(config, task, asleep, batches, seen, _sizes(config, batches))


def _batches(config: ExperimentConfig) -> Batches | None:
    try:
        return build_batches(config)
    except Exception as error:  # the user's own code, or files that only the cluster has
        _log.debug("the data cannot be built: %s", error)
        return None


def _sizes(config: ExperimentConfig, batches: Batches | None) -> Sizes | None:
    if (known := config.data.sizes()) is not None or batches is None:
        return known
    train, validation = batches.datasets
    return Sizes(len(train), len(validation))


def _seen(task: Task, config: ExperimentConfig, batches: Batches | None, mode: FakeTensorMode) -> Trace | None:
    if batches is None:
        return None
    try:
        return trace(task, config, batches, mode)
    except Exception as error:
        _log.debug("the task cannot be run on stand-ins: %s", error)
    if sum(parameter.numel() for parameter in task.parameters()) > LARGEST_REAL:
        return None
    try:
        return trace(copy.deepcopy(build_task(config)), config, batches, None)
    except Exception as error:
        _log.debug("nor for real: %s", error)
        return None


def _ask(rule: Rule, subject: Subject) -> list[Finding]:
    name = rule.__name__.replace("_", "-")
    try:
        return [Finding(name, *fault) for fault in rule(subject)]
    except Exception as error:  # a model may be anything; the other rules still have something to say
        _log.debug("the rule %s is dropped: %s", name, error)
        return []
