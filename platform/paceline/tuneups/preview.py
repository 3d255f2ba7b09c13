"""What a tune-up would try, without measuring anything."""

import json
import shlex
from dataclasses import asdict, replace
from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.config.own_arms import missing_in_arms
from paceline.errors import ConfigError
from paceline.tracking.redact import redact, redact_tree
from paceline.tuneups.arms import Arm, arms_for
from paceline.tuneups.bench import LocalBench, base_of
from paceline.tuneups.facts import Facts
from paceline.tuneups.jobs import Job, part_of
from paceline.tuneups.outcome import BaselineFailed

HEADING = ("technique", "tried", "sets", "what it does, or why it is not tried")


def preview(config: ExperimentConfig) -> list[Arm]:
    """The techniques that a tune-up would try on hardware like this machine's, and the others, with the reason; without
    what would mend the bottleneck, since that is not known yet. Builds the model and the data in this process.

    Raises:
        ConfigError: a module that the config names is missing.
        BaselineFailed: the model or the data cannot be built.
    """
    if problems := [*missing_modules(config.model_dump()), *missing_in_arms(config)]:
        raise ConfigError(problems)
    alone = config.with_overrides({"scaling": {**config.scaling.model_dump(), "num_workers": 0, "min_workers": None}})
    answer = LocalBench(base_of(alone, None), alone).do(Job("look", (part_of(config),)))
    if answer.problem:
        raise BaselineFailed(f"the baseline cannot be built: {answer.problem}", "build")
    return arms_for(config, replace(Facts(**answer.values), world_size=max(1, config.scaling.num_workers)))


def rows_of(arms: list[Arm]) -> list[tuple[str, str, str, str]]:
    """A row for each technique, those that are tried first; secrets in values are hidden."""
    return [_row(arm) for arm in sorted(arms, key=lambda arm: bool(arm.why_not))]


def _row(arm: Arm) -> tuple[str, str, str, str]:
    changes = " ".join(shlex.quote(f"{key}={_plain(value)}") for key, value in redact_tree(arm.overrides).items())
    return arm.name, "no" if arm.why_not else "yes", changes, redact(arm.why_not or arm.why)


def _plain(value: Any) -> str:
    """A value as an override takes it, such as `null` and `true`."""
    return value if isinstance(value, str) else json.dumps(value)


def plain_values(arms: list[Arm]) -> dict[str, Any]:
    """For `--json`; secrets in values are hidden."""
    return {"arms": [redact_tree(asdict(arm)) for arm in arms]}
