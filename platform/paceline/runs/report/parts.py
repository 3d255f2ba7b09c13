"""The pieces that a report is put together from."""

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paceline.runs.report.html import Child, Markup, Value, link, tag

GOOD, BAD, NEUTRAL = "good", "bad", "neutral"
_KINDS = {
    "finished": GOOD,
    "failed": BAD,
    "oom": BAD,
    "diverged": BAD,
    "interrupted": "warn",
    "stopped": "warn",
    "running": "live",
    "pruned": "warn",
    "gain": GOOD,
    "regression": BAD,
}


LONG = 25
"""A table with more rows scrolls within the page."""


@dataclass(frozen=True)
class Section:
    """One part of a report."""

    key: str
    """Its address within the page."""
    title: str
    content: Child
    note: Child = None
    """A line under the title."""


@dataclass(frozen=True)
class Report:
    """Everything that a page shows."""

    kind: str
    """`sweep`, `run`, `trial` or `tune-up`."""
    name: str
    id: str
    status: str
    subtitle: str
    answer: Child
    tiles: Sequence[tuple[str, Child, str]]
    """Label, figure, and what is said beside it."""
    sections: Sequence[Section]
    warnings: Sequence[str] = ()


def pill(state: str, words: Child = "", **attributes: Value) -> Markup:
    """A state in a colored frame; the attributes say what it is the state of."""
    return tag("span", words or state, class_=f"pill {_KINDS.get(state, NEUTRAL)}", data_state=state, **attributes)


def facts(rows: Iterable[tuple[str, Child]]) -> Markup:
    """A table of labels and texts."""
    lines = [tag("tr", tag("th", label, scope="row"), tag("td", value)) for label, value in rows]
    return tag("div", tag("table", tag("tbody", lines), class_="facts"), class_="wide") if lines else Markup("")


def code(words: str, kind: str = "") -> Markup:
    """A block of code."""
    return tag("pre", tag("code", words), class_=kind or None, tabindex=0)


def figure(title: str, picture: Child, caption: Child = None) -> Markup:
    """A picture with its title."""
    return tag(
        "figure", tag("figcaption", tag("b", title), caption and [" ", caption]), tag("div", picture, class_="canvas")
    )


def picture(data: bytes, title: str) -> Markup:
    """A PNG file."""
    return tag("img", src=f"data:image/png;base64,{base64.b64encode(data).decode()}", alt=title)


def legend(entries: Sequence[tuple[int, Child]]) -> Markup:
    """Colors and what they stand for."""
    items = [
        tag("li", tag("span", class_=f"key c{color}"), tag("span", words), data_line=f"{color}")
        for color, words in entries
    ]
    return tag("ul", items, class_="legend")


def table(
    heading: Sequence[tuple[str, bool]],
    rows: Sequence[Sequence[tuple[Child, float | None]]],
    kind: str = "",
    name: str = "",
    about: Sequence[Mapping[str, Value]] = (),
) -> Markup:
    """A table that can be sorted by its columns.

    Args:
        heading: the words of each column, and whether it holds numbers.
        rows: cells: what they show, and the number that they are sorted by where the text does not tell.
        kind: classes of the table.
        name: what the table is, for those who cannot see it.
        about: attributes of each row, such as `data_metric`, by which programs find it.
    """
    head = [tag("th", words, scope="col", class_="number" if is_number else None) for words, is_number in heading]
    numbers = [is_number for _, is_number in heading]
    attributes = about or [{}] * len(rows)
    body = [
        tag("tr", [_cell(cell, is_number) for cell, is_number in zip(row, numbers, strict=True)], **own)
        for row, own in zip(rows, attributes, strict=True)
    ]
    whole = tag(
        "table", tag("thead", tag("tr", head)), tag("tbody", body), class_=kind or None, aria_label=name or None
    )
    return tag("div", whole, class_="wide long" if len(rows) > LONG else "wide")


def _cell(cell: tuple[Child, float | None], is_number: bool) -> Markup:
    content, value = cell
    sorted_by = None if value is None else f"{value:.12g}"
    return tag("td", content, class_="number" if is_number else None, data_value=sorted_by)


def more(summary: str, content: Child, opened: bool = False) -> Markup:
    """Something that is shown on a click."""
    return tag("details", tag("summary", summary), content, open=opened)


def time_text(milliseconds: int | None) -> str:
    """A time since 1970, in the world's time; empty when it is not known."""
    if milliseconds is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(milliseconds / 1000))
    except (OverflowError, ValueError, OSError):
        return ""


def page_link(url: str, needs_ui: bool, words: str = "MLflow") -> Child:
    """A link to a run's page in MLflow."""
    return (
        [
            link(url, words),
            tag("span", " (while ", tag("code", "paceline ui"), " runs, at the port that it prints)", class_="quiet"),
        ]
        if needs_ui
        else link(url, words)
    )


def changes(rows: Sequence[tuple[str, str | None, str | None]], headings: tuple[str, str]) -> Markup:
    """What differs between two configs: key, and both values; None where one has none."""
    cells = [[(tag("code", key), None), (_value(old), None), (_value(new), None)] for key, old, new in rows]
    about = [{"data_key": key} for key, _, _ in rows]
    return table([("key", False), (headings[0], False), (headings[1], False)], cells, "changes", about=about)


def _value(value: str | None) -> Markup:
    return tag("span", "not there", class_="quiet") if value is None else tag("code", value)


def caveat(mark: str, words: str, section: str) -> Markup:
    """A line about what bears a mark, with a link to the section that says more of it."""
    return tag("p", f"{mark} {words} (", tag("a", "why", href=f"#{section}"), ").", class_="caveat")


def lines_of(values: Mapping[str, str], labels: Mapping[str, str]) -> list[tuple[str, Child]]:
    """Those of some values that are there, under their labels."""
    return [(label, values[key]) for key, label in labels.items() if values.get(key)]
