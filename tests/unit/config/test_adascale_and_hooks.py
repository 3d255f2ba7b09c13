"""AdaScale and compressed gradients: what they need, what they contradict, and what is shown before a run."""

from collections.abc import Callable
from typing import Any

import pytest

from paceline.config.derived import derive
from paceline.config.loading import validate
from paceline.data.base import Sizes
from paceline.errors import ConfigError
from support.golden import Golden

HEAD = {"name": "run", "model": {"path": "own_nets:build"}, "data": {"path": "own_nets:data"}}
ADASCALE = "optimizer: {name: sgd, lr_scaling: adascale}\n"
TWO = "scaling: {num_workers: 2}\n"


def lines(**changes: Any) -> list[tuple[str, str]]:
    """The table before a run over 100 samples; `changes` are by dotted key, with `__` for the dot."""
    config = validate(HEAD).with_overrides({key.replace("__", "."): value for key, value in changes.items()})
    return derive(config, Sizes(100, 10)).lines()


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        (ADASCALE, "optimizer.lr_scaling", 4),
        ("optimizer: {name: adamw, lr_scaling: adascale}\n" + TWO, "optimizer.lr_scaling", 4),
        (ADASCALE + TWO + "parallel: {strategy: fsdp}\n", "optimizer.lr_scaling", 4),
        (ADASCALE + TWO + "parallel: {comm_hook: powersgd}\n", "optimizer.lr_scaling", 4),
        ("parallel: {comm_hook: bf16, strategy: fsdp}\n" + TWO, "parallel.comm_hook", 4),
        ("parallel: {comm_hook: powersgd}\ntrainer: {precision: 16-mixed}\n" + TWO, "parallel.comm_hook", 4),
        (
            "parallel: {static_graph: true}\ntrainer: {gradient_accumulation_steps: 2}\n" + TWO,
            "parallel.static_graph",
            4,
        ),
    ],
)
def test_contradictions(text: str, key: str, line: int, refused: Callable[..., None]) -> None:
    refused(text, "contradiction", key, line)


def test_the_largest_micro_batch_says_nothing_about_accumulation() -> None:
    sizes = {"data__global_batch_size": 64, "data__micro_batch_size": "max", "optimizer__lr_scaling": "adascale"}
    with pytest.raises(ConfigError) as caught:
        lines(**sizes)
    assert [(problem.code, problem.key) for problem in caught.value.problems] == [
        ("contradiction", "optimizer.lr_scaling")
    ]
    assert ("learning rate", "0.1 x gain (adascale, 0.25 to 1)") in lines(**sizes, scaling__num_workers=2)


def test_batch_sizes_that_do_not_work_out_are_the_only_thing_told() -> None:
    with pytest.raises(ConfigError) as caught:
        lines(optimizer__lr_scaling="adascale", data__global_batch_size=7, data__micro_batch_size=2)
    assert [problem.code for problem in caught.value.problems] == ["batch"]


@pytest.mark.parametrize(
    ("batch", "shown"), [(1024, "1 to 4"), (384, "1 to 1.5"), (64, "0.25 to 1"), (256, "always 1")]
)
def test_the_range_of_the_gain_is_shown(batch: int, shown: str) -> None:
    table = lines(optimizer__lr_scaling="adascale", data__global_batch_size=batch, scaling__num_workers=2)
    assert ("learning rate", f"0.1 x gain (adascale, {shown})") in table


def test_accumulation_is_enough_for_one_worker() -> None:
    table = lines(optimizer__lr_scaling="adascale", trainer__gradient_accumulation_steps=2)
    assert [label for label, _ in table if label == "warning"] == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"parallel__comm_hook": "bf16"},
            ["parallel.comm_hook"],
        ),
        (
            {"parallel__powersgd_rank": 4, "parallel__comm_hook": "fp16", "scaling__num_workers": 2},
            ["parallel.powersgd_rank"],
        ),
        (
            {"parallel__comm_hook": "powersgd", "trainer__max_steps": 1, "scaling__num_workers": 2},
            ["parallel.powersgd_start_step of 1,000 is not reached in 1 step of training"],
        ),
        (
            {
                "parallel__comm_hook": "powersgd",
                "parallel__powersgd_start_step": 3,
                "trainer__epochs": 2,
                "trainer__precision": "64-true",
                "scaling__num_workers": 2,
            },
            [],
        ),
    ],
)
def test_warnings(changes: dict[str, Any], expected: list[str], golden: Golden) -> None:
    warnings = [text for label, text in lines(**changes) if label == "warning"]
    assert [text.partition(":")[0] for text in warnings] == expected
    golden("\n".join(warnings))
