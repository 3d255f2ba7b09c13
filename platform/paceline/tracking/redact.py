"""Takes secrets out of what is shown, logged or stored. Runs wherever text leaves the process."""

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig

HIDDEN = "***"

_WORDS = r"(?:password|passwd|pwd|secret|token|api_?key|access_?key|secret_?key|credentials?|authorization)"
# No pattern may begin with a run of any length: on a long word, searching would take the square of its length.
_URL_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^/\s]*@")
_URL_QUERY = re.compile(rf"(?i)([?&][\w.-]*{_WORDS}=)[^&\s'\"]+")
# Short values are left alone: `pad_token: <pad>` is no secret.
# On one line: the next line of a YAML file is another key.
_ASSIGNED = re.compile(rf"(?i)({_WORDS}[\"']?[ \t]*[:=][ \t]*)([\"']?)(?![\"'\s])[^\s,}}\"']{{8,}}\2")
_SECRET_KEY = re.compile(rf"(?i)(?:^|[._-]){_WORDS}$")
_SECRET_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")


def redact(text: str) -> str:
    """Hide credentials in URLs, `password=...` and `token: ...`, and what the environment holds as MLflow's secrets."""
    text = _URL_USER.sub(rf"\g<1>{HIDDEN}@", text)
    text = _URL_QUERY.sub(rf"\g<1>{HIDDEN}", text)
    text = _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)
    for variable in _SECRET_VARIABLES:
        value = os.environ.get(variable, "")
        if len(value) >= 4:
            text = text.replace(value, HIDDEN)
    return text


def redact_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Hide the values whose key says that they are secret, and secrets within the other texts."""
    return {
        key: value if not isinstance(value, str) else HIDDEN if _is_secret(key, value) else redact(value)
        for key, value in values.items()
    }


def without_credentials(uri: str) -> str:
    """The address without user name, password and tokens, as it may be stored."""
    bare = _URL_USER.sub(r"\g<1>", uri)
    if bare.lower().startswith(("http:", "https:")):
        return re.split("[?#]", bare, maxsplit=1)[0]  # a server's address needs no query: what is there is a token
    base, _, query = bare.partition("?")
    kept = "&".join(part for part in query.split("&") if not _URL_QUERY.match(f"&{part}"))
    return f"{base}?{kept}" if kept else base


def shareable(config: "ExperimentConfig") -> "ExperimentConfig":
    """The config as it may be shown, stored or sent to workers: without the credentials of `tracking.uri`.

    They are not lost: a resumed run takes them from the config or the environment of the command that resumes it.
    """
    uri = config.tracking.uri
    if uri is None or without_credentials(uri) == uri:
        return config
    return config.with_overrides({"tracking.uri": without_credentials(uri)})


def _is_secret(key: str, value: str) -> bool:
    return len(value) >= 8 and _SECRET_KEY.search(key) is not None
