"""The combinations with what is tried to save memory: some drawn at random, and what these say of all of them."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from exhaustive_axes import Combination, Product
from exhaustive_figures import MOST_TIME, Times, ranking
from exhaustive_journal import Journal, Scanned
from measuring import Interval, bootstrap

SHOWN = 3


class Drawn(NamedTuple):
    """Some of them."""

    product: Product
    """All of them, in the order in which they are drawn."""
    journal: Journal
    asked: int
    """How many are to be measured."""

    @property
    def combinations(self) -> list[Combination]:
        """Those that are to be measured."""
        return self.product.combinations[: self.asked]

    @property
    def scanned(self) -> list[Scanned]:
        """Those that have been measured; since they are measured in the order drawn, they are drawn at random, too."""
        names = {each.name for each in self.combinations}
        return [each for each in self.journal.scanned if each.name in names]


class Estimate(NamedTuple):
    """How long it would take to train each of them once, as far as those drawn tell."""

    drawn: int
    failed: int
    """Of the drawn, how many could not be measured; they count as trainings of no time."""
    combinations: int
    """How many there are."""
    seconds: Interval
    """Of one training, on average."""

    @property
    def is_whole(self) -> bool:
        """Whether all have been drawn, and nothing is estimated."""
        return self.drawn == self.combinations

    @property
    def all_seconds(self) -> Interval:
        """Of one training of each."""
        return Interval(*(self.combinations * each for each in self.seconds))


def estimated(drawn: Sequence[Scanned], seconds: Mapping[str, float], count: int) -> Estimate:
    """From the seconds of a training of those drawn.

    Args:
        drawn: at least one.
        seconds: by name, of those that could be measured.
        count: how many these were drawn from.
    """
    values = [seconds.get(each.name, 0.0) for each in drawn]
    failed = sum(bool(each.problem) for each in drawn)
    mean = statistics.fmean(values)
    low, high = (mean, mean) if len(drawn) == count else bootstrap(values, statistics.fmean)
    return Estimate(len(drawn), failed, count, Interval(mean, low, high))


class Whole(NamedTuple):
    """All combinations, those without savers measured and the others estimated, beside the tune-up."""

    times: Times
    estimate: Estimate

    @property
    def combinations(self) -> int:
        """How many there are."""
        return self.times.combinations + self.estimate.combinations

    @property
    def search(self) -> Interval:
        """Seconds of one training of each."""
        return Interval(*(self.times.search + each for each in self.estimate.all_seconds))

    @property
    def ratio(self) -> Interval | None:
        """The tune-up's time over that."""
        if self.times.tuneup is None:
            return None
        value, low, high = (self.times.tuneup / each for each in self.search)
        return Interval(value, high, low)


def saver_lines(drawn: Drawn, whole: Whole, factor: float) -> list[str]:
    """How many there are, and how long all would take.

    Args:
        factor: what trainings to the end took of the computed time.
    """
    product, estimate, times = drawn.product, whole.estimate, whole.times
    savers = ", ".join(arm.name for arms in product.axes.values() for arm in arms if arm.saves_memory)
    left_out = f"{product.contradictory} contradict themselves, {product.repeated} come to the same config"
    failed = f"; {estimate.failed} of them failed, and count as 0 s" if estimate.failed else ""
    part = "" if estimate.drawn == drawn.asked else f", ONLY {estimate.drawn} OF {drawn.asked} SO FAR"
    found = f"ESTIMATED from {estimate.drawn} of these, drawn at random{part} (95 %):"
    lines = [
        f"with at least one of {savers}: {estimate.combinations} combinations more ({left_out})",
        "all of these, measured:" if estimate.is_whole else found,
        f"  each of {estimate.combinations} trained once to the end: {_seconds(estimate.all_seconds)}, "
        f"{estimate.seconds.text(2)} s each, computed as above{failed}",
        f"  each of all {whole.combinations}: {_seconds(whole.search)}",
    ]
    if whole.ratio is None:
        return lines
    return [
        *lines,
        f"the tune-up took {whole.ratio.text()} of that; aimed at: at most {MOST_TIME}: {_verdict(whole.ratio)}",
        f"  with {times.seeds} seeds each, as the tune-up trains what it compares: {_over(whole.ratio, times.seeds)}",
        f"  of the estimated time, times what the check found: {_over(whole.ratio, factor)}",
    ]


def speed_lines(drawn: Sequence[Scanned], is_whole: bool, recommended: Scanned | None) -> list[str]:
    """The fastest of those drawn, beside the recommended config's own scan.

    Args:
        is_whole: whether all have been drawn.
    """
    found = ranking(drawn)
    if not found:
        return ["none of those drawn could be measured"]
    lines = ["fastest of those drawn (x the speed of the config as it is):"]
    lines += [f"  {number:3} {each.speedup:5.2f} {each.name}" for number, each in enumerate(found[:SHOWN], 1)]
    lines += [f"  FAILED {each.name}: {each.problem}" for each in drawn if each.problem]
    if recommended is None or recommended.problem:
        return lines
    share = found[0].speedup / recommended.speedup
    faster = sum(each.speedup > recommended.speedup for each in found)
    tells_more = not faster and not is_whole
    most = f", so that of all at most {100 * most_of_all(len(drawn)):.1f} % are (95 %)" if tells_more else ""
    return [
        *lines,
        f"the recommended config in its own scan: {recommended.speedup:.2f}, the fastest drawn has {share:.2f} of that",
        f"faster than it: {faster} of {len(drawn)} drawn{most}",
    ]


def most_of_all(drawn: int) -> float:
    """Which share of all may at most be of a kind of which none is among so many drawn, with 95 % confidence."""
    return float(1 - 0.05 ** (1 / drawn))


def _seconds(interval: Interval) -> str:
    return f"{interval.value:.0f} s ({interval.low:.0f}-{interval.high:.0f})"


def _over(ratio: Interval, divisor: float) -> str:
    return Interval(*(each / divisor for each in ratio)).text()


def _verdict(ratio: Interval) -> str:
    if ratio.high <= MOST_TIME:
        return "met"
    return "not met" if ratio.low > MOST_TIME else "not decided, the interval holds both"
