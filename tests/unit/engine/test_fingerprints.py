"""Which data a run was trained on: the fingerprint sees a change, and looking at samples changes nothing."""

import random
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from paceline.data._tensors import TensorData
from paceline.engine.dataset_identity import fingerprint, identities, read_contents, spaced
from paceline.engine.reporter import MemoryReporter
from paceline.errors import ConfigError, Problem
from support.toys import Points, built, fit, points, toy_config


def test_a_run_reports_its_data_once() -> None:
    (reported,) = [details for kind, details in fit(toy_config())[2].events if kind == "datasets"]
    train, validation = points()
    name = "support.toys:points"
    assert reported == {
        "training": {"name": name, "size": 96, "fingerprint": fingerprint(train)},
        "validation": {"name": name, "size": 30, "fingerprint": fingerprint(validation)},
    }
    assert fingerprint(train) != fingerprint(validation)


def test_sixteen_samples_from_the_first_to_the_last_are_looked_at() -> None:
    assert (spaced(1000)[0], spaced(1000)[-1], len(set(spaced(1000)))) == (0, 999, 16)
    assert [spaced(size) for size in (5, 1, 0)] == [[0, 1, 2, 3, 4], [0], []]


Named = namedtuple("Named", ["image", "label"])


def of(value: Any) -> str:
    """The fingerprint of a set with a value deep inside of one sample."""

    def sample(value: Any) -> dict[str, Any]:
        return {"image": (torch.zeros(2), [Named(np.ones(3, dtype=np.float32), value)]), "id": 3}

    return fingerprint([sample(0), sample(value), sample(0)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-6])),
        (torch.tensor([1.0, 2.0]), torch.tensor([[1.0, 2.0]])),
        (torch.tensor([0]), torch.tensor([0.0], dtype=torch.float64)),
        (np.array([1, 2]), np.array([2, 1])),
        (np.array([1, 2]), torch.tensor([1, 2])),
        (1, 1.0),
        ("a", b"a"),
        ([1, 2], [[1], 2]),
        ({"a": 1}, {"b": 1}),
        (None, 0),
    ],
)
def test_any_change_of_a_sample_that_is_looked_at_is_seen(before: Any, after: Any) -> None:
    assert of(before) == of(before)
    assert of(before) != of(after)


def test_one_changed_element_of_a_large_set_is_seen_where_it_is_looked_at() -> None:
    features = torch.arange(3000.0).reshape(1000, 3)
    changed = features.clone()
    changed[spaced(1000)[7], 2] += 1
    assert fingerprint(TensorData(features)) != fingerprint(TensorData(changed))
    assert fingerprint(TensorData(features)) != fingerprint(TensorData(features[:999]))
    assert fingerprint(TensorData(features)) != fingerprint(TensorDataset(features))


def test_bytes_count_and_not_how_they_lie_in_memory() -> None:
    image = torch.arange(6.0).reshape(2, 3)
    assert of(image.t()) == of(image.t().contiguous())
    assert of(torch.zeros(0, 3, dtype=torch.bfloat16))


def test_random_samples_have_the_same_fingerprint_each_time() -> None:
    torch.manual_seed(1)
    first = fingerprint(Points(96, noisy=True))
    torch.manual_seed(2)
    assert fingerprint(Points(96, noisy=True)) == first != fingerprint(Points(96))


class Drawing:
    """One that draws from generators of its own."""

    def __init__(self) -> None:
        self.generators = None
        self.torch = torch.Generator().manual_seed(1)
        self.numpy = np.random.default_rng(1)
        self.old_numpy = np.random.RandomState(1)
        self.python = random.Random(1)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        drawn = torch.rand(1, generator=self.torch).item(), self.numpy.random(), self.old_numpy.rand()
        return *drawn, self.python.random(), torch.rand(1).item(), np.random.rand(), random.random()


def test_no_generator_notices() -> None:
    def draws(look: bool) -> list[Any]:
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        dataset = Drawing()
        if look:
            fingerprint(dataset)
        return [dataset[0], dataset[1]]

    assert draws(look=True) == draws(look=False)


class Broken(Points):
    def __getitem__(self, index: int) -> Any:
        if index == 29:
            raise OSError
        return super().__getitem__(index)


def test_a_sample_that_cannot_be_loaded_leaves_the_fingerprint_out() -> None:
    found = identities("mine", read_contents({"training": Points(20), "validation": Broken(30)}))
    assert found["validation"] == {"name": "mine", "size": 30, "fingerprint": None}
    assert found["training"]["fingerprint"] == fingerprint(Points(20))


class Flipped(Points):
    """The same features with other targets."""

    def __getitem__(self, index: int) -> Any:
        features, target, number = super().__getitem__(index)
        return features, 2 - target, number


class Unseeded(Points):
    """Draws from a generator that differs in each process."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.inner = [np.random.default_rng()]

    def __getitem__(self, index: int) -> Any:
        features, target, number = super().__getitem__(index)
        return features + self.inner[0].random(), target, number


def resumed(folder: Path, before: Callable[[], Any], after: Callable[[], Any], **changes: Any) -> int:
    """Stop after four steps on data, and resume on others that the config calls the same; the step resumed from."""

    def of(make: Callable[[], Any]) -> Callable[[], Any]:
        def data() -> Any:
            return make()

        return data

    fit(toy_config(data__path=of(before)), checkpoints=folder, reporter=MemoryReporter(stop_at_step=4))
    return int(built(toy_config(data__path=of(after), **changes), folder).state.position.step)


def refused(folder: Path, before: Callable[[], Any], after: Callable[[], Any], **changes: Any) -> Problem:
    with pytest.raises(ConfigError) as caught:
        resumed(folder, before, after, **changes)
    (problem,) = caught.value.problems
    return problem


def test_a_run_is_not_resumed_with_other_targets(tmp_path: Path, golden: Any) -> None:
    problem = refused(tmp_path, points, lambda: (Flipped(96), Points(30)), data__num_workers=0, trainer__epochs=3)
    assert (problem.code, problem.key) == ("resume", "data")
    golden(str(problem))


def test_a_run_is_not_resumed_with_fewer_validation_samples(tmp_path: Path, golden: Any) -> None:
    problem = refused(tmp_path, points, lambda: points(96, 29))
    assert (problem.code, problem.key) == ("resume", "data")
    golden(str(problem))


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (points, points, {"data__cache": "memory", "trainer__epochs": 3}),
        (lambda: points(noisy=True), lambda: points(noisy=True), {}),
        (lambda: (Unseeded(96), Points(30)), lambda: (Unseeded(96), Points(30)), {}),
        (lambda: (Points(96), Broken(30)), lambda: (Points(96), Points(30)), {}),
        (points, lambda: (Flipped(96), Points(30)), {"model__args": {"width": 8}}),  # a fork: other data on purpose
    ],
    ids=["loading", "random", "unseeded", "unknown", "other-config"],
)
def test_a_run_is_resumed_where_no_difference_is_certain(
    tmp_path: Path, before: Any, after: Any, changes: dict[str, Any]
) -> None:
    assert resumed(tmp_path, before, after, **changes) == 4
