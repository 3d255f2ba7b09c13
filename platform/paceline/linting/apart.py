"""Lint in a process of its own: it changes things of the whole process while it looks, leaves the user's code imported,
and may hang where that code does."""

from typing import Any

from paceline.cluster.separate_process import SeparateProcess, TookTooLong, answer, at_most
from paceline.config.experiment import ExperimentConfig
from paceline.errors import PacelineError
from paceline.garbage_collection import collector_paused
from paceline.linting.finding import Finding

TIMEOUT_SECONDS = 120.0
LEAVE_SECONDS = 60.0
"""What the process may take beside, to import torch and to end."""
GIVEN_UP = "could-not-be-run"
"""The rule that a model is found by which does not come to its end; that of a model that raises as well."""


class LintApart:
    """Begins to look at once; `findings` waits for it."""

    def __init__(self, config: ExperimentConfig, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._process = SeparateProcess(__name__, config, timeout_seconds)

    def findings(self) -> list[Finding]:
        """The findings.

        Raises:
            TookTooLong: the user's code did not come to its end.
            PacelineError: as `lint`.
        """
        return [Finding(**each) for each in self._process.answer(self._timeout_seconds + LEAVE_SECONDS)]

    def findings_at_best(self) -> list[Finding]:
        """Return the same, or nothing where the model cannot be examined: its training reports why."""
        try:
            return self.findings()
        except TookTooLong as fault:
            hint = "run `paceline lint` with a longer --timeout if nothing hangs there"
            return [Finding(GIVEN_UP, fault.place, f"{fault.reason}: faults were not looked for", hint, "warning")]
        except PacelineError:
            return []

    def end(self) -> None:
        """End it, whether or not it is done."""
        self._process.end()


def lint(config: ExperimentConfig, timeout_seconds: float = TIMEOUT_SECONDS) -> list[Finding]:
    """Find faults of a model and its config that slow training down or break it, without training.

    The model runs on fake tensors in a process of its own.

    Args:
        config: from `load_config`.
        timeout_seconds: how long building the model and loading the data may take.

    Raises:
        TookTooLong: the user's code did not end in time.
        PacelineError: the config, the model or the data are wrong.
    """
    look = LintApart(config, timeout_seconds)
    try:
        return look.findings()
    finally:
        look.end()


def _look(config: ExperimentConfig, timeout_seconds: float) -> list[dict[str, Any]]:
    with collector_paused():
        from paceline._compat.torch import import_compiler
        from paceline.linting.examining import lint as lint_here

    import_compiler()  # torch would in the first step, for seconds; the limit is for the user's code
    with at_most(timeout_seconds, "building the model and the data, with some passes,"):
        return [finding.to_json() for finding in lint_here(config)]


if __name__ == "__main__":
    answer(_look)
