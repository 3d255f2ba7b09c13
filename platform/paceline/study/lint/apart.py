"""Lint in a process of its own: it changes things of the whole process while it looks, and leaves the user's code
imported."""

from typing import Any

from paceline.config.experiment import ExperimentConfig
from paceline.errors import PacelineError
from paceline.study.errand import Errand, answer
from paceline.study.lint.finding import Finding

TIMEOUT_SECONDS = 120.0


class LintApart:
    """Begins to look at once; `findings` waits for it."""

    def __init__(self, config: ExperimentConfig) -> None:
        self._errand = Errand(__name__, config, None)

    def findings(self) -> list[Finding]:
        """What was found; nothing where the model cannot be looked at: whoever trains it will be told why."""
        try:
            return [Finding(**each) for each in self._errand.answer(TIMEOUT_SECONDS)]
        except PacelineError:
            return []

    def end(self) -> None:
        """End it, whether or not it is done."""
        self._errand.end()


def _look(config: ExperimentConfig, options: Any) -> list[dict[str, Any]]:
    from paceline.study.lint import lint

    return [finding.to_json() for finding in lint(config)]


if __name__ == "__main__":
    answer(_look)
