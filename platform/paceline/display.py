"""Progress of a run: a live bar on a terminal, plain lines elsewhere. The command line writes all of it to stderr."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from paceline.cluster.listener import UI_HINT, Listener, RunProgress, SilentListener
from paceline.errors import BAD_ENVIRONMENT, FAILED, OK, coded
from paceline.redaction import redact

PLAIN_LINE_SECONDS = 2.0


class Display:
    """A listener, and the place where the result is printed."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def print_result(self, rows: Sequence[tuple[str, str]]) -> None:
        """The result as a small table on stdout."""
        print_rows(rows)


class StandardOutput(Console):
    """Raises BrokenPipeError where the reader of stdout has closed it, in place of ending the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and texts as a small table on stdout. Long texts are not cut: paths and code can be copied."""
    width = max(len(label) for label, _ in rows)
    console = StandardOutput(highlight=False)
    for label, value in rows:
        console.print(Text.assemble((f"{label:<{width}}", "bold"), f"  {value}"), soft_wrap=True)


def print_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of text on stdout; in a pipe nothing is folded."""
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
        for row in (heading, *rows):
            print("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = Table(box=None, pad_edge=False)
    for title in heading:
        table.add_column(escape(title), overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    StandardOutput().print(table)


@contextmanager
def open_display(title: str, quiet: bool = False, verbose: bool = False) -> Iterator[Display]:
    """Open the display that fits stderr: live on a terminal, plain lines in a pipe or a log.

    Args:
        quiet: show warnings only.
        verbose: plain lines on a terminal too, with every metric.
    """
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield Display(QuietListener(console))
        return
    if verbose or not console.is_terminal:
        yield Display(PlainListener(console, verbose))
        return
    with _bar(console) as bar:
        yield Display(LiveListener(console, bar, title))


@contextmanager
def watched(title: str) -> Iterator[Listener]:
    """Watch a run from Python: a live bar on a terminal, lines in a notebook's cell, only warnings elsewhere."""
    if Console().is_jupyter:
        # rich's bar would need ipywidgets, and stderr is red there; by file, since Ray's part redirects stdout
        yield PlainListener(Console(file=sys.stdout, force_jupyter=False, highlight=False))
    elif Console(stderr=True).is_terminal:
        with open_display(title) as display:
            yield display.listener
    else:
        yield QuietListener(Console(stderr=True, highlight=False))


def _bar(console: Console) -> Bar:
    return Bar(
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )


class QuietListener(SilentListener):
    """One line per warning and failure."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def planned(self, lines: list[tuple[str, str]]) -> None:
        for label, text in lines:
            if label == "warning":
                self._line(f"{label}: {text}")

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        if kind in ("warning", "failed"):
            self._line(self.text_of(kind, details))

    def text_of(self, kind: str, details: Mapping[str, Any]) -> str:
        """Return an event as a line of text."""
        return event_text(kind, details)

    def _line(self, text: str) -> None:
        self._console.print(redact(text), markup=False, soft_wrap=True)


class PlainListener:
    """One line per stage and event, and one every few seconds during training.

    Args:
        verbose: a line for every progress report, with all of its metrics.
    """

    def __init__(self, console: Console, verbose: bool = False) -> None:
        self.console = console
        self.verbose = verbose
        self._start = monotonic()
        self._last = (0.0, 0)

    def stage(self, text: str) -> None:
        self._line(text)

    def planned(self, lines: list[tuple[str, str]]) -> None:
        for label, text in lines:
            self._line(f"{label}: {text}")

    def progress(self, progress: RunProgress) -> None:
        now, (last_time, last_step) = monotonic(), self._last
        if progress.step == last_step or (now - last_time < PLAIN_LINE_SECONDS and not self.verbose):
            return
        self._last = now, progress.step
        self._line(f"step {progress.step}/{progress.total_steps or '?'} {numbers(progress, self.verbose)}")

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        self._line(event_text(kind, details))

    def _line(self, text: str) -> None:
        self.console.print(f"{monotonic() - self._start:7.1f} s  {redact(text)}", markup=False, soft_wrap=True)


class LiveListener(PlainListener):
    """Lines for stages and events above a bar that moves."""

    def __init__(self, console: Console, bar: Bar, title: str) -> None:
        super().__init__(console)
        self._bar = bar
        self._task = bar.add_task(escape(title), total=None, numbers="")

    def stage(self, text: str) -> None:
        super().stage(text)
        self._bar.update(self._task, numbers=text)

    def progress(self, progress: RunProgress) -> None:
        self._bar.update(
            self._task, completed=progress.step, total=progress.total_steps, numbers=numbers(progress), refresh=True
        )


@dataclass(frozen=True)
class Waiting:
    """An activity and its duration, which is updated whenever it is drawn."""

    text: str
    since: float
    """Start of the activity, in seconds of `time.monotonic`."""
    before: str = ""
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.before}{self.text} … {monotonic() - self.since:.0f} s{hint}"

    def __rich__(self) -> Text:
        return Text(str(self))


def numbers(progress: RunProgress, all_metrics: bool = False) -> str:
    """Return loss, accuracy and speed (if measured) in one short line, or all metrics in a long one."""
    metrics = progress.metrics or {}
    keys = sorted(metrics) if all_metrics else [key for key in ("train/loss", "val/accuracy") if key in metrics]
    precision = ".4g" if all_metrics else ".4f"
    shown = [f"{key.removeprefix('train/')} {metrics[key]:{precision}}" for key in keys]
    rate = progress.samples_per_second
    return "  ".join([*shown, *([f"{rate:,.0f} samples/s"] if rate else [])])  # 0: nothing measured since the last log


def event_text(kind: str, details: Mapping[str, Any]) -> str:
    """An event as a line of text."""
    if kind == "warning":
        return f"warning: {coded(details['message'], details['code'])}"
    if kind == "failed":
        return f"training failed: {coded(details['reason'], details['code'])}"
    if kind == "ended":
        return f"{details['state']}: {details['reason']}"
    if kind == "restarted":
        return f"its workers died, for the {details['failures']}. time; new ones resume from its newest checkpoint"
    if kind == "resumed":
        return f"resuming from step {details['step']} ({details['path']})"
    if kind == "stopped_early":
        return str(details["text"])
    if kind == "initial_weights":
        return f"starting from the weights of {details['weights']} ({details['path']})"
    if kind == "checkpoint":
        return f"saved step {details['step']}"
    return f"{kind}: {dict(details)}"


def print_checks(checks: Sequence[Any], as_json: bool) -> int:
    """Print the results of `doctor`; return a nonzero exit code if a check has failed."""
    from dataclasses import asdict

    if as_json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        # in a pipe nothing is folded: a path in two pieces cannot be copied
        console, table = StandardOutput(width=None if sys.stdout.isatty() else 500), Table(box=None, pad_edge=False)
        has_nodes = any(check.node for check in checks)
        for heading in ("", *(["node"] if has_nodes else []), "check", "found", "hint"):
            table.add_column(heading, overflow="fold")
        for check in checks:
            mark = {True: "[green]ok[/]", False: "[red]no[/]", None: "[yellow]?[/]"}[check.ok]
            node = [check.node] if has_nodes else []
            table.add_row(mark, *map(escape, (*node, check.name, check.detail, check.hint or "")))
        console.print(table)
        console.print("no: must be fixed; ?: missing, but not needed for a run on this machine")
    return BAD_ENVIRONMENT if any(check.ok is False for check in checks) else OK


def print_sync(report: Any, as_json: bool) -> int:
    """Print the result of each record that `sync` found; return exit code 0 if nothing is left to send."""
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        _print_sync(report)
    if report.silent or report.damaged:
        return BAD_ENVIRONMENT
    return OK if report.is_complete else FAILED


def _print_sync(report: Any) -> None:
    told = [record for record in report.records if record.sent or record.state != "complete"]
    rows = []
    for record in told:
        left = "?" if record.left is None else str(record.left)
        rows.append([_relative(record.folder), record.state, str(record.sent), left, record.reason])
    if rows:
        print_table(["record", "state", "sent", "left", "reason"], rows)
    for record in told:
        if record.url and Path(record.folder).parent.name != "trials":
            print(f"{_relative(record.folder)}: {record.url}{UI_HINT if record.needs_ui else ''}")
    counts = {
        "complete": sum(record.state == "complete" for record in report.records),
        "left": sum(record.state == "left" for record in report.records),
        "in progress": sum(record.state == "in progress" for record in report.records),
        "copies": sum(record.state == "copy" for record in report.records),
    }
    parts = [f"{count} {state}" for state, count in counts.items() if count or state == "complete"]
    sent = sum(record.sent for record in report.records)
    word = "record" if len(report.records) == 1 else "records"
    print(f"{len(report.records)} {word}: {', '.join(parts)}; {sent} entries sent")
    for reason in report.silent:
        print(f"error: {coded(reason, 'mlflow-not-answering')}", file=sys.stderr)
    for reason in report.damaged:
        print(f"error: {coded(reason, 'database-damaged')}", file=sys.stderr)


def _relative(folder: str) -> str:
    """A folder as it is seen from the working folder, where it lies in it."""
    path = Path(folder)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else folder
