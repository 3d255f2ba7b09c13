"""Jobs of a study, and the samples that they use."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from paceline.batch_scaling.findings import StudyFailed
from paceline.batch_scaling.segment import LOOK, TRAIN_SEGMENT
from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import NO_ROOM, THROUGHPUT, Answer, Job, part_of
from paceline.config.experiment import ExperimentConfig
from paceline.reports.text import counted

OWN, BRANCH = "own", "branch"
"""Checkpoint folders of the config as it is, and of the branch that is being trained."""
WINDOWS, WINDOW_SECONDS = 5, 0.3
TURNS = 5
"""Number of times that each config is measured when configs take turns."""
MOST_PASSES = 3
"""Number of times that all of it is measured where other programs disturb it."""
PASSES_SHARE = 0.1
"""Largest share of the budget that one further pass may take: a config may be compiled for each batch size."""


class StudyJobs:
    """Runs the jobs of a study on a bench.

    Args:
        folder: for checkpoints; all workers see it.
    """

    def __init__(self, bench: Bench, clock: Clock, folder: Path) -> None:
        self._bench, self._folder = bench, folder
        self.clock = clock
        self.samples_spent = 0
        self.notes: list[str] = []

    def look(self, config: ExperimentConfig) -> Mapping[str, Any]:
        """Build the model and the data, see `segment.look`.

        Raises:
            StudyFailed: that fails.
        """
        return _required(self._do(LOOK, config, checks_again=True), "built")

    def train_own(self, config: ExperimentConfig) -> Mapping[str, Any]:
        """Train the config as it is, with checkpoints on its way, see `segment.train_segment`.

        Raises:
            StudyFailed: it fails or diverges.
        """
        return _required(self.train(config, checkpoints=OWN), "trained")

    def train(self, config: ExperimentConfig, **options: Any) -> Answer:
        """Run the job `segment.train_segment`, and count its samples."""
        answer = self._do(TRAIN_SEGMENT, config, **options)
        self.samples_spent += int(answer.values.get("samples", 0))
        return answer

    def branch(self, config: ExperimentConfig, begun: str, checkpoint: str | None = None) -> Mapping[str, Any] | None:
        """Train a branch, and return its values; None if no time is left, or if it fails, which adds a note.

        Args:
            begun: description of the start of the branch, for the note.
            checkpoint: checkpoint of the config as it is that the branch starts from; None for the initial weights.
        """
        if not self.clock.has(0.0):
            self.notes.append(f"no time was left for a branch {begun}: raise scale.budget_seconds")
            return None
        options = {} if checkpoint is None else {"checkpoints": BRANCH, "resume_from": f"{OWN}/{checkpoint}"}
        answer = self.train(config, **options)
        if answer.problem:
            self.notes.append(f"a branch {begun} could not be trained: {answer.problem}")
            return None
        return answer.values

    def step_seconds(self, config: ExperimentConfig, size: int) -> float | None:
        """Return the seconds per step; None if it cannot be measured, which adds a note."""
        answer = self._do(THROUGHPUT, config, windows=WINDOWS, window_seconds=WINDOW_SECONDS)
        if answer.problem:
            if answer.kind != NO_ROOM:
                step = f"the step of batch {size:,} with {counted(max(1, config.scaling.num_workers), 'worker')}"
                self.notes.append(f"{step} could not be measured: {answer.problem}")
            return None
        (seconds,) = answer.values["seconds_per_sample"]
        return float(median(seconds)) * size

    def has_time_again(self, seconds: float) -> bool:
        """Return True if there is time for another pass of measurements.

        Args:
            seconds: that the last one took.
        """
        return self.clock.has(seconds) and seconds <= PASSES_SHARE * self.clock.budget_seconds

    def sample_seconds_in_turn(self, configs: Mapping[int, ExperimentConfig]) -> dict[int, list[float]] | str:
        """Return the seconds per sample for each turn, by batch size; or the reason why they cannot be measured. The
        configs take turns, so that a temporary slowdown of the machine affects all of them.

        Args:
            configs: configs by batch size.
        """
        given = [*configs.values()] * TURNS
        answer = self._do(THROUGHPUT, *given, windows=WINDOWS, window_seconds=WINDOW_SECONDS)
        if answer.problem:
            return answer.problem
        medians = [float(median(each)) for each in answer.values["seconds_per_sample"]]
        return {size: medians[number :: len(configs)] for number, size in enumerate(configs)}

    def _do(self, function: str, *configs: ExperimentConfig, checks_again: bool = False, **options: Any) -> Answer:
        limit = max(self.clock.longest, 1.0)
        parts, folder = tuple(map(part_of, configs)), str(self._folder) if "checkpoints" in options else ""
        return self._bench.do(Job(function, parts, options, limit, checks_again=checks_again, folder=folder))


def _required(answer: Answer, doing: str) -> Mapping[str, Any]:
    if answer.problem:
        raise StudyFailed(f"the config as it is cannot be {doing}: {answer.problem}", "baseline-failed")
    if answer.values.get("diverged"):
        raise StudyFailed("the config as it is diverges: lower its learning rate first", "baseline-diverged")
    return answer.values
