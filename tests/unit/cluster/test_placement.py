"""Whether nodes can hold workers: by hand, and against trying every way to place them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cluster.placement import (
    NodeType,
    Request,
    Room,
    asked_text,
    fits,
    groups_that_fit,
    hint_text,
    most_workers,
    nodes_to_add,
    too_small,
)
from paceline.cluster.preflight import Resources, check_resources, request_of
from paceline.errors import EnvironmentFault
from support.cluster.local_runs import local_config
from support.golden import Golden
from support.refusals import refused

TWO = (Room(2, 0), Room(2, 0))


@pytest.mark.parametrize(
    ("request_", "rooms", "expected"),
    [
        (Request(4, 1, 0, "pack"), TWO, True),
        (Request(5, 1, 0, "spread"), TWO, False),
        (Request(1, 3, 0, "pack"), TWO, False),  # four cores, but no node has three
        (Request(2, 1, 0, "strict_spread", groups=2), (Room(3, 0), Room(1, 0)), False),
        (Request(2, 1, 1, "strict_pack"), (Room(8, 1), Room(8, 1)), False),
        (Request(3, 1, 0.6, "pack"), (Room(8, 2),), False),  # 1.8 of 2 GPUs, but each of one GPU
        (Request(10, 0.1, 0, "pack"), (Room(1, 0),), True),
        (Request(3, 0.1, 0, "pack"), (Room(0.3, 0),), True),
    ],
)
def test_by_hand(request_: Request, rooms: Sequence[Room], expected: bool) -> None:
    assert fits(request_, rooms) is expected


def placed(request: Request, rooms: Sequence[Room]) -> bool:
    """The same by trying: each worker on each node in turn, GPUs one by one."""
    cpus = [room.cpus for room in rooms]
    gpus = [[1.0] * int(room.gpus) for room in rooms]
    homes: list[list[int]] = [[] for _ in range(request.groups)]

    def take(worker: int) -> bool:
        if worker == request.workers * request.groups:
            return True
        home = homes[worker // request.workers]
        for node in range(len(rooms)):
            if request.placement == "strict_pack" and home and home[0] != node:
                continue
            if (request.placement == "strict_spread" and node in home) or cpus[node] < request.cpus:
                continue
            before = list(gpus[node])
            if not take_gpus(gpus[node], request.gpus):
                gpus[node] = before
                continue
            cpus[node] -= request.cpus
            home.append(node)
            if take(worker + 1):
                return True
            home.pop()
            cpus[node] += request.cpus
            gpus[node] = before
        return False

    return take(0)


def take_gpus(free: list[float], wanted: float) -> bool:
    left = wanted
    for index, share in enumerate(free):
        part = min(left, 1.0)
        if left > 0 and share >= part:
            free[index] -= part
            left -= part
    return left <= 0


rooms_of = st.lists(
    st.builds(Room, st.sampled_from([0.0, 1.0, 2.0, 3.0]), st.sampled_from([0.0, 1.0, 2.0])), min_size=1, max_size=3
)
requests = st.builds(
    Request,
    workers=st.integers(1, 3),
    cpus=st.sampled_from([0.5, 1.0, 2.0]),
    gpus=st.sampled_from([0.0, 0.25, 0.75, 1.0, 2.0]),
    placement=st.sampled_from(["pack", "spread", "strict_pack", "strict_spread"]),
    groups=st.integers(1, 2),
)


@settings(max_examples=200, deadline=None)
@given(requests, rooms_of)
def test_it_fits_whenever_there_is_a_way_and_only_then(request_: Request, rooms: list[Room]) -> None:
    assert fits(request_, rooms) is placed(request_, rooms)


@settings(max_examples=75, deadline=None)
@given(requests, rooms_of, st.tuples(st.integers(0, 2), st.integers(0, 2)), st.sampled_from([None, 1, 3]))
def test_the_fewest_nodes_are_added(
    request_: Request, rooms: list[Room], more: tuple[int, int], limit: int | None
) -> None:
    types = [NodeType("small", Room(1, 0), more[0]), NodeType("large", Room(3, 2), more[1])]
    choices = [
        small + large
        for small, large in product(range(more[0] + 1), range(more[1] + 1))
        if (limit is None or small + large <= limit)
        and placed(request_, [*rooms, *[types[0].room] * small, *[types[1].room] * large])
    ]
    added = nodes_to_add(request_, rooms, types, limit)
    assert (added is None) == (not choices)
    if added is not None:
        assert sum(added.values()) == min(choices)
        new = [each.room for each in types for _ in range(added.get(each.name, 0))]
        assert placed(request_, [*rooms, *new])


@settings(max_examples=50, deadline=None)
@given(requests, rooms_of)
def test_the_most_that_fits(request_: Request, rooms: list[Room]) -> None:
    groups = groups_that_fit(request_, rooms)
    assert groups == 0 or fits(replace(request_, groups=groups), rooms)
    assert not fits(replace(request_, groups=groups + 1), rooms)
    workers = most_workers(request_, rooms)
    assert workers == max(
        (n for n in range(1, request_.workers + 1) if fits(replace(request_, workers=n), rooms)), default=0
    )


def test_large_requests_are_answered_at_once() -> None:
    assert groups_that_fit(Request(1000, 1, 0, "strict_spread"), [Room(64, 8)] * 1000) == 64
    assert most_workers(Request(65_536, 1, 1, "strict_pack"), [Room(64, 8)] * 1000) == 8


def test_the_fix_fits(golden: Golden) -> None:
    three = Request(3, 1, 0, "strict_spread")
    requests = {
        "spread": three,
        "cores": Request(1, 3, 0, "pack"),
        "GPUs": Request(1, 1, 1, "pack"),
        "slots": Request(2, 1, 0, "pack", groups=3),
    }
    golden(asked_text(three), "asked")
    for name, request in requests.items():
        golden(hint_text(request, TWO), name)
    error = too_small(three, TWO, "no room")
    assert (error.code, error.fields["workers"], error.fields["most_workers"]) == ("cluster-too-small", 3, 2)


def config(**scaling: Any) -> Any:
    return local_config(scaling={"use_gpu": False, **scaling})


def test_one_machine_does_not_spread_its_workers_over_nodes(golden: Golden) -> None:
    spread = config(num_workers=2, placement="strict_spread")
    refusal = refused(EnvironmentFault, check_resources, spread, Resources.of_machine(8, 0), "this machine")
    assert (refusal.code, refusal.fields["most_workers"]) == ("cluster-too-small", 1)
    golden(str(refusal))
    assert check_resources(spread, Resources((Room(4, 0), Room(4, 0))), "the cluster") is False


@pytest.mark.parametrize(
    ("scaling", "gpus", "asked"),
    [({"num_workers": 4}, 2, 4), ({"num_workers": [3, 4]}, 2, 3), ({"num_workers": 2, "cpus_per_worker": 0.5}, 1, 2)],
)
def test_too_few_gpus_are_not_replaced_by_cpu_cores(scaling: dict[str, Any], gpus: int, asked: int) -> None:
    auto = config(**scaling, use_gpu="auto")
    refusal = refused(EnvironmentFault, check_resources, auto, Resources.of_machine(8, gpus), "this machine")
    fields = refusal.fields
    assert (refusal.code, fields["asked"], fields["available"]) == ("too-few-gpus", asked, gpus)
    assert check_resources(auto, Resources.of_machine(8, 0), "this machine") is False
    assert check_resources(auto, Resources.of_machine(8, asked), "this machine") is True


def test_an_elastic_run_needs_room_for_its_fewest_workers(golden: Golden) -> None:
    elastic = config(num_workers=[2, 4], cpus_per_worker=2)
    assert request_of(elastic, use_gpu=False) == Request(2, 2.0, 0.0, "pack", key="scaling.min_workers")
    assert check_resources(elastic, Resources.of_machine(4, 0), "this machine") is False
    refusal = refused(EnvironmentFault, check_resources, elastic, Resources.of_machine(3, 0), "this machine")
    assert (refusal.code, refusal.fields["asked"]) == ("too-few-cores", 4)
    assert refusal.fields["key"] == "scaling.min_workers"
    golden(str(refusal))
