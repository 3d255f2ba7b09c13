"""Peak memory of a worker with each technique: predicted before it is tried, measured in fresh processes after."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline.bench.bench import Bench
from paceline.bench.clock import Clock
from paceline.bench.jobs import Job, part_of
from paceline.config.experiment import ExperimentConfig
from paceline.tuneups.execution import DeviceMemory
from paceline.tuneups.techniques import Technique

MEMORY, PREDICT = "paceline.tuneups.job_execution:memory", "paceline.tuneups.job_execution:predict"
PROCESS_SECONDS = 6.0
"""Assumed seconds to measure or predict the memory of one config, before one has been measured."""
HOPE = 0.75
"""Least time left to measure another config, as a share of `process_seconds`: it may be faster than the others."""
PREDICTION_SHARE = 0.25
"""Share of the time left that predicting the memory of all techniques may take."""
PREDICTED_OOM = "predicted_oom"
"""Prefix of the reason of a technique that is predicted not to fit."""
BASELINE = ""
"""Name of the baseline in `measured` and `predicted`."""


class Peaks:
    """Memory peaks of one tune-up, by the name of the technique; `BASELINE` is the config as it is."""

    def __init__(self, bench: Bench, clock: Clock, config: ExperimentConfig) -> None:
        self._bench, self._clock, self._config = bench, clock, config
        self.process_seconds = PROCESS_SECONDS
        """Longest seconds to measure one config so far, at least `PROCESS_SECONDS`."""
        self.measured: dict[str, int] = {}
        """Measured peak in bytes, by name."""
        self.predicted: dict[str, int] = {}
        """Predicted peak in bytes, by name."""
        self._known: dict[str, int] = {}
        """Measured peak in bytes, by the JSON text of the config."""
        self.problem = ""
        """Reason why nothing could be predicted; empty if the prediction succeeded, or was not tried."""

    def without_too_large(
        self, techniques: Sequence[Technique], memory: DeviceMemory, device_memory_bytes: int
    ) -> list[Technique]:
        """Return the techniques, with a reason set on those that are predicted not to fit into the device's memory.

        Args:
            memory: receives the predictions.
            device_memory_bytes: memory of the workers' device, used if `tuneup.device_memory_gib` is not set; 0 if not
                known.
        """
        from paceline.memory.plan import cannot_fit

        asked = self._config.tuneup.device_memory_gib if self._config.tuneup is not None else None
        limit = round(asked * 2**30) if asked is not None else device_memory_bytes
        if not limit:
            return list(techniques)
        tried = {technique.name: technique for technique in techniques if not technique.why_not}
        self.predict(tried, share=PREDICTION_SHARE)
        configs = {BASELINE: self._config, **{name: each.config(self._config) for name, each in tried.items()}}
        known = {configs[name].model_dump_json(): size for name, size in self.predicted.items() if name in configs}
        memory.set_sizes(limit, known)
        sizes = {technique.name: self.predicted.get(technique.name, 0) for technique in techniques}
        return [
            replace(technique, why_not=_too_large(sizes[technique.name], limit))
            if cannot_fit(sizes[technique.name], limit)
            else technique
            for technique in techniques
        ]

    def predict(self, techniques: Mapping[str, Technique], share: float = 1.0) -> None:
        """Predict the baseline's memory and that of the techniques, in one process that trains nothing.

        Args:
            share: share of the time left that it may take. If that is too short, nothing is predicted.
        """
        if not self._clock.has(self.process_seconds):
            return
        points = [{}, *(dict(technique.overrides) for technique in techniques.values())]
        answer = self._bench.do(
            Job(PREDICT, (part_of(self._config),), {"points": points, "timeout_seconds": share * self._clock.left})
        )
        self.problem = answer.problem
        if not answer.problem:
            told = zip([BASELINE, *techniques], answer.values["bytes"], strict=True)
            self.predicted |= {name: size for name, size in told if size is not None}

    def measure(self, name: str, config: ExperimentConfig) -> None:
        """Measure the peak memory of a config, if there is time. The result for the same config is reused."""
        text = config.model_dump_json()
        if text in self._known:
            self.measured[name] = self._known[text]
            return
        if not self.has_time_for(1):
            return
        begun = self._clock.elapsed
        answer = self._bench.do(Job(MEMORY, (part_of(config),), {"timeout_seconds": self._clock.left}))
        self.process_seconds = max(self.process_seconds, self._clock.elapsed - begun)
        if not answer.problem:
            self.measured[name] = self._known[text] = int(answer.values["bytes"])

    def has_time_for(self, processes: int) -> bool:
        """Return True if there is time to measure this number of configs."""
        return self._clock.has((processes - 1 + HOPE) * self.process_seconds)

    def ratio(self, name: str) -> float | None:
        """Return the measured peak, divided by the baseline's; None if either is missing."""
        return _ratio(self.measured, name)

    def predicted_ratio(self, name: str) -> float | None:
        """Return the predicted peak, divided by the baseline's; None if either is missing."""
        return _ratio(self.predicted, name)


def _ratio(peaks: Mapping[str, int], name: str) -> float | None:
    return peaks[name] / peaks[BASELINE] if name in peaks and peaks.get(BASELINE) else None


def _too_large(size: int, limit: int) -> str:
    return f"{PREDICTED_OOM}: it is predicted to take {size / 2**30:.3g} GiB of the device's {limit / 2**30:.3g}"
