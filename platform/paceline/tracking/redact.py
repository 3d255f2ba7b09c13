"""Takes secrets out of what is shown, logged or stored. Runs wherever text leaves the process."""

import os
import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

_WORDS = r"(?:password|passwd|pwd|secret|token|api_?key|access_?key|secret_?key|credentials?|authorization)"
_URL_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/\s]*@")
_URL_QUERY = re.compile(rf"(?i)([?&][\w.-]*{_WORDS}=)[^&\s'\"]+")
# Short values are left alone: `pad_token: <pad>` is no secret.
_ASSIGNED = re.compile(rf"(?i)(\b[\w.-]*{_WORDS}[\"']?\s*[:=]\s*)([\"']?)(?![\"'\s])[^\s,}}\"']{{8,}}\2")
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
    """The address without user name and password, as it may be stored."""
    return _URL_QUERY.sub(r"\g<1>", _URL_USER.sub(r"\g<1>", uri))


def _is_secret(key: str, value: str) -> bool:
    return len(value) >= 8 and _SECRET_KEY.search(key) is not None
