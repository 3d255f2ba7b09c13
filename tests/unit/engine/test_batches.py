"""Batches of tensors in any nesting: moved, cast, and found."""

from collections import OrderedDict, UserDict, UserList
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from paceline.engine.batches import map_tensors, tensors_in
from paceline.engine.loading import Transfer

CPU = torch.device("cpu")
ONE, TWO = torch.ones(2), torch.full((3,), 2.0)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Sample:
    inputs: Any
    name: str = "sample"


class Encoding(UserDict[str, Any]):
    """A mapping with an attribute beside its items, as a tokenizer's."""

    def __init__(self, items: Any = None, lengths: tuple[int, ...] = ()) -> None:
        super().__init__(items or {})
        self.lengths = lengths


class Frozen(Mapping[str, Any]):
    """A mapping that cannot be changed."""

    def __init__(self, items: dict[str, Any]) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class Sharing(Frozen):
    """A mapping whose copies share its storage."""

    def __setitem__(self, key: str, item: Any) -> None:
        self._items[key] = item


class Graph:
    """A batch of unknown type that moves itself."""

    def __init__(self, nodes: Tensor) -> None:
        self.nodes = nodes

    def to(self, device: Any) -> "Graph":
        return Graph(self.nodes.to(device))


def doubled(batch: Any) -> Any:
    return map_tensors(batch, lambda tensor: tensor * 2)


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        (ONE, Tensor),
        ({"x": ONE}, dict),
        (OrderedDict(x=ONE), OrderedDict),
        (Encoding({"x": ONE}, (2,)), Encoding),
        (MappingProxyType({"x": ONE}), dict),
        (Frozen({"x": ONE}), dict),
        (Sharing({"x": ONE}), dict),
        ([ONE], list),
        ((ONE,), tuple),
        (UserList([ONE]), UserList),
        (Pair(ONE, "text"), Pair),
        (Sample(ONE), Sample),
        (UserDict(x=[Sample((ONE, None))]), UserDict),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, type) else "",
)
def test_each_container_is_mapped_and_keeps_its_type_if_it_can(batch: Any, kind: type) -> None:
    result = doubled(batch)
    assert isinstance(result, kind)
    assert [each.tolist() for each in tensors_in(result)] == [[2.0, 2.0]]
    assert [each is ONE for each in tensors_in(batch)] == [True]


def test_the_rest_of_a_container_stays() -> None:
    assert doubled(Encoding({"x": ONE}, (2,))).lengths == (2,)
    assert doubled(Sample(ONE, "other")).name == "other"
    unchanged = ("text", b"bytes", bytearray(b"more"), range(3), None, 4, object())
    assert doubled(unchanged) == unchanged


def test_tensors_are_found_in_order() -> None:
    batch = UserDict(pair=Pair(ONE, [TWO, 1]), text="tokens", rest=(Sample(ONE), None))
    assert [each.data_ptr() for each in tensors_in(batch)] == [each.data_ptr() for each in (ONE, TWO, ONE)]


@pytest.mark.parametrize(
    "batch", [UserDict(x=ONE), Sample(ONE), {"x": Pair(ONE, TWO)}], ids=["mapping", "class", "pair"]
)
def test_64_true_casts_what_is_in_any_container(batch: Any) -> None:
    moved = Transfer(CPU, torch.float64, torch.contiguous_format)(batch)
    assert {each.dtype for each in tensors_in(moved)} == {torch.float64}


def test_a_batch_is_moved_to_the_device() -> None:
    moved = Transfer(torch.device("meta"), None, torch.contiguous_format)(UserDict(x=ONE, graph=Graph(TWO)))
    assert moved["x"].is_meta
    assert moved["graph"].nodes.is_meta


def test_a_packed_sequence_moves_itself() -> None:
    """Its batch sizes stay on the CPU."""
    packed = pack_padded_sequence(torch.ones(2, 3, 1), torch.tensor([3, 2]), batch_first=True)
    moved = Transfer(torch.device("meta"), None, torch.contiguous_format)((packed, ONE))[0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.is_meta, moved.batch_sizes.device) == (True, CPU)
    cast = Transfer(CPU, torch.float64, torch.contiguous_format)(packed)
    assert (cast.data.dtype, cast.batch_sizes.dtype) == (torch.float64, torch.int64)
