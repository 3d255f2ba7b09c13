"""A planned trial in Tune's config: `{"trial": {"id": ..., "values": {axis: value}}}`, listed values by index.

Tune writes its configs into Ray's own files, which are not the sweep's to guard, and a listed value may be a secret.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.config.sweep import SweepConfig
from paceline.sweeps.trial import PlannedTrial

TRIAL = "trial"


def tune_config(planned: PlannedTrial, sweep: SweepConfig) -> dict[str, Any]:
    """The config that Tune gets for a trial of the sweep."""
    values = {name: _place(value, sweep.lists.get(name)) for name, value in planned.params.items()}
    return {TRIAL: {"id": planned.id, "values": values}}


def planned_trial_of(config: Mapping[str, Any], sweep: SweepConfig) -> PlannedTrial:
    """The inverse of `tune_config`."""
    lists = sweep.lists
    values = config[TRIAL]["values"]
    return PlannedTrial(
        id_of(config), {name: lists[name][value] if name in lists else value for name, value in values.items()}
    )


def id_of(config: Mapping[str, Any]) -> str:
    """The id of the trial, such as `0007`."""
    return str(config[TRIAL]["id"])


def place_in(choices: Sequence[Any], value: Any) -> int:
    """Where a value stands in an axis; `True == 1`, and a sweep may have both."""
    return [_text(choice) for choice in choices].index(_text(value))


def _place(value: Any, choices: list[Any] | None) -> Any:
    if choices is None:
        return value
    return place_in(choices, value)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
