"""What exhaustive_search.py makes of its measurements: the ranking, the time of the search, and the text."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from exhaustive_axes import Combination, Product
from exhaustive_journal import Scanned
from exhaustive_measuring import Best, Check, Finalist
from measuring import Interval

from paceline.study.tuneup.texts import quality_text

LEAST_SHARE = 0.95
"""Of the best combination's speed, what the recommended config is to have."""
MOST_TIME = 0.1
"""Of the exhaustive search's time, what the tune-up may take."""
SHOWN = 10


def ranking(scanned: Sequence[Scanned]) -> list[Scanned]:
    """Those that could be measured, the fastest first."""
    return sorted((each for each in scanned if not each.problem), key=lambda each: -each.speedup)


def training_seconds(scanned: Sequence[Scanned], samples: int, undisturbed: float) -> dict[str, float]:
    """Seconds of one training of each to its end, start-up included, without evaluation.

    Each one's speed is its ratio to the config as it is, times that one's speed where nothing disturbs it: what slowed
    the machine down during the scan is not in it.

    Args:
        undisturbed: `undisturbed_seconds` of a scan.
    """
    return {each.name: each.build_seconds + samples * undisturbed / each.speedup for each in ranking(scanned)}


def undisturbed_seconds(scanned: Sequence[Scanned]) -> float:
    """Seconds per sample of the config as it is, in the least disturbed tenth of its windows."""
    return tenths([each.baseline_seconds for each in ranking(scanned)])[0]


def tenths(values: Sequence[float]) -> tuple[float, float]:
    """The first and the last of the values that part others into ten equal groups."""
    if len(values) < 2:
        return values[0], values[0]
    parts = statistics.quantiles(values, n=10, method="inclusive")
    return parts[0], parts[-1]


def uncompiled(scanned: Sequence[Scanned], combinations: Sequence[Combination]) -> set[str]:
    """Names of those whose start-up would take as long again: what was compiled would come from the cache."""
    plain = {each.name for each in combinations if each.config.trainer.compile == "none"}
    return {each.name for each in ranking(scanned) if each.name in plain}


class Times(NamedTuple):
    """How long the search takes, and the tune-up, in seconds."""

    combinations: int
    scan: float
    """What the scan took, one pair of windows for each combination."""
    search: float
    """Computed: each combination trained once to its end."""
    seeds: int
    """With how many seeds the tune-up trains."""
    tuneup: float | None

    @property
    def ratio(self) -> float | None:
        """The tune-up's time over the search's."""
        return None if self.tuneup is None else self.tuneup / self.search


def speed_verdict(share: Interval) -> str:
    """Whether the recommended config is as fast as it is to be, as far as the interval tells."""
    if share.low >= LEAST_SHARE:
        return "met"
    return "not met" if share.high < LEAST_SHARE else "not decided, the interval holds both"


def product_lines(product: Product) -> list[str]:
    """The axes, and how many combinations there are."""
    lines = [f"  {family}: as it is, {', '.join(arm.name for arm in arms)}" for family, arms in product.axes.items()]
    left_out = f"{product.contradictory} contradict themselves, {product.repeated} come to the same config"
    count = len(product.combinations)
    more = f"  with what is tried to save memory, too: up to {product.with_savers}"
    return ["axes, without what is tried to save memory:", *lines, f"combinations: {count} ({left_out})", more]


def scan_lines(scanned: Sequence[Scanned], combinations: int, recommended: str | None) -> list[str]:
    """The fastest, and how steady the machine was.

    Args:
        combinations: how many there are to scan.
        recommended: the name of the combination that is the recommended config, where there is one.
    """
    found = ranking(scanned)
    part = "" if len(scanned) == combinations else f", ONLY {len(scanned)} OF {combinations} SO FAR"
    lines = [f"fastest of the scan{part} (x the speed of the config as it is):"]
    lines += [f"  {number:3} {each.speedup:5.2f} {each.name}" for number, each in enumerate(found[:SHOWN], 1)]
    names = [each.name for each in found]
    if recommended in names[SHOWN:]:
        place = names.index(recommended)
        lines.append(f"  {place + 1:3} {found[place].speedup:5.2f} {recommended}")
    if recommended is not None:
        lines.append(f"  recommended: {recommended}")
    failed = [each for each in scanned if each.problem]
    lines += [f"  FAILED {each.name}: {each.problem}" for each in failed]
    baseline = [1e6 * each.baseline_seconds for each in found]
    if baseline:
        low, high = tenths(baseline)
        middle = statistics.median(baseline)
        lines.append(f"the config as it is: {middle:.1f} us a sample, 80 % of windows {low:.1f}-{high:.1f}")
    return lines


def time_lines(times: Times, check: Check | None) -> list[str]:
    """What the search and the tune-up take."""
    lines = [
        f"the scan took {times.scan:.0f} s",
        f"each of {times.combinations} trained once to the end: {times.search:.0f} s, COMPUTED from measured speed and "
        "start-up, without evaluation",
    ]
    factor = 1.0 if check is None else check.factor
    if check is not None and check.names:
        lines.append(
            f"  checked: {len(check.names)} of them, drawn at random, were trained to the end with evaluation: "
            f"{check.seconds:.0f} s, {factor:.2f} of what was computed"
        )
    if times.tuneup is None or times.ratio is None:
        return [*lines, "how long the tune-up took is not known: --tuneup-seconds says it"]
    verdict = "met" if times.ratio <= MOST_TIME else "not met"
    return [
        *lines,
        f"the tune-up took {times.tuneup:.0f} s: {times.ratio:.3f} of that; aimed at: at most {MOST_TIME}: {verdict}",
        f"  with {times.seeds} seeds each, as the tune-up trains what it compares: {times.ratio / times.seeds:.3f}",
        f"  of the computed time, times what the check found: {times.ratio / factor:.3f}",
        f"  of the scan alone, which says nothing of accuracy: {times.tuneup / times.scan:.3f}",
    ]


def final_lines(finalists: Sequence[Finalist], best: Best | None) -> list[str]:
    """The duels against the recommended config, and its share of the best one's speed."""
    lines = ["speed of the recommended config over that of (95 %):"]
    for each in sorted(finalists, key=lambda each: (bool(each.problem), each.share.value)):
        lines.append(f"  {each.problem or each.share.text()} {each.name}")
    if best is None:
        return [*lines, "none of them comes out as well as the recommended config"]
    for name, quality in best.rejected.items():
        lines.append(f"not taken: {name}: {quality_text(quality)}")
    own = ", the recommended config itself, whose share is the noise" if best.is_recommended else ""
    same = "" if best.is_recommended else f"; {quality_text(best.quality)}"
    return [
        *lines,
        f"best: {best.name}{own}{same}",
        f"share of its speed: {best.share.text()}; aimed at: at least {LEAST_SHARE}: {speed_verdict(best.share)}",
    ]
