"""Progress of a tune-up: its techniques in a live table on a terminal, lines elsewhere."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from paceline.cluster.listener import SilentListener
from paceline.config.experiment import ExperimentConfig
from paceline.config.tuneup import TuneupConfig
from paceline.display import PlainListener, QuietListener, Waiting, print_rows, print_table
from paceline.redaction import redact
from paceline.reports.text import counted
from paceline.tuneups.bars import tables_of
from paceline.tuneups.confirmation import AA, Confirmed
from paceline.tuneups.result import TuneupResult
from paceline.tuneups.screening import ScreenedPair
from paceline.tuneups.statistics.sequential_test import Comparison
from paceline.tuneups.techniques import Technique
from paceline.tuneups.watcher import Watcher

REFRESHES = 2.0
BAR_WIDTH = 30
STYLES = {"gain": "green", "regression": "red", "no gain": "dim", "not applicable": "dim"}
NEWEST = 5
"""Benchmarks of combinations that are shown, at most."""


class TuneupDisplay:
    """A listener, and the place where the result is printed."""

    def __init__(self, listener: Watcher) -> None:
        self.listener = listener

    def print_result(self, result: TuneupResult) -> None:
        """The table of all techniques, the pictures as bars, and what came out, on stdout."""
        for heading, rows in (result.table(), *tables_of(result.findings)):
            print_table(heading, [[redact(cell) for cell in row] for row in rows])
            print()
        print_rows([(label, redact(text)) for label, text in result.rows()])


class SilentWatcher(SilentListener):
    """For callers who only want the result."""

    def resumed(self, tuneup_id: str, spent_seconds: float) -> None: ...
    def techniques(self, techniques: Sequence[Technique]) -> None: ...
    def screened(self, pair: ScreenedPair) -> None: ...
    def confirmed(self, build: int, confirmed: Confirmed) -> None: ...


class QuietWatcher(QuietListener, SilentWatcher):
    """One line per warning and failure."""


class PlainWatcher(PlainListener):
    """A line for each stage, for each benchmark of the screening, and for the estimates after each build."""

    def __init__(self, console: Console, verbose: bool = False) -> None:
        super().__init__(console, verbose)
        self._shown: dict[str, str] = {}
        """Speed over builds that was shown last, by name."""

    def resumed(self, tuneup_id: str, spent_seconds: float) -> None:
        """An earlier launch has been interrupted."""
        self._line(f"resuming {tuneup_id}, {spent_seconds:.0f} s of whose budget are spent")

    def techniques(self, techniques: Sequence[Technique]) -> None:
        """Show the techniques that will be tried, and those that will not."""
        self._line(f"to be tried: {', '.join(technique.name for technique in techniques if not technique.why_not)}")
        for technique in techniques:
            if technique.why_not:
                self._line(f"not {technique.name}: {technique.why_not}")

    def screened(self, pair: ScreenedPair) -> None:
        """A paired benchmark has been done."""
        self._line(f"{pair.name}: {screened_text(pair)}")

    def confirmed(self, build: int, confirmed: Confirmed) -> None:
        """A build has been measured: show the speeds that have changed."""
        known = {"all together": confirmed.together, **confirmed.techniques}
        speeds = {name: f"{name} {each.interval.estimate:.2f}x" for name, each in known.items() if each is not None}
        changed = ", ".join(text for name, text in speeds.items() if self._shown.get(name) != text)
        self._shown |= speeds
        self._line(f"after {counted(build, 'build')}: {changed or 'as before'}")


def screened_text(pair: ScreenedPair) -> str:
    """Return a pair's figures: `1.21x (1.18-1.25), faster`."""
    if pair.problem:
        return pair.problem if pair.is_too_slow else f"cannot be run: {pair.problem}"
    return f"{pair.interval.text().replace(' (', 'x (', 1)}, {pair.seen}"


class LiveWatcher(PlainWatcher):
    """A table that fills, below a bar of the time."""

    def __init__(self, console: Console, live: Live, title: str, budget_seconds: float) -> None:
        super().__init__(console)
        self._live, self._title, self._budget = live, title, budget_seconds
        self._begun = monotonic()
        self._doing = Waiting("starting", self._begun)
        self._screened: dict[str, ScreenedPair] = {}
        self._confirmed = Confirmed()
        self._alone: list[str] = []
        live.get_renderable = self._draw  # type: ignore[method-assign]

    def stage(self, text: str) -> None:
        """A stage begins."""
        super().stage(text)
        self._doing = Waiting(text, monotonic())

    def resumed(self, tuneup_id: str, spent_seconds: float) -> None:
        """An earlier launch has been interrupted."""
        super().resumed(tuneup_id, spent_seconds)
        self._begun = monotonic() - spent_seconds

    def techniques(self, techniques: Sequence[Technique]) -> None:
        """Show the techniques that will be tried, and those that will not."""
        self._alone = [technique.name for technique in techniques if not technique.why_not]

    def screened(self, pair: ScreenedPair) -> None:
        """A paired benchmark has been done."""
        self._screened[pair.name] = pair

    def confirmed(self, build: int, confirmed: Confirmed) -> None:
        """A build has been measured."""
        techniques = {**self._confirmed.techniques, **confirmed.techniques}
        self._confirmed = Confirmed(confirmed.together, techniques, confirmed.shares)

    def _draw(self) -> RenderableType:
        spent = min(monotonic() - self._begun, self._budget)
        head = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=self._budget, completed=spent, width=BAR_WIDTH)
        head.add_row(Text(self._title, style="bold"), bar, f"{spent:.0f} of {self._budget:.0f} s", self._doing)
        return Group(head, self._table())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False)
        for title in ("technique", "speed", "measured", ""):
            table.add_column(title)
        combined = [name for name in self._screened if name not in (*self._alone, AA)][-NEWEST:]
        for name in (AA, *self._alone, *combined):
            table.add_row(*self._row(name))
        if (together := self._confirmed.together) is not None:
            table.add_row(Text("all together", style="bold"), *_compared(together))
        return table

    def _row(self, name: str) -> tuple[RenderableType, ...]:
        pair = self._screened.get(name)
        shown = Text(redact(name))
        if pair is None:
            return shown, Text("waits", style="dim"), "", ""
        if pair.problem:
            return shown, "", "", Text(redact(pair.problem), style="red", overflow="ellipsis", no_wrap=True)
        if name in self._confirmed.techniques:
            return shown, *_compared(self._confirmed.techniques[name])
        return shown, pair.interval.text(), f"{len(pair.pairs)} pairs", Text(pair.seen, style="dim")


def _compared(comparison: Comparison) -> tuple[RenderableType, ...]:
    verdict = Text(comparison.verdict, style=STYLES.get(comparison.verdict, ""))
    return comparison.interval.text(), counted(comparison.builds, "build"), verdict


@contextmanager
def open_tuneup_display(
    config: ExperimentConfig, quiet: bool = False, verbose: bool = False
) -> Iterator[TuneupDisplay]:
    """Open the display that fits stderr: live on a terminal, plain lines in a pipe or a log.

    Args:
        quiet: show warnings only.
        verbose: plain lines on a terminal too.
    """
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield TuneupDisplay(QuietWatcher(console))
        return
    if verbose or not console.is_terminal:
        yield TuneupDisplay(PlainWatcher(console))
        return
    budget = (config.tuneup or TuneupConfig()).budget_seconds
    with Live(console=console, refresh_per_second=REFRESHES, transient=True) as live:
        yield TuneupDisplay(LiveWatcher(console, live, config.name, budget))


@contextmanager
def watched_tuneup(config: ExperimentConfig) -> Iterator[Watcher]:
    """Return the display of a tune-up from Python: a live table on a terminal, lines in a notebook, else warnings."""
    if Console().is_jupyter:
        # as for a single run: by file, since Ray's part redirects stdout
        yield PlainWatcher(Console(file=sys.stdout, force_jupyter=False, highlight=False))
    elif Console(stderr=True).is_terminal:
        with open_tuneup_display(config) as display:
            yield display.listener
    else:
        yield QuietWatcher(Console(stderr=True, highlight=False))
