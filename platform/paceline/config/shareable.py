"""Secrets of a config, and a copy of the config that is safe to store."""

import sys
from typing import TYPE_CHECKING

from paceline.redaction import names_in, secrets_among, secrets_in, without_credentials
from paceline.secret_values import is_name

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig


def secrets_of(config: "ExperimentConfig") -> tuple[str, ...]:
    """Return the secrets of a config and of the arguments of this command: values of keys such as `api_key`, and
    passwords in addresses.

    A value that looks like a name and also appears elsewhere in the config is left out: otherwise it would be hidden
    there too, in the config, its params and its metrics.
    """
    tree = config.model_dump(mode="python")
    found = dict.fromkeys([*secrets_in(tree), *secrets_among(sys.argv)])
    shown = "\n".join(names_in(tree)) if any(map(is_name, found)) else ""
    return tuple(value for value in found if not (is_name(value) and value in shown))


def shareable(config: "ExperimentConfig") -> "ExperimentConfig":
    """Return the config without the credentials of `tracking.uri`, safe to show, store or send to workers.

    A resumed run takes the credentials from the config or the environment of the command that resumes it.
    """
    uri = config.tracking.uri
    if uri is None or without_credentials(uri) == uri:
        return config
    return config.with_overrides({"tracking.uri": without_credentials(uri)})
