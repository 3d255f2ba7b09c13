"""Client of a cluster's jobs: finds its dashboard, checks that it answers, and sends requests to it."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paceline._compat.ray import CLIENT_LOGGERS, RequestTimeout
from paceline.cluster.ray_session import prepare_environment
from paceline.errors import EnvironmentFault
from paceline.limited_wait import TooSlow, within
from paceline.redaction import redact

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables from which Ray's own commands take the address, in order of precedence."""
Timeout = tuple[float, float]
"""Seconds to connect, and seconds until the answer begins."""
AT_FIRST: Timeout = (2.0, 2.5)
LATER: Timeout = (10.0, 30.0)
SENDING: Timeout = (10.0, 600.0)
FIND_SECONDS = 4.5
"""Seconds that Ray may take to find the dashboard's address from another address of the cluster."""
_HINT = (
    "start the cluster, or open the tunnel to it (`ray dashboard cluster.yaml`, or "
    "`ssh -N -L 8265:127.0.0.1:8265 HEAD`), or name another one by --address"
)
_OTHER_HINT = f"if that is not the dashboard of a Ray cluster, {_HINT}"
_TOKEN_HINT = (
    "set RAY_AUTH_MODE=token and put the cluster's token into ~/.ray/auth_token, or name its file by "
    "RAY_AUTH_TOKEN_PATH (`ray get-auth-token` on the head shows it)"
)


def job_address(option: str | None = None) -> str:
    """Return the address for jobs: the option, else that of Ray's variables, else this machine's dashboard or
    tunnel."""
    found = (value.strip() for value in (option or "", *(os.environ.get(name, "") for name in VARIABLES)))
    return next((value for value in found if value), DEFAULT_ADDRESS).rstrip("/")


def connect(address: str) -> "JobSubmissionClient":
    """Return a client of the dashboard at an address, once it has answered. Takes at most about 5 s, and Ray's import.

    Args:
        address: `http://host:port` of a dashboard, or another address of a cluster, as `ray job submit` takes it.

    Raises:
        EnvironmentFault: nothing answers, or it asks for a token, or it is not a dashboard of Ray's.
    """
    prepare_environment()
    url = address if "://" in address and not address.startswith("ray://") else _dashboard_of(address)
    with asking(url):
        client = _client_class()(url)
    client.timeout = LATER
    return client


@contextmanager
def asking(url: str) -> Iterator[None]:
    """Add the hint to errors of a body that sends requests to a dashboard.

    Raises:
        EnvironmentFault: the body raised an error of the connection, or of Ray's client.
    """
    import requests
    from ray.exceptions import AuthenticationError

    try:
        yield
    except (BrokenPipeError, EnvironmentFault):  # our own output's, and what is reported already
        raise
    except AuthenticationError as error:
        raise _about_token(url, str(error)) from None
    except (ConnectionError, requests.exceptions.ConnectionError, requests.exceptions.Timeout):
        message = f"no Ray dashboard answers at {redact(url)}: {_HINT}"
        raise EnvironmentFault(message, "dashboard-unreachable", address=redact(url)) from None
    except (requests.exceptions.RequestException, RuntimeError, ValueError, KeyError, TypeError) as error:
        reason = redact(str(error)).rstrip(". \n")
        message = f"{redact(url)} could not do what was asked: {reason}; {_OTHER_HINT}"
        raise EnvironmentFault(message, "dashboard-error", address=redact(url)) from None


def is_unknown(error: Exception) -> bool:
    """Return True if Ray's client reports by this error that the job does not exist."""
    return "status code 404" in str(error)


def _client_class() -> Any:
    from ray.job_submission import JobSubmissionClient

    _hush()

    class Client(RequestTimeout, JobSubmissionClient):  # type: ignore[misc]
        """Ray's client, which by itself waits forever for a dead tunnel, and prefers the address of the environment."""

        def __init__(self, url: str) -> None:
            self.timeout = AT_FIRST
            with _only_address(url):
                super().__init__(url)

    return Client


def _dashboard_of(address: str) -> str:
    """Return the dashboard of a cluster that is given by another address: `host:port` of its head, `auto`,
    `ray://...`."""
    import ray  # not within the time  # noqa: F401

    def ask() -> str:
        from ray.dashboard.utils import get_address_for_submission_client

        return str(get_address_for_submission_client(address))

    reason = ""
    try:
        with _only_address(address):  # not in the thread, which may outlive this call and would restore the past then
            return within(FIND_SECONDS, ask, "find-dashboard")
    except TooSlow:
        pass
    except Exception as error:  # Ray has many kinds
        first_line = redact(str(error)).partition("\n")[0]
        reason = f" ({first_line})"
    raise EnvironmentFault(
        f"no Ray cluster answers at {redact(address)}{reason}: give the dashboard's address, such as "
        f"--address {DEFAULT_ADDRESS}; {_HINT}",
        "dashboard-unreachable",
        address=redact(address),
    )


@contextmanager
def _only_address(address: str) -> Iterator[None]:
    """Hide Ray's variables, which would take precedence over the given address."""
    before = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    os.environ[VARIABLES[0]] = address
    try:
        yield
    finally:
        del os.environ[VARIABLES[0]]
        os.environ.update(before)


def _hush() -> None:
    """Silence Ray's client, which logs each upload and a missing token; both are reported here."""
    for name in CLIENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def _about_token(url: str, told: str) -> EnvironmentFault:
    where = redact(url)
    if told.startswith("Authentication failed"):
        message = f"the cluster at {where} refuses the token that is sent: {_TOKEN_HINT}"
        return EnvironmentFault(message, "token-refused", address=where)
    return EnvironmentFault(f"the cluster at {where} asks for a token: {_TOKEN_HINT}", "token-missing", address=where)
