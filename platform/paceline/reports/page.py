"""One HTML file from a template: it opens without a network, and a policy within it forbids all but its own code."""

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from paceline.redaction import redact
from paceline.reports import text, theme
from paceline.reports.drawing import tried

if TYPE_CHECKING:
    from jinja2 import Environment

    from paceline.reports.figure import Picture


@dataclass(frozen=True)
class PageSection:
    """One part of a page. The block of the template that has its key fills it."""

    key: str
    """Its address within the page."""
    title: str
    note: str = ""
    """A line below the title."""


@dataclass(frozen=True)
class Tile:
    """A figure below the answer."""

    label: str
    figure: str
    note: str = ""


@dataclass(frozen=True)
class Fact:
    """A row of a table of facts."""

    label: str
    value: str
    is_code: bool = False
    note: str = ""
    """Behind the value."""
    url: str = ""
    """Makes the value a link."""


@dataclass(frozen=True)
class Chart:
    """A chart below its caption."""

    svg: Markup
    """Or another element, such as an image."""
    caption: str = ""


@dataclass(frozen=True)
class Page:
    """Head of a page, and its sections in their order."""

    kind: str
    """`run`, `trial`, `sweep`, `tune-up` or `scale`."""
    name: str
    id: str
    status: str
    subtitle: str
    tiles: Sequence[Tile]
    sections: Sequence[PageSection]
    warnings: Sequence[str] = ()


def drawn_chart(draw: Callable[[], "Picture | None"], title: str, caption: str = "") -> Chart | None:
    """Return a chart for a page; None where there is nothing to draw. One that fails says so in its place.

    Args:
        draw: returns the figure.
        title: its name for those who cannot see it.
        caption: above the chart.
    """

    def drawn() -> tuple[Chart, ...]:
        picture = draw()
        return () if picture is None else (Chart(picture.svg(title), caption),)

    charts = tried(drawn, title)
    if charts is None:
        return Chart(Markup('<p class="quiet">{} could not be drawn.</p>').format(_finalize(title)))
    return charts[0] if charts else None


def render(template: str, page: Page, **values: Any) -> bytes:
    """Return the file.

    Args:
        template: such as `run.html`; it extends `report.html`, and may use the `values`.
    """
    style, script = _style(), _packaged("script.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    html = (
        _environment()
        .get_template(template)
        .render(page=page, style=Markup(style), script=Markup(script), policy=policy, **values)
    )
    return html.encode()


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # not at the start of a tune-up

    environment = Environment(
        loader=PackageLoader("paceline.reports"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "bytes": text.bytes_text,
        "counted": text.counted,
        "metric": text.metric_text,
        "percent": text.percent_text,
        "seconds": text.seconds_text,
        "time": text.time_text,
    }
    environment.tests |= {"finite": math.isfinite, "web": text.is_web}
    return environment


def _finalize(value: Any) -> Any:
    """Prepare the value of an expression: a text has no secrets and no characters that HTML must not hold.

    Templates do not join texts by filters, whose results would count as HTML already.
    """
    if value is None or isinstance(value, Markup):
        return value or ""
    return redact(text.displayable(str(value)))


@cache
def _style() -> str:
    """The style sheet, with the colors of both themes."""
    light, dark = (
        " ".join(f"--{name}: {color};" for name, color in colors.items()) for colors in (theme.LIGHT, theme.DARK)
    )
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{_packaged('style.css')}"
    )


@cache
def _packaged(name: str) -> str:
    return (files("paceline.reports") / "templates" / name).read_text("utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
