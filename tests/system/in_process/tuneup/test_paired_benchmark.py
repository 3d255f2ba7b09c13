"""Two trainings that take turns in one process: neither changes the other, and their difference is measured."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from paceline.bench.stepper import Stepper, Window
from paceline.engine.dist_context import DistContext
from paceline.engine.state import weights_sha256
from paceline.tuneups.paired_benchmark import BenchmarkRules, alternating, paired_benchmark
from support.toys import net_with_dropout_and_norm, toy_config
from support.tuneup.clocked_training import check_turns, timed_benchmark

RULES = BenchmarkRules(window_seconds=0.1, min_pairs=1, max_pairs=1)


@pytest.fixture(autouse=True)
def _short_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.stepper.CALIBRATION_SECONDS", 0.01)


def stepper(**overrides: Any) -> Any:
    config = toy_config(model__path=net_with_dropout_and_norm, trainer__precision="32-true", **overrides)
    return closing(Stepper(config, DistContext.current()))


def weights(stepper: Stepper) -> str:
    return weights_sha256(stepper.trainer.state.model_tensors())


def test_a_training_that_takes_turns_computes_what_it_computes_alone() -> None:
    with stepper() as alone:
        alone.run(30)
        expected = weights(alone)
    other = {"optimizer__lr": 0.7, "trainer__float32_matmul_precision": "medium", "seed": 5}
    with stepper() as first, stepper(**other) as second:
        for _ in range(10):
            first.run(3)
            second.run(2)
        assert weights(first) == expected
        assert weights(second) != expected


def test_a_window_counts_the_samples_of_its_steps_over_the_ends_of_epochs() -> None:
    with stepper(data__global_batch_size=36) as training:  # 96 samples: 36, 36, 24
        windows = [training.run(2) for _ in range(3)]
    assert [(window.steps, window.samples) for window in windows] == [(2, 72), (2, 60), (2, 60)]
    assert all(window.seconds > 0 for window in windows)


def test_nothing_is_evaluated_between_the_steps() -> None:
    with stepper(trainer__evaluate_every_n_steps=1) as training:
        training.run(8)
        assert "train/loss" in training.trainer.state.metrics
        assert [name for name in training.trainer.state.metrics if name.startswith("val/")] == []


def test_settings_of_the_process_hold_in_the_turns_of_their_config_alone() -> None:
    seen: list[tuple[str, int]] = []
    other = {"trainer__float32_matmul_precision": "medium", "scaling__cpus_per_worker": 2}
    with stepper() as first, stepper(**other) as second:
        for each in [first, second] * 2:
            each.run(1)
            seen.append((torch.get_float32_matmul_precision(), torch.get_num_threads()))
    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(1)
    assert seen == [("highest", 1), ("medium", 2)] * 2


def test_warnings_of_the_engine_are_reported_with_the_benchmark() -> None:
    with stepper() as baseline, stepper(trainer__remove_redundant_bias=True) as technique:  # there is no convolution
        found = alternating(baseline, technique, RULES, DistContext.current())
    assert len(found.warnings) == 1
    assert found.build_seconds > 0


def test_turns_take_the_same_time_on_both_sides() -> None:
    check_turns([timed_benchmark(DistContext.current())])


SAMPLE_SECONDS = 0.001


class Constant(Stepper):
    """Takes as long for each sample as its learning rate says."""

    def run(self, steps: int) -> Window:
        window = super().run(steps)
        return window._replace(seconds=window.samples * self.trainer.state.optimizer.param_groups[0]["lr"] / 100)


@pytest.mark.parametrize(("lr", "pairs"), [(0.1, 6), (0.05, 6), (0.115, 3), (0.105, 6)])
def test_a_benchmark_may_end_once_it_is_clearly_slower(monkeypatch: pytest.MonkeyPatch, lr: float, pairs: int) -> None:
    monkeypatch.setattr("paceline.tuneups.paired_benchmark.Stepper", Constant)
    config = toy_config(trainer__precision="32-true")
    technique = config.with_overrides({"optimizer.lr": lr})
    for ends_when_slower, expected in [(True, pairs), (False, 6)]:
        rules = BenchmarkRules(0.01, 3, 6, ends_when_slower=ends_when_slower)
        assert len(paired_benchmark(config, technique, rules, DistContext.current()).pairs) == expected


class Counted(Stepper):
    """Knows how many are alive, and the most that there were. Its clock says the same of each sample."""

    alive = most = 0

    def __init__(self, config: Any, ranks: DistContext) -> None:
        super().__init__(config, ranks)
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def run(self, steps: int) -> Window:
        window = super().run(steps)
        return window._replace(seconds=window.samples * SAMPLE_SECONDS)

    def close(self) -> None:
        super().close()
        Counted.alive -= 1


@pytest.mark.parametrize("is_technique_first", [False, True])
@pytest.mark.parametrize(("in_turn", "most"), [(False, 2), (True, 1)])
def test_in_turn_only_one_of_the_two_is_built_at_a_time(
    monkeypatch: pytest.MonkeyPatch, in_turn: bool, most: int, is_technique_first: bool
) -> None:
    monkeypatch.setattr("paceline.tuneups.paired_benchmark.Stepper", Counted)
    monkeypatch.setattr(Counted, "most", 0)
    config = toy_config(model__path=net_with_dropout_and_norm, trainer__precision="32-true")
    technique = config.with_overrides({"trainer.remove_redundant_bias": True})  # it warns
    rules = BenchmarkRules(0.02, 2, 2, in_turn=in_turn, is_technique_first=is_technique_first)
    found = paired_benchmark(config, technique, rules, DistContext.current())
    assert (len(found.pairs), len(found.warnings), Counted.most, Counted.alive) == (2, 1, most, 0)
    assert np.allclose(found.pairs, SAMPLE_SECONDS)
