"""What a data builder may return: several validation sets, a test set, a collator, a sampler."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import WeightedRandomSampler, random_split

from paceline.errors import UnusableCode
from support.refusals import refused
from support.toys import Points, fit, fit_in_two, toy_config


class Short(Points):
    """Samples of different lengths, without a collator."""

    def __getitem__(self, index: int) -> Any:
        features, target, number = super().__getitem__(index)
        return features[: 3 + index % 3], target, number


class Padding(Short):
    """The same with a collator of its own, which pads."""

    collations = 0

    def collate_fn(self, samples: list[Any]) -> Any:
        Padding.collations += 1
        features = torch.zeros(len(samples), 6, dtype=torch.float64)
        for row, (short, _, _) in enumerate(samples):
            features[row, : len(short)] = short
        return features, torch.tensor([each[1] for each in samples]), torch.tensor([each[2] for each in samples])


def several() -> dict[str, Any]:
    return {"train": Points(96), "validation": {"near": Points(30), "far": Points(12)}, "test": Points(7)}


def split_with_own_collator() -> Any:
    return random_split(Padding(120), [90, 30], generator=torch.Generator().manual_seed(0))


def with_collator() -> dict[str, Any]:
    plain = Padding(90)
    return {"train": Short(90), "validation": Short(30), "collate_fn": plain.collate_fn}


def weighted() -> dict[str, Any]:
    sampler = WeightedRandomSampler([0.0] * 48 + [1.0] * 48, 32, generator=torch.Generator())
    return {"train": Points(96), "validation": Points(30), "sampler": sampler}


def test_each_validation_set_has_metrics_of_its_own() -> None:
    _, outcome, _ = fit(toy_config(data__path=several))
    names = {name for name in outcome.metrics if name.startswith("val/")}
    assert names == {"val/near/loss", "val/near/accuracy", "val/far/loss", "val/far/accuracy"}
    alone = fit(toy_config())[1]
    assert outcome.metrics["val/near/loss"] == alone.metrics["val/loss"]
    assert outcome.weights_sha256 == alone.weights_sha256


def test_the_test_set_is_named_and_not_looked_at() -> None:
    sets = toy_config(data__path=several).data.sets()
    assert list(sets.roles) == ["training", "validation/near", "validation/far", "test"]


@pytest.mark.parametrize("data", [split_with_own_collator, with_collator])
def test_a_collator_is_used(data: Any) -> None:
    Padding.collations = 0
    fit(toy_config(data__path=data, trainer__epochs=1))
    assert Padding.collations == 6 + 2


def test_a_sampler_gives_the_order_and_resumes(tmp_path: Path) -> None:
    config = toy_config(data__path=weighted, trainer__epochs=3)
    trainer, whole, _ = fit(config, checkpoints=tmp_path / "whole")
    seen = [index for batch in trainer.state.task.seen for index in batch]
    assert (whole.step, len(seen)) == (6, 96)
    assert min(seen) >= 48
    assert seen[:32] != seen[32:64]
    parts = tmp_path / "parts"
    again, resumed, _ = fit_in_two(config, parts, 3)
    assert again.state.task.seen == trainer.state.task.seen[3:]
    assert resumed.weights_sha256 == whole.weights_sha256


class Ids:
    """A sampler that says it has 96 ids."""

    def __init__(self, ids: Any) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return 96

    def __iter__(self) -> Any:
        return iter(self.ids)


def sets(**parts: Any) -> dict[str, Any]:
    return {"train": Points(96), "validation": Points(30), **parts}


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        (3, "not-two-sets"),
        (Points(3), "not-two-sets"),
        ({"train": Points(3)}, "not-two-sets"),
        (sets(tests=1), "not-two-sets"),
        (sets(sampler=3), "bad-data-part"),
        (sets(sampler=iter(range(96))), "bad-data-part"),
        (sets(collate_fn=3), "bad-data-part"),
        (sets(validation={1: [], "1": []}), "bad-data-part"),
        (sets(sampler=Ids(range(50))), "sampler-length"),
        (sets(sampler=Ids(count())), "sampler-length"),
        (sets(sampler=Ids(["0"] * 96)), "sampler-id"),
        (sets(sampler=Ids([1.5] * 96)), "sampler-id"),
        (sets(sampler=Ids([[0, 1]] * 96)), "sampler-id"),
    ],
)
def test_something_else_is_refused(returned: Any, code: str) -> None:
    assert refused(UnusableCode, fit, toy_config(data__path=lambda: returned)).code == code
