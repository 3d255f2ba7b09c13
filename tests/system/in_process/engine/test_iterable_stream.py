"""An iterable training set in one process: every sample once an epoch, also over a resume."""

from pathlib import Path
from typing import Any

import pytest

from paceline.errors import ConfigError, TrainingError
from support.refusals import refused
from support.streams import SAMPLES, stateful_stream, stream
from support.toys import built, fit, fit_in_two, toy_config


def config(**overrides: Any) -> Any:
    own = {"data__path": stream, "trainer__epochs": None, "trainer__max_steps": 14, "data__micro_batch_size": 8}
    return toy_config(**{**own, "trainer__evaluate_every_n_epochs": 0, **overrides})


def seen_by(trainer: Any) -> list[int]:
    return [index for batch in trainer.state.task.seen for index in batch]


def test_an_epoch_has_each_sample_once() -> None:
    trainer, outcome, _ = fit(config())
    seen = seen_by(trainer)
    assert sorted(seen[:SAMPLES]) == list(range(SAMPLES))
    assert seen[:SAMPLES] != sorted(seen[:SAMPLES])
    assert (outcome.step, outcome.epoch, outcome.samples) == (14, 2, 2 * SAMPLES + 2 * 16)
    assert len(set(seen[SAMPLES : 2 * SAMPLES])) == SAMPLES


def test_drop_last_leaves_the_short_batch_out() -> None:
    trainer, outcome, _ = fit(config(data__drop_last=True))
    assert outcome.samples == 14 * 16
    assert {len(batch) for batch in trainer.state.task.seen} == {8}


def test_drop_last_needs_one_whole_batch() -> None:
    refusal = refused(TrainingError, fit, config(data__drop_last=True, data__global_batch_size=96))
    assert (refusal.code, refusal.fields["samples"]) == ("too-few-samples", SAMPLES)


@pytest.mark.parametrize("data", [stream, stateful_stream])
@pytest.mark.parametrize("stop", [3, 6, 9])
def test_a_resumed_run_continues_the_stream(data: Any, stop: int, tmp_path: Path) -> None:
    whole, expected, _ = fit(config(data__path=data))
    resumed, outcome, _ = fit_in_two(config(data__path=data), tmp_path, stop)
    assert seen_by(resumed) == seen_by(whole)[-len(seen_by(resumed)) :]
    assert outcome.weights_sha256 == expected.weights_sha256
    if data is stateful_stream and stop != 6:
        assert resumed.data._shards.dataset.restored == 1


def test_a_sampler_is_refused() -> None:
    train, validation = stream()
    data = {"train": train, "validation": validation, "sampler": range(SAMPLES)}
    assert refused(ConfigError, fit, config(data__path=lambda: data)).problems[0].code == "iterable"


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"trainer__max_steps": None}, "trainer.max_steps"),
        ({"trainer__epochs": 2}, "trainer.epochs"),
        ({"data__cache": "memory"}, "data.cache"),
        ({"data__micro_batch_size": "max", "data__global_batch_size": 16}, "data.micro_batch_size"),
    ],
)
def test_what_needs_the_length_is_refused(overrides: dict[str, Any], key: str) -> None:
    refusal = refused(ConfigError, built, config(**overrides))
    assert [(each.code, each.key) for each in refusal.problems][-1] == ("iterable", key)
