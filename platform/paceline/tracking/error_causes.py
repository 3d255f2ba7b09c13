"""The cause of an MLflow connection error in a few words: its own errors nest three others."""

import re
from collections.abc import Iterator

from paceline.errors import EnvironmentFault
from paceline.redaction import redact
from paceline.tracking.store_probe import HINT_OF_SILENCE, SILENT, no_mlflow_text, probe, refused_text

LONGEST = 200
"""Characters of an error of its own that are shown, at the most."""


# as MLflow's client words it
_REFUSED = re.compile(r"failed with error code (401|403)\b")
_NO_JSON = "not in a valid JSON"


def silence_of(uri: str, timeout_seconds: float) -> str | None:
    """Why nobody answers at an address, without the hint; None where somebody does."""
    try:
        probe(uri, timeout_seconds)
    except EnvironmentFault as error:
        return error.message.removesuffix(f"; {HINT_OF_SILENCE}") if error.code == SILENT else None
    return None


def is_silence(error: BaseException) -> bool:
    """Whether nobody answers, rather than that somebody refuses."""
    return _silence(error) is not None


def cause_text(error: BaseException, uri: str = "") -> str:
    """What is wrong, without secrets: `MLflow does not answer: Connection refused` where nobody does, else what the
    error's own first line says.

    Args:
        uri: MLflow's address.
    """
    silence = _silence(error)
    if silence is not None:
        return redact(f"MLflow does not answer: {silence.strerror or silence or type(silence).__name__}")
    refused = _REFUSED.search(str(error))
    if refused is not None:
        return refused_text(uri, int(refused[1]))
    if _NO_JSON in str(error):
        return no_mlflow_text(uri)
    text = redact(f"{type(error).__name__}: {error}").strip()
    first = text.partition("\n")[0].partition(" (Caused by ")[0].partition(". Response body: ")[0]
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 2]} …"


def _silence(error: BaseException) -> OSError | None:
    from socket import gaierror

    silent = (each for each in _chain(error) if isinstance(each, (ConnectionRefusedError, TimeoutError, gaierror)))
    return next(silent, None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came of."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__
