"""Techniques that a tune-up would try, without measuring anything."""

import json
import shlex
from dataclasses import asdict, replace
from typing import Any

from paceline.batch_scaling.earlier_study import earlier_study
from paceline.bench.bench import LocalBench
from paceline.bench.jobs import Job, part_of
from paceline.cluster.run_folder import storage_folder
from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.config.own_techniques import missing_in_techniques
from paceline.errors import ConfigError
from paceline.places import default_address
from paceline.redaction import redact, redact_tree
from paceline.tuneups.facts import LOOK, TuneupFacts
from paceline.tuneups.folder import TUNEUP
from paceline.tuneups.outcome import BaselineFailed
from paceline.tuneups.techniques import Technique, techniques_for

HEADING = ("technique", "tried", "sets", "what it does, or why it is not tried")


def preview(config: ExperimentConfig) -> list[Technique]:
    """The techniques that a tune-up would try on hardware like this machine's, and the others, with the reason; without
    the fixes of the bottleneck, since that is not known yet. Builds the model and the data in this process.

    Raises:
        ConfigError: a module that the config names is missing, or tune-ups cannot be kept in its storage.
        BaselineFailed: the model or the data cannot be built.
    """
    if problems := [*missing_modules(config.model_dump()), *missing_in_techniques(config)]:
        raise ConfigError(problems)
    alone = config.with_overrides({"scaling": {**config.scaling.model_dump(), "num_workers": 0, "min_workers": None}})
    answer = LocalBench(alone, TUNEUP).do(Job(LOOK, (part_of(config),)))
    if answer.problem:
        raise BaselineFailed(f"the baseline cannot be built: {answer.problem}", "build")
    study = earlier_study(config, storage_folder(config) / config.name)
    workers = max(1, config.scaling.num_workers)
    facts = replace(
        TuneupFacts(**answer.values),
        world_size=workers,
        scale_study=study,
        shares_machines=config.scaling.num_workers > 0 and default_address() is not None,
    )
    return techniques_for(config, facts)


def rows_of(techniques: list[Technique]) -> list[tuple[str, str, str, str]]:
    """A row for each technique, those that are tried first; secrets in values are hidden."""
    return [_row(technique) for technique in sorted(techniques, key=lambda technique: bool(technique.why_not))]


def _row(technique: Technique) -> tuple[str, str, str, str]:
    changes = " ".join(shlex.quote(f"{key}={_plain(value)}") for key, value in redact_tree(technique.overrides).items())
    return technique.name, "no" if technique.why_not else "yes", changes, redact(technique.why_not or technique.why)


def _plain(value: Any) -> str:
    """A value as an override takes it, such as `null` and `true`."""
    return value if isinstance(value, str) else json.dumps(value)


def plain_values(techniques: list[Technique]) -> dict[str, Any]:
    """For `--json`; secrets in values are hidden."""
    return {"techniques": [redact_tree(asdict(technique)) for technique in techniques]}
