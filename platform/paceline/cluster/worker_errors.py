"""The error of a worker, as the driver raises it."""

from collections.abc import Mapping
from typing import Any

from paceline.errors import ConfigError, EnvironmentFault, PacelineError, Problem, RunFailed
from paceline.redaction import redact


def resumable_failure(what: str, code: str) -> dict[str, Any]:
    """Return a failure that belongs to all ranks, and after which the same command resumes the run.

    It has the fields of `engine.failure.Failure`.
    """
    reason = f"{what}. Run the same command again; training resumes from its newest checkpoint"
    return {"rank": -1, "reason": reason, "traceback_text": "", "exit_code": RunFailed.exit_code, "problem_code": code}


def error_of(failure: Mapping[str, Any]) -> PacelineError:
    """The error for why a rank failed.

    Args:
        failure: the fields of `engine.failure.Failure`.
    """
    place = f"rank {failure['rank']}: " if failure["rank"] >= 0 else ""  # else it is not about a rank
    message = redact(f"{place}{failure['reason']}")
    if failure["exit_code"] == ConfigError.exit_code:
        return ConfigError([Problem(failure.get("problem_code") or "import", message)])
    if failure["exit_code"] == EnvironmentFault.exit_code:
        return EnvironmentFault(message, failure.get("problem_code") or "run-failed")
    return RunFailed(message, redact(failure["traceback_text"]), failure.get("problem_code") or "run-failed")
