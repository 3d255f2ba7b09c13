"""`data.batch_size_schedule`: its steps, what follows from it, and what it does not go with."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.config.batch_size_schedule import BatchSizeSchedule, ScheduledSteps, StepPosition
from paceline.config.batch_sizes import batch_sizes, largest_sizes, stage_sizes
from paceline.config.data import Sizes
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from support.configs import config_of, problems_of

SCHEDULE = [{"samples": 0, "global_batch_size": 64}, {"samples": 400, "global_batch_size": 256}]


def make(schedule: list[dict[str, int]] | None = None, **more: Any) -> ExperimentConfig:
    return config_of(data__batch_size_schedule=schedule or SCHEDULE, **more)


def walked(steps: ScheduledSteps, count: int) -> list[StepPosition]:
    """The position before each of the first steps, one by one: a stage is looked up for each."""

    def size_at(samples: int) -> int:
        stages = zip(steps.schedule.starts, steps.schedule.sizes, strict=True)
        return [size for start, size in stages if start <= samples][-1]

    found, at = [], StepPosition(0, 0, 0, 0)
    while len(found) < count:
        found.append(at)
        size = size_at(at.samples)
        taken = min(size, steps.epoch_samples - at.epoch_samples)
        at = StepPosition(at.step + 1, at.epoch, at.epoch_samples + taken, at.samples + taken)
        left = steps.epoch_samples - at.epoch_samples
        after = size_at(at.samples)
        if left == 0 or (steps.drop_last and left < after):
            at = at._replace(epoch=at.epoch + 1, epoch_samples=0)
    return found


schedules = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 20)), min_size=1, max_size=4).map(
    lambda stages: BatchSizeSchedule(
        tuple(sum(gap for gap, _ in stages[1 : index + 1]) for index in range(len(stages))),
        tuple(size for _, size in stages),
    )
)


@given(schedules, st.integers(20, 70), st.booleans(), st.integers(0, 60), st.integers(0, 6))
@settings(max_examples=150, deadline=None)
def test_positions_are_those_of_single_steps(
    schedule: BatchSizeSchedule, samples: int, drop_last: bool, steps: int, epochs: int
) -> None:
    found = ScheduledSteps(schedule, samples, drop_last)
    expected = walked(found, 70 * 7)
    assert found.after(steps) == expected[steps]
    assert found.after(epochs=epochs) == next(at for at in expected if at.epoch == epochs and at.epoch_samples == 0)
    assert found.after(steps, epochs) == min(found.after(steps), found.after(epochs=epochs))
    begins: dict[int, StepPosition] = {}
    for at in expected:
        begins.setdefault(schedule.stage_at(at.samples), at)
    assert found.first_steps() == list(begins.values())


@given(schedules, st.integers(20, 70), st.booleans(), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_batches_of_an_epoch_follow_from_any_position(
    schedule: BatchSizeSchedule, samples: int, drop_last: bool, step: int
) -> None:
    found = ScheduledSteps(schedule, samples, drop_last)
    at = found.after(step)
    begin = found.after(epochs=at.epoch)
    whole = list(found.batches(0, begin.samples))
    rest = list(found.batches(at.epoch_samples, at.samples))
    assert rest == whole[len(whole) - len(rest) :]
    assert len(whole) == found.after(epochs=at.epoch + 1).step - begin.step
    assert [is_last for *_, is_last in whole] == [False] * (len(whole) - 1) + [True]
    assert [start for start, *_ in whole[1:]] == [stop for _, stop, *_ in whole[:-1]]
    assert drop_last or whole[-1][1] == samples


def test_a_long_training_takes_no_time() -> None:
    schedule = BatchSizeSchedule((0, 10**12, 2 * 10**12), (1, 64, 512))
    end = ScheduledSteps(schedule, 1_281_167, drop_last=False).after(epochs=10**6)
    assert end.epoch == 10**6
    assert end.samples == 1_281_167 * 10**6


def test_stages_are_half_open() -> None:
    schedule = BatchSizeSchedule((0, 128), (64, 256))
    assert [schedule.stage_at(samples) for samples in (0, 127, 128, 129)] == [0, 0, 1, 1]


def test_the_setting_that_is_given_stays_and_the_other_follows() -> None:
    def cut(**more: Any) -> list[tuple[int, int]]:
        return [(each.micro_batch_size, each.gradient_accumulation_steps) for each in stage_sizes(make(**more))]

    assert cut() == [(64, 1), (256, 1)]
    assert cut(data__micro_batch_size=32) == [(32, 2), (32, 8)]
    assert cut(trainer__gradient_accumulation_steps=4) == [(16, 4), (64, 4)]
    assert cut(data__micro_batch_size=16, scaling__num_workers=2) == [(16, 2), (16, 8)]
    assert cut(data__global_batch_size=64) == [(64, 1), (256, 1)]


def test_one_stage_is_one_global_batch_size() -> None:
    config = make([{"samples": 0, "global_batch_size": 48}])
    assert stage_sizes(config) == []
    assert batch_sizes(config) == largest_sizes(config) == batch_sizes(config_of(data__global_batch_size=48))
    known = Sizes(1000, 10)
    assert derive(config, known) == derive(config_of(data__global_batch_size=48), known)


def test_derived_values_are_those_of_the_stages() -> None:
    linear = {"optimizer__lr_scaling": "linear", "optimizer__base_batch_size": 64}
    config = make(optimizer__lr=0.1, trainer__epochs=2, lr_scheduler__warmup_samples=656, **linear)
    derived = derive(config, Sizes(1000, 10))
    # 7 steps of 64 to sample 448, 2 of 256 and one of 40; then 4 in the second epoch
    assert derived.total_steps == 7 + 3 + 4
    assert (derived.total_samples, derived.total_epochs, derived.steps_per_epoch) == (2000, 2.0, None)
    assert [(stage.first_step, stage.lr) for stage in derived.stages] == [(0, 0.1), (7, 0.4)]
    assert derived.warmup_steps == round(656 / 64)
    assert [text for label, text in derived.lines() if label == "learning rate"] == [
        "0.1 x 64/64 (linear) = 0.1",
        "0.1 x 256/64 (linear) = 0.4",
    ]
    unknown = derive(config, None)
    assert (unknown.total_steps, unknown.warmup_steps, unknown.total_samples) == (None, None, None)
    stopped = derive(make(trainer__max_steps=9), Sizes(1000, 10))
    assert (stopped.total_steps, stopped.total_samples) == (9, 7 * 64 + 2 * 256)


def test_warmup_epochs_are_those_of_the_first_size() -> None:
    config = make(trainer__epochs=4, lr_scheduler__warmup_epochs=1.5)
    assert derive(config, Sizes(1000, 10)).warmup_steps == 16 + 8


def stage(samples: int, size: int) -> dict[str, int]:
    return {"samples": samples, "global_batch_size": size}


BY_STAGES = {"data__batch_size_schedule": SCHEDULE}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data__batch_size_schedule": []}, "data.batch_size_schedule"),
        ({"data__batch_size_schedule": [stage(10, 8)]}, "data.batch_size_schedule.0.samples"),
        ({"data__batch_size_schedule": [stage(0, 8), stage(0, 16)]}, "data.batch_size_schedule.1.samples"),
        ({"data__batch_size_schedule": [stage(0, 8), stage(9, 9), stage(5, 8)]}, "data.batch_size_schedule.2.samples"),
        ({"data__batch_size_schedule": [stage(0, 0)]}, "data.batch_size_schedule.0.global_batch_size"),
        (
            {"data__batch_size_schedule": [stage(0, 64), stage(100, 100)], "data__micro_batch_size": 32},
            "data.batch_size_schedule.1.global_batch_size",
        ),
        ({**BY_STAGES, "data__global_batch_size": 256}, "data.global_batch_size"),
        ({**BY_STAGES, "data__micro_batch_size": "max"}, "data.micro_batch_size"),
        (
            {**BY_STAGES, "data__micro_batch_size": 64, "trainer__gradient_accumulation_steps": 1},
            "trainer.gradient_accumulation_steps",
        ),
        ({**BY_STAGES, "optimizer__lr_scaling": "adascale", "data__micro_batch_size": 64}, "data.batch_size_schedule"),
        (
            {**BY_STAGES, "data__micro_batch_size": 32, "parallel__static_graph": True, "scaling__num_workers": 2},
            "parallel.static_graph",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_at_its_place(changes: dict[str, Any], key: str) -> None:
    problems = problems_of(lambda: config_of(**changes))
    assert [problem.key for problem in problems] == [key]


def test_an_epoch_without_a_step_in_a_stage_is_refused() -> None:
    problems = problems_of(derive, make(data__drop_last=True), Sizes(200, 10))
    assert [problem.key for problem in problems] == ["data.batch_size_schedule"]
    assert derive(make(), Sizes(200, 10)).total_steps == math.ceil(200 / 64)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("steps", "known here: samples, global_batch_size"),
        ("batch_size", "did you mean data.batch_size_schedule.0.global_batch_size?"),
    ],
)
def test_an_unknown_key_of_a_stage_names_those_of_a_stage(key: str, hint: str) -> None:
    problems = problems_of(lambda: config_of(data__batch_size_schedule=[{"samples": 0, key: 8}]))
    assert {problem.key: problem.hint for problem in problems}[f"data.batch_size_schedule.0.{key}"] == hint


def test_a_key_of_all_stages_is_none() -> None:
    axes = {"space": {"data.batch_size_schedule.samples": [1, 2]}}
    problems = problems_of(lambda: config_of(**BY_STAGES, sweep=axes))
    assert [problem.code for problem in problems] == ["unknown-key"]


def test_a_stage_after_the_end_of_the_training_is_a_warning() -> None:
    def warnings(start: int) -> list[str]:
        config = config_of(data__batch_size_schedule=[stage(0, 8), stage(start, 16)], trainer__epochs=2)
        return [text for text in derive(config, Sizes(200, 10)).warnings if "stage-never-begins" in text]

    assert not warnings(399)
    assert len(warnings(400)) == 1
    assert "400 samples" in warnings(400)[0]
