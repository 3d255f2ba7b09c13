"""What a tune-up shows on a terminal while it goes on."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.live import Live

from paceline.study.tuneup.display import LiveWatcher


def test_the_bar_of_a_tune_up_that_goes_on_begins_where_it_was() -> None:
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=120, color_system=None)
    with Live(console=console, auto_refresh=False) as live:
        watcher = LiveWatcher(console, live, "toy", 480.0)
        console.print(live.get_renderable())
        assert "0 of 480 s" in shown.getvalue()
        watcher.goes_on("20260101-000000-abcdef", 203.2)
        console.print(live.get_renderable())
    assert "going on with 20260101-000000-abcdef, 203 s of whose budget are spent" in shown.getvalue()
    assert "203 of 480 s" in shown.getvalue()
