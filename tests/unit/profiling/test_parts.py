"""The clock of a step's parts, time in which nothing is done, and figures that follow from a split."""

import json
from collections.abc import Callable
from time import perf_counter, sleep, thread_time

import pytest

from paceline.profiling.clock import BlockedTime, PartClock
from paceline.profiling.parts import OWN, PARTS, RankSplit, StepSplit, fixed_seconds, share_waited


def blocked_share(blocked: BlockedTime, function: Callable[[], object]) -> float:
    """The part of a call's time in which nothing was done."""
    blocked.reset()
    start = perf_counter()
    blocked.watched("call", function)()
    return blocked.seconds["call"] / (perf_counter() - start)


def test_time_in_which_nothing_is_done_is_told() -> None:
    """Of five calls the clearest: other threads of this process count as work, and others may take the core."""
    blocked = BlockedTime()
    if not blocked.is_known:
        pytest.skip("only Linux tells")

    def work() -> None:
        end = thread_time() + 0.05
        while thread_time() < end:
            pass

    resting = max(blocked_share(blocked, lambda: sleep(0.05)) for _ in range(5))
    working = min(blocked_share(blocked, work) for _ in range(5))
    blocked.close()
    assert 0.95 < resting <= 1
    assert working < 0.1


def test_who_comes_last_waits_for_nobody() -> None:
    communication, waiting = share_waited([[5.0, 1.0], [2.0, 4.0], [2.0, 1.0]])
    assert communication == [2.0, 1.0]
    assert waiting == [[3.0, 0.0], [0.0, 3.0], [0.0, 0.0]]


def test_an_inner_part_is_not_the_outer_ones() -> None:
    clock = PartClock()
    clock.begin()
    with clock.part("data"):
        sleep(0.02)
        with clock.part("transfer"):
            sleep(0.02)
    clock.end_step()
    (step,) = clock.steps
    assert step["data"] >= 0.02
    assert step["transfer"] >= 0.02
    clock.begin()
    with clock.part("backward"):
        sleep(0.02)
    before = dict(clock._step)
    clock.move(1.0, "backward", "communication")  # never more than there is
    assert clock._step["communication"] == before["backward"]
    assert clock._step["backward"] == 0


def test_a_device_is_waited_for_at_each_change_of_part_unless_it_runs_free() -> None:
    waits = []
    clock = PartClock(lambda: waits.append(1))
    with clock.part("forward"):
        assert len(waits) == 1
    assert len(waits) == 2
    clock.waits_for_device = False
    with clock.part("forward"):
        pass
    assert len(waits) == 2


def made(micro_batch_size: int, *compute: float) -> StepSplit:
    """A split of ranks that only compute for so many seconds."""
    ranks = tuple(RankSplit({**dict.fromkeys(PARTS, 0.0), "forward": each}, each) for each in compute)
    return StepSplit(0, ranks, 1, micro_batch_size, micro_batch_size * len(ranks), 1000)


def test_the_fixed_part_of_a_step_follows_from_two_sizes() -> None:
    assert fixed_seconds(made(2, 1.2), made(8, 1.8)) == pytest.approx(1.0)  # 1.0 + 0.1 a sample
    assert fixed_seconds(made(2, 2.0), made(8, 8.0)) == pytest.approx(0.0)
    assert fixed_seconds(made(2, 2.0), made(8, 1.0)) == 2.0  # noise: no more than there is
    assert fixed_seconds(made(2, 2.0), None) is fixed_seconds(made(2, 2.0), made(2, 2.0)) is None


def test_a_split_as_json() -> None:
    told = json.loads(json.dumps(made(4, 1.0, 3.0).to_json()))
    assert told["world_size"] == 2
    assert told["own_seconds_of_ranks"] == [1.0, 3.0]
    assert told["parts"]["forward"] == {"seconds": 1, "fraction": 1, "median_seconds": 2, "max_seconds": 3}
    assert set(told["parts"]) == set(PARTS) > set(OWN)
