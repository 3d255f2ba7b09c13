"""The course of a study over a simulated training: the trade-off holds exactly, and every answer is known."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.batch_scaling.critical_batch import expected_efficiency
from paceline.batch_scaling.findings import ScaleFindings, findings_json
from paceline.batch_scaling.study import ScaleStudy, StudyFailed
from paceline.bench.clock import Clock
from paceline.bench.jobs import Answer, Job
from paceline.cluster.listener import SilentListener
from paceline.config.experiment import validate

OWN, TRAIN, EPOCHS = 32, 4000, 5


class SimulatedBench:
    """Training whose loss is a power of the samples that it has used well.

    Args:
        critical: critical batch size of the trade-off.
        step_seconds: fixed seconds of a step, and seconds of a sample.
        linear_to: the largest batch at which the linear rule works.
        believes: efficiency in trainings to the target, where it is another than in branches.
    """

    def __init__(
        self,
        critical: float = 200.0,
        step_seconds: tuple[float, float] = (0.01, 1e-5),
        linear_to: int = 10**6,
        verified_critical: float | None = None,
        metric: str = "val/accuracy",
        diverges: bool = False,
    ) -> None:
        self._critical, self._step_seconds, self._linear_to = critical, step_seconds, linear_to
        self._verified_critical = verified_critical or critical
        self._metric, self._diverges = metric, diverges
        self.jobs: list[Job] = []

    def do(self, job: Job) -> Answer:
        """Answer a job at once."""
        self.jobs.append(job)
        config = json.loads(job.configs[0].config_json)
        return Answer(getattr(self, f"_{job.name}")(config, job.options))

    def _look(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {"train_samples": TRAIN, "normalises_batches": False, "global_batch_size": OWN}

    def _throughput(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        size = config["data"]["global_batch_size"]
        return {"seconds_per_sample": [[(self._step_seconds[0] + size * self._step_seconds[1]) / size] * 3]}

    def _train_segment(self, config: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        segment = config["callbacks"][-1]["args"]
        if self._diverges:
            return {**EMPTY, "diverged": True}
        if "resume_from" in options:
            return self._branch(config)
        size, is_own = config["data"]["global_batch_size"], "checkpoints" in options
        critical = self._critical if is_own else self._verified_critical
        efficiency = expected_efficiency(size, OWN, critical) if self._works(config, size) else 0.01
        every = config["trainer"]["evaluate_every_n_steps"] * size
        evaluations, reached = [], None
        for samples in range(every, EPOCHS * TRAIN + 1, every):
            evaluations.append([samples, metrics_after(samples * efficiency, self._metric)])
            value = evaluations[-1][1].get(segment.get("metric"))
            if value is not None and value >= segment["target"]:
                reached = samples
                break
        last = evaluations[-1][0]
        return {
            **EMPTY,
            "evaluations": evaluations,
            "samples": last,
            "seconds": last / size * self._step_seconds[0] + last * self._step_seconds[1],
            "reached_samples": reached,
            "saved": [[each, f"step-{each // size}"] for each in segment.get("save_at", ()) if each < last],
        }

    def _branch(self, config: Mapping[str, Any]) -> dict[str, Any]:
        stages = config["data"]["batch_size_schedule"]
        start, size = stages[1]["samples"], stages[1]["global_batch_size"]
        if size == OWN:
            efficiency = 1.0
        else:
            efficiency = expected_efficiency(size, OWN, self._critical) if self._works(config, size) else 0.0
        every, step, samples = config["trainer"]["evaluate_every_n_steps"], start // OWN, start
        evaluations: list[Any] = []
        while samples < config["callbacks"][-1]["args"]["until_samples"]:
            step, samples = step + 1, samples + size
            if step % every == 0:
                evaluations.append([samples, metrics_after(start + (samples - start) * efficiency, self._metric)])
        return {**EMPTY, "evaluations": evaluations, "samples": samples - start}

    def _works(self, config: Mapping[str, Any], size: int) -> bool:
        return config["optimizer"]["lr_scaling"] != "linear" or size <= self._linear_to


EMPTY: dict[str, Any] = {
    "evaluations": [],
    "noise": [],
    "samples": 0,
    "seconds": 0.0,
    "reached_samples": None,
    "saved": [],
    "diverged": False,
}


def metrics_after(samples: float, metric: str) -> dict[str, float]:
    """Loss and accuracy after so many samples that were used well."""
    return {"val/loss": 10 / samples**0.5, metric: 1 - 10 / samples**0.5}


def study(bench: SimulatedBench, verifies: bool = True, **section: Any) -> ScaleFindings:
    """Run a study on a simulated bench, with a target that takes 12,000 samples or so."""
    config = validate(
        {
            "name": "simulated",
            "model": {"name": "mlp"},
            "data": {"name": "synthetic", "global_batch_size": OWN},
            "trainer": {"epochs": EPOCHS},
            "scaling": {"num_workers": 0},
            "scale": {"target": {"val/accuracy": 0.909}, **section},
        }
    )
    clock = Clock(1e6, 0.0, lambda: 0.0)
    return ScaleStudy(config, bench, clock, SilentListener(), Path("nowhere"), verifies).run()


def fastest_size(critical: float) -> int:
    """The batch that reaches the target soonest, of those that do so within the config's length."""
    samples = {size: 12_076 / expected_efficiency(size, OWN, critical) for size in (32, 64, 128, 256, 512)}
    in_reach = [size for size in samples if samples[size] <= EPOCHS * TRAIN]
    return min(in_reach, key=lambda size: samples[size] / size * (0.01 + size * 1e-5))


@pytest.mark.parametrize("critical", [100.0, 400.0])
def test_the_critical_batch_and_the_fastest_batch_are_found(critical: float) -> None:
    found = study(SimulatedBench(critical))
    assert found.critical is not None
    assert found.critical.size == pytest.approx(critical, rel=0.15)
    assert len(found.critical.by_samples) == 3
    assert found.recommended["data.global_batch_size"] == fastest_size(critical)
    assert (found.rule, found.recommended["optimizer.lr_scaling"]) == ("linear", "linear")
    assert found.speedup is not None
    assert found.speedup > 1
    assert found.measured_seconds == pytest.approx(found.predicted_seconds, rel=0.15)
    assert found.samples_spent > 0


def test_the_rule_that_works_is_taken_where_the_usual_one_breaks() -> None:
    found = study(SimulatedBench(400.0, linear_to=64))
    assert found.rule == "sqrt"
    assert found.recommended["optimizer.lr_scaling"] == "sqrt"


def test_where_a_step_takes_as_long_as_its_samples_the_config_stays_as_it_is() -> None:
    found = study(SimulatedBench(100.0, step_seconds=(0.0, 1e-4)))
    assert found.recommended == {}
    assert found.verifications == ()


def test_a_prediction_that_does_not_hold_is_not_recommended() -> None:
    # in training, twice the batch takes longer to the target, whatever the branches said
    found = study(SimulatedBench(400.0, step_seconds=(0.01, 2e-4), verified_critical=27.4), batch_sizes=[64])
    own, doubled = found.verifications
    assert min(doubled.seconds) > max(own.seconds)
    assert found.recommended == {}
    assert found.measured_seconds == found.own_seconds


def test_without_verification_the_recommendation_is_a_prediction() -> None:
    found = study(SimulatedBench(400.0), verifies=False)
    assert found.recommended
    assert (found.measured_seconds, found.speedup) == (None, None)


def test_without_a_target_it_is_the_loss_at_the_end() -> None:
    found = study(SimulatedBench(400.0), target=None)
    assert found.target.name == "val/loss"
    assert found.samples_to_target == pytest.approx(EPOCHS * TRAIN, rel=0.05)


@pytest.mark.parametrize(
    ("bench", "section", "code"),
    [
        (SimulatedBench(), {"target": {"val/accuracy": 0.99}}, "target-not-reached"),
        (SimulatedBench(), {"target": {"val/accuracy": 0.01}}, "target-at-once"),
        (SimulatedBench(), {"target": {"val/f1": 0.9}}, "target-unknown"),
        (SimulatedBench(diverges=True), {}, "baseline-diverged"),
    ],
)
def test_bad_targets_are_answered_in_words(bench: SimulatedBench, section: dict[str, Any], code: str) -> None:
    with pytest.raises(StudyFailed) as failed:
        study(bench, **section)
    assert failed.value.code == code


def test_the_json_has_the_promised_keys() -> None:
    found = findings_json(study(SimulatedBench(400.0)))
    promised = (
        *("critical_batch_size", "noise_scale", "recommended", "samples_spent"),
        *("predicted_seconds", "measured_seconds", "table"),
    )
    assert set(promised) <= found.keys()
    assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found))
