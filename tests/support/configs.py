"""The least config of a user's own code, changes of it, and what is wrong with others."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig, validate
from paceline.errors import ConfigError, Problem

TREE: dict[str, Any] = {"name": "run", "model": {"path": "own_nets:build"}, "data": {"path": "own_nets:data"}}
"""The least that a config needs. `own_nets` lies in the working folder of the tests of `unit/config`."""


def config_of(**changes: Any) -> ExperimentConfig:
    """The config of `TREE` with changes by dotted key, with `__` for the dot."""
    return validate(TREE).with_overrides({key.replace("__", "."): value for key, value in changes.items()})


def warnings_of(config: ExperimentConfig) -> list[str]:
    """The warnings in the table that is shown before a run."""
    return [text for label, text in derive(config, None).lines() if label == "warning"]


def problems_of(load: Callable[..., object], *given: Any) -> list[Problem]:
    """What is wrong with a config that `load` refuses."""
    with pytest.raises(ConfigError) as caught:
        load(*given)
    return list(caught.value.problems)
