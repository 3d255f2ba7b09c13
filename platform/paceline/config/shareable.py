"""What a config keeps secret, and the config as it may be stored."""

import sys
from typing import TYPE_CHECKING

from paceline.redaction import names_in, secrets_among, secrets_in, without_credentials
from paceline.secret_values import is_name

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig


def secrets_of(config: "ExperimentConfig") -> tuple[str, ...]:
    """The values that a config, and the arguments of this command, hold under keys such as `api_key`, and the
    passwords of their addresses.

    One that reads as a name and that the config shows elsewhere is not among them: it would be hidden there as well, in
    the config, its params and its metrics.
    """
    tree = config.model_dump(mode="python")
    found = dict.fromkeys([*secrets_in(tree), *secrets_among(sys.argv)])
    shown = "\n".join(names_in(tree)) if any(map(is_name, found)) else ""
    return tuple(value for value in found if not (is_name(value) and value in shown))


def shareable(config: "ExperimentConfig") -> "ExperimentConfig":
    """The config as it may be shown, stored or sent to workers: without the credentials of `tracking.uri`.

    They are not lost: a resumed run takes them from the config or the environment of the command that resumes it.
    """
    uri = config.tracking.uri
    if uri is None or without_credentials(uri) == uri:
        return config
    return config.with_overrides({"tracking.uri": without_credentials(uri)})
