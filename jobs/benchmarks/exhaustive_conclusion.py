"""What exhaustive_search.py concludes of its passes: the finals and trainings that are left to do, and the result."""

from typing import TYPE_CHECKING, Any

from exhaustive_figures import Times, final_lines, product_lines, scan_lines, time_lines
from exhaustive_savers import Drawn, Whole, estimated, saver_lines, speed_lines

from paceline.config.tuneup import TuneupConfig

if TYPE_CHECKING:
    from exhaustive_search import Search


def conclude(search: "Search") -> tuple[list[str], dict[str, Any]]:
    """What is printed, and the same as plain values."""
    scanned, recommended = search.journal.scanned, search.recommended_name()
    took = sum(each.took_seconds for each in scanned)
    seeds = (search.config.tuneup or TuneupConfig()).seeds
    computed = search.computed()
    times = Times(len(computed), took, sum(computed.values()), seeds, search.args.tuneup_seconds)
    found = search.final()
    check = search.check() if search.args.checked else None
    lines = [
        *product_lines(search.product),
        "",
        *scan_lines(scanned, len(search.product.combinations), recommended),
        "",
        *time_lines(times, check),
    ]
    values: dict[str, Any] = {
        "combinations": len(search.product.combinations),
        "scan": [each._asdict() for each in scanned],
        "times": times._asdict(),
        "check": check._asdict() if check is not None else None,
        "recommended": recommended,
    }
    if search.drawn is not None:
        more, values["savers"] = _savers(search, search.drawn, times, 1.0 if check is None else check.factor)
        lines += ["", *more]
    if found is not None:
        final, best = found
        lines += ["", *final_lines(final.finalists, best)]
        values["finalists"] = [each._asdict() for each in final.finalists]
        values["best"] = (
            None if best is None else {"name": best.name, "share": best.share, "quality": vars(best.quality)}
        )
    return lines, values


def _savers(search: "Search", drawn: Drawn, times: Times, factor: float) -> tuple[list[str], dict[str, Any]]:
    scanned = drawn.scanned
    if not scanned:
        return [f"of {len(drawn.product.combinations)} with what is tried to save memory, none has been measured"], {}
    whole = Whole(times, estimated(scanned, search.seconds_of(scanned), len(drawn.product.combinations)))
    name = search.recommended_name()
    recommended = next((each for each in search.journal.scanned if each.name == name), None)
    lines = [*saver_lines(drawn, whole, factor), *speed_lines(scanned, whole.estimate.is_whole, recommended)]
    values = {
        **whole.estimate._asdict(),
        "scan": [each._asdict() for each in scanned],
        "contradictory": drawn.product.contradictory,
        "repeated": drawn.product.repeated,
        "search": whole.search,
        "ratio": whole.ratio,
    }
    return lines, values
