"""The state of an MLflow store, found without MLflow: if it answers, why not, and if its database is damaged."""

import base64
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from paceline import limited_wait
from paceline.errors import EnvironmentFault, PacelineError
from paceline.redaction import redact
from paceline.tracking.tracking_uri import DATABASE_PORTS, HINT, is_http, is_sqlite, split_credentials, sqlite_file

if TYPE_CHECKING:
    from http.client import HTTPResponse
    from ssl import SSLContext
    from urllib.request import Request

PROBE_SECONDS = 10.0
"""Time in which a store has to answer a probe: a busy machine takes seconds."""
ACCESS_SECONDS = 3.0
"""Time in which a server that answers has to refuse access; without an answer it is taken to be given."""

HINT_OF_SILENCE = "start the server, correct the address, or set tracking.offline=allow to send the metrics later"
SPARE_SECONDS = 0.1
"""Part of a probe's time that is not used: a server that answers late has answered."""
SILENT = "mlflow-not-answering"
"""Code of the error where nobody answers."""
LONGEST = 200
"""Characters that are shown of an error of its own, at the most."""
LARGEST_BYTES = 1 << 28
"""Larger databases are not read as a whole, which would take seconds."""
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")
"""Names that errors about a damaged file begin with. Others, such as that of a locked one, say nothing about it."""
# as MLflow's client words it
_CLIENT_REFUSED = re.compile(r"failed with error code (401|403)\b")
_NO_JSON = "not in a valid JSON"
_HINT_OF_REFUSAL = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
_ASKED = "api/2.0/mlflow/experiments/search?max_results=1"
_MIGRATIONS = "store/db_migrations/versions"


def probe(uri: str, timeout_seconds: float = PROBE_SECONDS) -> None:
    """Find out, without MLflow, whether the store answers. Takes `timeout_seconds` at the most.

    Raises:
        EnvironmentFault: it does not, with the reason and the hint.
    """
    if is_sqlite(uri):
        _probe_file(sqlite_file(uri) or Path())
    elif is_http(uri):
        _within(timeout_seconds, uri, lambda: _probe_server(uri, timeout_seconds))
    else:
        _within(timeout_seconds, uri, lambda: _probe_port(uri, timeout_seconds))


def _probe_file(path: Path) -> None:
    folder = path.parent
    if not folder.is_dir():
        reason = f"the folder of the MLflow database does not exist: {folder}; create it"
        raise EnvironmentFault(reason, "no-database-folder", folder=folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = f"the folder of the MLflow database is not writable: {folder}"
        raise EnvironmentFault(reason, "database-not-writable", path=folder)
    if not path.exists():
        return
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK):
        reason = f"the MLflow database is not a file that can be written to: {path}"
        raise EnvironmentFault(reason, "database-not-writable", path=path)
    with path.open("rb") as file:
        head = file.read(16)
    if head and head != b"SQLite format 3\0":
        reason = f"{path} is not an SQLite database; move it away, or set tracking.uri"
        raise EnvironmentFault(reason, "not-a-database", path=path)
    if head and _is_foreign(path):
        reason = f"{path} is a database of another program or of a newer MLflow; move it away, or set tracking.uri"
        raise EnvironmentFault(reason, "foreign-database", path=path)


def _is_foreign(path: Path) -> bool:
    """Return True if a database's tables are neither of this MLflow nor of an older one, which MLflow upgrades."""
    import sqlite3

    tables: set[str] = set()
    revisions: set[str] = set()
    # what is locked or damaged is left to MLflow
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", timeout=0.5, uri=True)) as found:
        tables = {name for (name,) in found.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "alembic_version" in tables:
            revisions = {revision for (revision,) in found.execute("SELECT version_num FROM alembic_version")}
    if revisions:
        known = _known_revisions()
        return bool(known) and not revisions <= known
    # MLflow makes some tables before it writes its version down
    return bool(tables) and "experiments" not in tables


def _known_revisions() -> set[str]:
    """The versions of the schema that the installed MLflow knows, read from its files: importing it takes seconds."""
    spec = find_spec("mlflow")
    folders = spec.submodule_search_locations if spec is not None else None
    scripts = [file for folder in folders or () for file in Path(folder, _MIGRATIONS).glob("*.py")]
    found = (re.search(r"^revision\b[^=]*=\s*[\"'](\w+)", file.read_text("utf-8"), re.MULTILINE) for file in scripts)
    return {match[1] for match in found if match is not None}


def _probe_port(uri: str, timeout_seconds: float) -> None:
    parts = urlsplit(uri)
    port = parts.port or DATABASE_PORTS.get(parts.scheme.partition("+")[0], 0)
    try:
        socket.create_connection((parts.hostname or "localhost", port), timeout_seconds).close()
    except OSError as error:
        raise _silent(uri, error) from None


def _probe_server(uri: str, timeout_seconds: float) -> None:
    import http.client
    from urllib.error import HTTPError

    began = time.monotonic()
    try:
        with answered(uri, "health", timeout_seconds) as answer:
            body = answer.read(64)
    except HTTPError as error:
        if error.code in (401, 403):
            raise _refused(uri, error.code) from None
        if error.code >= 500:
            raise _silent(uri, error) from None
        reason = f"{redact(uri)} answers {error.code}, so it is not an MLflow server; {HINT}"
        raise EnvironmentFault(reason, "not-mlflow", uri=redact(uri), status=error.code) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _silent(uri, error) from None
    if body.strip() != b"OK":
        reason = f"{redact(uri)} answers, but is not an MLflow server; {HINT}"
        raise EnvironmentFault(reason, "not-mlflow", uri=redact(uri))
    left = min(ACCESS_SECONDS, timeout_seconds - (time.monotonic() - began)) - SPARE_SECONDS
    if left > 0:
        _probe_runs(uri, left)


def _probe_runs(uri: str, timeout_seconds: float) -> None:
    """Check that the server gives access to its runs: a proxy may answer for it, or it answers without credentials.

    Raises:
        EnvironmentFault: it does not. Any other trouble is ignored here: the server answers.
    """
    import http.client
    from urllib.error import HTTPError

    try:
        with answered(uri, _ASKED, timeout_seconds) as answer:
            is_json = answer.read(4096).lstrip()[:1] in (b"{", b"")
    except HTTPError as error:
        if error.code in (401, 403):
            raise _refused(uri, error.code) from None
        return
    except (OSError, http.client.HTTPException, ValueError):
        return
    if not is_json:
        raise EnvironmentFault(no_mlflow_text(uri), "not-mlflow", uri=redact(uri))


def refused_text(uri: str, code: int) -> str:
    """Return the error of a server that answers 401 or 403, and the hint."""
    return f"MLflow at {redact(uri)} refuses the credentials ({code}); {_HINT_OF_REFUSAL}"


def _refused(uri: str, status: int) -> EnvironmentFault:
    return EnvironmentFault(refused_text(uri, status), "credentials-refused", uri=redact(uri), status=status)


def no_mlflow_text(uri: str) -> str:
    """Return the error of a server that answers with something else than MLflow does, such as a login page."""
    return f"{redact(uri)} answers with a page instead of MLflow's data, as a login does; {_HINT_OF_REFUSAL}"


def _silent(uri: str, error: Exception) -> EnvironmentFault:
    reason = redact(str(getattr(error, "reason", None) or error) or type(error).__name__)
    text = f"MLflow does not answer at {redact(uri)}: {reason}; {HINT_OF_SILENCE}"
    return EnvironmentFault(text, SILENT, uri=redact(uri), reason=reason)


def _within(timeout_seconds: float, uri: str, check: Callable[[], None]) -> None:
    """Run a check. Looking up a name, or a slow drip of bytes, has no timeout of its own."""
    try:
        limited_wait.within(timeout_seconds, check, "paceline-probe")
    except PacelineError:
        raise
    except limited_wait.TooSlow:
        raise _silent(uri, TimeoutError(f"no answer within {timeout_seconds:g} s")) from None
    except Exception as error:
        raise _silent(uri, error) from error


def answered(uri: str, path: str, timeout_seconds: float, body: bytes | None = None) -> "HTTPResponse":
    """Return a server's answer, asked with the credentials of its address or of the environment. To be closed.

    Args:
        path: what follows the address.
        body: JSON to post; by default nothing is posted.

    Raises:
        OSError: it does not answer, or refuses (`urllib.error.HTTPError`).
    """
    return _get(_request(uri, path, body), timeout_seconds)


def _request(uri: str, path: str, body: bytes | None) -> "Request":
    from urllib.request import Request

    base, user, password = split_credentials(uri)
    headers = {"User-Agent": "paceline", **({"Content-Type": "application/json"} if body is not None else {})}
    request = Request(f"{base.rstrip('/')}/{path}", data=body, headers=headers)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME") or user
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD") or password
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    if user and password:
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {pair}")
    elif token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return request


def _get(request: "Request", timeout_seconds: float) -> "HTTPResponse":
    from urllib.request import urlopen

    context = _tls() if request.full_url.startswith("https:") else None
    return urlopen(request, timeout=timeout_seconds, context=context)  # type: ignore[no-any-return]


def _tls() -> "SSLContext":
    import ssl

    context = ssl.create_default_context(cafile=os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None)
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


SILENT_SECONDS = 1.0
"""Time that the end of a run waits for an MLflow that has never answered."""


def silence_of(uri: str, timeout_seconds: float) -> str | None:
    """Return why nobody answers at an address, without the hint; None where somebody does, or for a file."""
    if is_sqlite(uri):
        return None
    try:
        probe(uri, timeout_seconds)
    except EnvironmentFault as error:
        return error.message.removesuffix(f"; {HINT_OF_SILENCE}") if error.code == SILENT else None
    return None


def is_silence(error: BaseException) -> bool:
    """Return True if nobody answers, rather than that somebody refuses."""
    return _silence_in(error) is not None


def cause_text(error: BaseException, uri: str = "") -> str:
    """Return the cause of an MLflow error, whose own errors nest three others, without secrets.

    `MLflow does not answer: Connection refused` where nobody does, else the first line of the error.

    Args:
        uri: MLflow's address.
    """
    silence = _silence_in(error)
    if silence is not None:
        return redact(f"MLflow does not answer: {silence.strerror or silence or type(silence).__name__}")
    refused = _CLIENT_REFUSED.search(str(error))
    if refused is not None:
        return refused_text(uri, int(refused[1]))
    if _NO_JSON in str(error):
        return no_mlflow_text(uri)
    text = redact(f"{type(error).__name__}: {error}").strip()
    first = text.partition("\n")[0].partition(" (Caused by ")[0].partition(". Response body: ")[0]
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 2]} …"


def _silence_in(error: BaseException) -> OSError | None:
    from socket import gaierror

    silent = (each for each in _chain(error) if isinstance(each, (ConnectionRefusedError, TimeoutError, gaierror)))
    return next(silent, None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and its causes."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def damage_of(uri: str, run_id: str | None) -> str | None:
    """Return what is wrong with the database that a run was sent to; None for nothing, and for a server.

    Sending need not notice: SQLite reads no page that it does not need.

    Args:
        uri: MLflow's address.
        run_id: MLflow's id of the run; None or empty for one that was not sent.
    """
    file = sqlite_file(uri) if run_id else None
    if file is None:
        return None
    if not file.exists() or not file.stat().st_size:
        return f"the database {file} was removed, or is empty"
    return damaged_text(file)


def damaged_text(file: Path) -> str | None:
    """Return what to do about a database file that is damaged; None for one that is not, or is missing."""
    import sqlite3

    try:
        found = _quick_check(file) if file.exists() else "ok"
    except sqlite3.DatabaseError as error:
        if not str(getattr(error, "sqlite_errorname", "")).startswith(_DAMAGED):
            return None
        found = str(error)
    return None if found == "ok" else f"the database {file} is damaged ({found.splitlines()[0]}): move it away first"


def _quick_check(file: Path) -> str:
    import sqlite3

    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=1.0)) as opened:
        if file.stat().st_size > LARGEST_BYTES:
            opened.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return "ok"
        (found,) = opened.execute("PRAGMA quick_check(1)").fetchone()
    return str(found)
