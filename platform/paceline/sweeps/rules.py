"""What the desk of a sweep has to know of its config."""

from dataclasses import dataclass

from paceline.sweeps.ranking import Objective
from paceline.sweeps.trials import Trial


@dataclass(frozen=True)
class Rules:
    """What the desk has to know of the sweep's config."""

    objectives: tuple[Objective, ...]
    seats: int
    max_failures: int
    fresh_processes: bool
    """Whether each trial gets processes of its own."""
    target: float | None = None
    """The sweep is over once a trial's first objective is as good as this."""
    trial_seconds: float | None = None
    """A trial is over after so long on worker groups."""

    def target_reached(self, trial: Trial) -> str:
        """Why the sweep is over because of a trial; empty when it is not."""
        metric, mode = self.objectives[0]
        value = trial.metrics.get(metric)
        if trial.state != "finished" or self.target is None or value is None:
            return ""
        is_reached = value >= self.target if mode == "max" else value <= self.target
        return f"trial {trial.id} reached the target: {metric} is {value:.6g}" if is_reached else ""
