"""Notes about techniques for which there was too little time: how much more they would take."""

from collections.abc import Callable, Collection, Iterator, Sequence

from paceline.reports.text import counted
from paceline.tuneups.outcome import Note, TechniqueResult
from paceline.tuneups.statistics.sequential_test import LOOKS

MORE_TIME = "nothing is known, for want of time (tuneup.budget_seconds)"


def time_notes(
    results: Sequence[TechniqueResult],
    too_slow: Collection[str],
    benchmark_seconds: float,
    build_seconds: Callable[[int], float],
) -> Iterator[Note]:
    """Return a note for each of: techniques without a result, undecided ones, and those with too few builds for a test.

    Args:
        too_slow: names of those that were ended at their time limit: how long they take is not known.
        benchmark_seconds: of the screening of a technique.
        build_seconds: seconds of a build with a number of techniques.
    """
    if untried := [each.name for each in results if each.is_untried]:
        yield Note(_untried(untried, too_slow, benchmark_seconds), "no-time")
    if undecided := [each for each in results if _builds_to_come(each) and not each.is_decided]:
        builds = max(map(_builds_to_come, undecided))
        lacking = _lacking(builds, build_seconds(len(undecided)))
        yield Note(f"undecided: {_names(undecided)}; {builds} more builds would do, {lacking}", "undecided")
    if begun := [each for each in results if not each.is_decided and not each.is_untried and each.builds < LOOKS[0]]:
        builds = LOOKS[0] - min(each.builds for each in begun)
        takes = f"the first one takes {counted(builds, 'more build')}"
        lacking = _lacking(builds, build_seconds(len(begun)))
        yield Note(f"too few builds for any verdict: {_names(begun)}; {takes}, {lacking}", "too-few-builds")


def _untried(names: Sequence[str], too_slow: Collection[str], benchmark_seconds: float) -> str:
    text = f"{MORE_TIME}, of {counted(len(names), 'technique')}: {', '.join(names)}"
    waiting = sum(name not in too_slow for name in names)
    seconds = waiting * benchmark_seconds
    return f"{text}; to screen {waiting} of them takes some {seconds:,.0f} s" if waiting else text


def _builds_to_come(result: TechniqueResult) -> int:
    """Return the number of further builds that are likely to decide it; 0 if it is decided, or no number would."""
    return 0 if result.builds_needed is None else result.builds_needed - result.builds


def _lacking(builds: int, build_seconds: float) -> str:
    return f"some {builds * build_seconds:,.0f} s of tuneup.budget_seconds"


def _names(results: Sequence[TechniqueResult]) -> str:
    return ", ".join(each.name for each in results)
