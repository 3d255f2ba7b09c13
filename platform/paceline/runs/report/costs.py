"""Cost of a run or a sweep, as a report shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.reports.page import Fact, Tile
from paceline.reports.text import seconds_text
from paceline.tracking.costs import Ledger


@dataclass(frozen=True)
class CostRow:
    """One part of the cost."""

    part: str
    label: str
    seconds: float
    share: float
    price: float | None


@dataclass(frozen=True)
class CostSummary:
    """The ledger of a run or a sweep."""

    unit: str
    facts: Sequence[Fact]
    rows: Sequence[CostRow]
    """The largest first, and all of it last."""
    has_price: bool


def cost_values(ledger: Ledger) -> CostSummary:
    """Return the ledger's rows."""
    parts = sorted(((part, seconds) for part, seconds in ledger.parts.items() if seconds), key=lambda item: -item[1])
    rows = [
        CostRow(part, ledger.kinds.get(part, part), seconds, seconds / ledger.allocated, ledger.price_of(seconds))
        for part, seconds in [*parts, ("all", ledger.allocated)]
    ]
    facts = [Fact(label, text) for label, text in ledger.lines()]
    return CostSummary(ledger.unit, facts, rows, ledger.price_per_hour is not None)


def cost_tile(ledger: Ledger | None) -> list[Tile]:
    """Return the tile of the time that was allocated; none where it is not known."""
    if ledger is None or not ledger.allocated:
        return []
    price = f"price {ledger.price:,.4g}" if ledger.price is not None else "start-up and idle time included"
    return [Tile(f"{ledger.unit} time", seconds_text(ledger.allocated), price)]
