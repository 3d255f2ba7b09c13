"""Pictures of rows below each other as SVG within the page: bars, and points with intervals."""

from collections.abc import Collection, Sequence

from paceline.runs.report.charts import WIDTH, svg
from paceline.runs.report.html import Markup, tag
from paceline.runs.report.numbers import axis_text
from paceline.runs.report.scales import scale

Bar = tuple[float, str]
"""Length from 0 to 1, and the text at its end."""


def bar_chart(title: str, bars: Sequence[tuple[str, float, str]]) -> Markup:
    """Bars to the right: label, length from 0 to 1, and the text at its end."""
    return grouped_bar_chart(title, [(label, [(share, words)]) for label, share, words in bars])


def grouped_bar_chart(title: str, rows: Sequence[tuple[str, Sequence[Bar]]]) -> Markup:
    """The same with several bars for each label, the colors in their order."""
    thick, top = 21.0, 6.0
    parts, y = [], top
    for label, bars in rows:
        high = 13.0 + thick * len(bars)
        parts.append(tag("text", label, x=170.0, y=y + high / 2 + 4, text_anchor="end", class_="tick"))
        for number, (share, words) in enumerate(bars):
            length = max(round(max(share, 0.0) * (WIDTH - 230), 1), 1.0)
            at = y + 6.5 + thick * number
            about = tag("title", f"{label}: {words}")
            kind = "bar" if number == 0 else f"bar b{number}"
            parts.append(tag("rect", about, x=178.0, y=at, width=length, height=thick - 2, rx=3, class_=kind))
            parts.append(tag("text", words, x=186.0 + length, y=at + 14, class_="tick"))
        y += high
    return svg(title, parts, y + top)


def interval_chart(
    title: str, rows: Sequence[tuple[str, float, float, float, str]], at: float = 1.0, strong: Collection[str] = ()
) -> Markup:
    """Points with intervals, one below the other, beside a line at the value that stands for no difference.

    Args:
        rows: label, value, lower and upper end, and the text at the right; ends are cut where the chart ends.
        at: where the line stands.
        strong: labels of the rows that stand out.
    """
    height, top = 26.0, 22.0
    ends = [value for _, *values, _ in rows for value in values] + [at]
    x = scale(ends, 170.0, WIDTH - 150.0, log=min(ends) > 0 and max(ends) / max(min(ends), 1e-9) > 4)
    bottom = top + height * len(rows)
    parts = [_tick(x(each), axis_text(each), top, bottom) for each in x.ticks]
    parts.append(tag("line", x1=x(at), y1=top - 4, x2=x(at), y2=bottom, class_="axis"))
    for number, (label, value, low, high, words) in enumerate(rows):
        y = top + (number + 0.5) * height
        kind = "point front" if label in strong else "point filled"
        parts += [
            tag("text", label, x=160.0, y=y + 4, text_anchor="end", class_="mark" if label in strong else "tick"),
            tag("line", x1=x(low), y1=y, x2=x(high), y2=y, class_="axis"),
            tag("circle", tag("title", f"{label}: {words}"), cx=x(value), cy=y, r=5, class_=kind),
            tag("text", words, x=WIDTH - 142.0, y=y + 4, class_="tick"),
        ]
    return svg(title, parts, bottom + 6)


def _tick(x: float, words: str, top: float, bottom: float) -> Markup:
    line = tag("line", x1=x, y1=top - 4, x2=x, y2=bottom, class_="grid")
    return tag("g", line, tag("text", words, x=x, y=top - 8, text_anchor="middle", class_="tick"))
