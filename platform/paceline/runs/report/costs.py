"""What a run or a sweep has cost, as the report shows it."""

import json

from paceline.runs.report.html import Child, Markup, tag
from paceline.runs.report.numbers import percent_text, seconds_text
from paceline.runs.report.parts import facts, table
from paceline.runs.report.reading import Told
from paceline.tracking.costs import COST_FILE, Ledger


def ledger_of(told: Told) -> Ledger | None:
    """What a run or a sweep has cost, also one that was killed; None where that is not written down, or not readable.

    What was recorded at an end is older where the run has gone on after it.
    """
    if (ledger := Ledger.read(told.folder)) is not None:
        return ledger
    try:
        return Ledger.from_json(json.loads(told.file(COST_FILE)))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def cost_table(ledger: Ledger) -> Markup:
    """The ledger's lines, and where the time went."""
    lines = [(label, text) for label, text in ledger.lines()]
    parts = sorted(((part, seconds) for part, seconds in ledger.parts.items() if seconds), key=lambda item: -item[1])
    has_price = ledger.price_per_hour is not None
    heading = [
        ("part", False),
        (f"{ledger.unit}-seconds", True),
        ("", True),
        ("share", True),
        *([("price", True)] * has_price),
    ]
    rows = [_row(ledger, ledger.kinds.get(part, part), seconds, has_price) for part, seconds in parts]
    rows.append(_row(ledger, "all", ledger.allocated, has_price))
    about = [{"data_part": part, "data_unit": ledger.unit} for part, _ in [*parts, ("all", 0.0)]]
    return Markup(facts(lines) + tag("h3", "Where it went") + table(heading, rows, about=about))


def _row(ledger: Ledger, label: str, seconds: float, has_price: bool) -> list[tuple[Child, float | None]]:
    share = seconds / ledger.allocated if ledger.allocated else 0.0
    price = ledger.price_of(seconds)
    row: list[tuple[Child, float | None]] = [
        (label, None),
        (f"{seconds:,.1f}", seconds),
        (seconds_text(seconds), None),
        (percent_text(share), share),
    ]
    return [*row, (f"{price:,.4g}" if price is not None else "", price)] if has_price else row
