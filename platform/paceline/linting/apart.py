"""Lint in a separate process: it changes process-wide state, leaves the user's code imported, and may hang if that code
hangs."""

from typing import Any

from paceline.cluster.separate_process import SeparateProcess, TookTooLong, answer, at_most
from paceline.config.experiment import ExperimentConfig
from paceline.errors import PacelineError
from paceline.garbage_collection import collector_paused
from paceline.linting.finding import Finding

TIMEOUT_SECONDS = 120.0
LEAVE_SECONDS = 60.0
"""Additional seconds for the process to import torch and to exit."""
GIVEN_UP = "could-not-be-run"
"""Name of the rule for a model that does not finish in time; also the rule for a model that raises an error."""


class LintApart:
    """Starts linting immediately; `findings` waits for the result."""

    def __init__(self, config: ExperimentConfig, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._process = SeparateProcess(__name__, config, timeout_seconds)

    def findings(self) -> list[Finding]:
        """Return the findings.

        Raises:
            TookTooLong: the user's code did not finish in time.
            PacelineError: as `lint`.
        """
        return [Finding(**each) for each in self._process.answer(self._timeout_seconds + LEAVE_SECONDS)]

    def findings_at_best(self) -> list[Finding]:
        """Return the findings; empty if the model cannot be examined, since its training reports why."""
        try:
            return self.findings()
        except TookTooLong as fault:
            hint = "run `paceline lint` with a longer --timeout if nothing hangs there"
            return [Finding(GIVEN_UP, fault.place, f"{fault.reason}: faults were not looked for", hint, "warning")]
        except PacelineError:
            return []

    def end(self) -> None:
        """End the process, whether or not it has finished."""
        self._process.end()


def lint(config: ExperimentConfig, timeout_seconds: float = TIMEOUT_SECONDS) -> list[Finding]:
    """Find faults of a model and its config that slow training down or break it, without training.

    The model runs on fake tensors in a process of its own.

    Args:
        config: from `load_config`.
        timeout_seconds: how long building the model and loading the data may take.

    Raises:
        TookTooLong: the user's code did not finish in time.
        PacelineError: the config, the model or the data are wrong.
    """
    look = LintApart(config, timeout_seconds)
    try:
        return look.findings()
    finally:
        look.end()


def _lint(config: ExperimentConfig, timeout_seconds: float) -> list[dict[str, Any]]:
    with collector_paused():
        from paceline._compat.torch import import_compiler
        from paceline.linting.examining import lint as lint_here

    import_compiler()  # torch would import it for seconds in the first step; the limit is for the user's code
    with at_most(timeout_seconds, "building the model and the data, with some passes,"):
        return [finding.to_json() for finding in lint_here(config)]


if __name__ == "__main__":
    answer(_lint)
