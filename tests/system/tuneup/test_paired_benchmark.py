"""A paired benchmark on two ranks."""

from support.ranks import run_ranks
from support.tuneup.clocked_training import check_turns, timed_benchmark


def test_all_ranks_measure_the_same_turns() -> None:
    check_turns(run_ranks(timed_benchmark, 2))
