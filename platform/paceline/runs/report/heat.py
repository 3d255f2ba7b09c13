"""A value over two axes as a grid of colored cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.runs.report.html import Markup, tag

WIDTH = 560.0
LEFT, TOP, BOTTOM = 104.0, 8.0, 50.0
_COLORS = ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725")
"""From worse to better; told apart by those who see no red and green as well."""


@dataclass(frozen=True)
class Cell:
    """One place of the grid."""

    lines: tuple[str, ...]
    """What is written in it."""
    label: str
    """What it says under the mouse."""
    share: float | None = None
    """How good it is, from 0, the worst, to 1; None where there is no value."""
    is_best: bool = False


def heat_chart(
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    cells: Mapping[tuple[int, int], Cell],
    axes: tuple[str, str],
) -> Markup:
    """The grid.

    Args:
        columns: the values to the right.
        rows: the values upwards.
        cells: by row and column.
        axes: what columns and rows are.
    """
    width = (WIDTH - LEFT - 8) / max(len(columns), 1)
    height = min(max(width * 0.62, 30.0), 58.0)
    bottom = TOP + height * len(rows)
    parts = [
        _cell(cell, LEFT + column * width, bottom - (row + 1) * height, width, height)
        for (row, column), cell in cells.items()
    ]
    for number, name in enumerate(columns):
        parts.append(_text(name, LEFT + (number + 0.5) * width, bottom + 18, "middle", "tick"))
    for number, name in enumerate(rows):
        parts.append(_text(name, LEFT - 8, bottom - (number + 0.5) * height + 4, "end", "tick"))
    parts.append(_text(axes[0], (LEFT + WIDTH) / 2, bottom + 40, "middle", "label"))
    middle = (TOP + bottom) / 2
    turned = f"rotate(-90 14 {middle:g})"
    parts.append(tag("text", axes[1], x=14.0, y=middle, text_anchor="middle", class_="label", transform=turned))
    best = [
        tag(
            "rect",
            x=LEFT + column * width + 1,
            y=bottom - (row + 1) * height + 1,
            width=width - 2,
            height=height - 2,
            rx=3,
            class_="chosen",
        )
        for (row, column), cell in cells.items()
        if cell.is_best
    ]
    return tag(
        "svg", parts, best, viewBox=f"0 0 {WIDTH:g} {bottom + BOTTOM:g}", role="img", aria_label=title, class_="chart"
    )


def _cell(cell: Cell, x: float, y: float, width: float, height: float) -> Markup:
    fill, is_dark = color_of(cell.share) if cell.share is not None else (None, False)
    place = {"x": round(x + 1, 1), "y": round(y + 1, 1), "width": round(width - 2, 1), "height": round(height - 2, 1)}
    kind = "empty" if fill is None else "cell"
    parts = [tag("rect", tag("title", cell.label), rx=3, class_=kind, fill=fill, **place)]
    words = "nothing" if fill is None else "light" if is_dark else "dark"
    first = y + height / 2 + 4 - 6.5 * (len(cell.lines) - 1)
    if width >= 40:
        parts += [
            _text(line, x + width / 2, first + 13 * number, "middle", words) for number, line in enumerate(cell.lines)
        ]
    return tag("g", parts)


def _text(words: str, x: float, y: float, anchor: str, kind: str) -> Markup:
    return tag("text", words, x=round(x, 1), y=round(y, 1), text_anchor=anchor, class_=kind)


def color_of(share: float) -> tuple[str, bool]:
    """The color of a value from 0 to 1, and whether it is a dark one."""
    at = min(max(share, 0.0), 1.0) * (len(_COLORS) - 1)
    index = min(int(at), len(_COLORS) - 2)
    parts = [
        round(low + (high - low) * (at - index))
        for low, high in zip(_rgb(_COLORS[index]), _rgb(_COLORS[index + 1]), strict=True)
    ]
    red, green, blue = parts
    return f"#{red:02x}{green:02x}{blue:02x}", 0.299 * red + 0.587 * green + 0.114 * blue < 128


def _rgb(color: str) -> tuple[int, int, int]:
    return int(color[:2], 16), int(color[2:4], 16), int(color[4:], 16)
