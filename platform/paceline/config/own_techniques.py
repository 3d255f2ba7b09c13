"""Configs with the custom techniques of `tuneup.techniques`, and their problems."""

from collections.abc import Iterator
from dataclasses import replace

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import missing_modules
from paceline.errors import ConfigError, Problem


def own_techniques(config: ExperimentConfig) -> Iterator[tuple[str, ExperimentConfig]]:
    """Yield the key of each custom technique, such as `tuneup.techniques.mine`, and the config with the technique.

    Techniques that contradict the config are left out: the tune-up reports them in its table.
    """
    for name, overrides in (config.tuneup.techniques if config.tuneup is not None else {}).items():
        try:
            changed = config.with_overrides(overrides)
        except ConfigError:
            continue
        yield f"tuneup.techniques.{name}", changed


def missing_in_techniques(config: ExperimentConfig) -> list[Problem]:
    """Return the problems found by `missing_modules` that the config has only with a custom technique."""
    own = missing_modules(config.model_dump())
    found = []
    for key, changed in own_techniques(config):
        for problem in missing_modules(changed.model_dump()):
            if problem not in own:
                found.append(replace(problem, key=key, reason=f"{problem.key}: {problem.reason}"))
    return found
