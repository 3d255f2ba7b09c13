"""The error of a worker, as the driver raises it."""

from collections.abc import Mapping
from typing import Any

from paceline.errors import ConfigError, EnvironmentFault, PacelineError, Problem, RunFailed
from paceline.redaction import redact


def error_of(failure: Mapping[str, Any]) -> PacelineError:
    """The error for why a rank failed.

    Args:
        failure: the fields of `engine.failure.Failure`.
    """
    message = redact(f"rank {failure['rank']}: {failure['reason']}")
    if failure["exit_code"] == ConfigError.exit_code:
        return ConfigError([Problem(failure.get("problem_code") or "import", message)])
    if failure["exit_code"] == EnvironmentFault.exit_code:
        return EnvironmentFault(message, failure.get("problem_code") or "run-failed")
    return RunFailed(message, redact(failure["traceback_text"]), failure.get("problem_code") or "run-failed")
