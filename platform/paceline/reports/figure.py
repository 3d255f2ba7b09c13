"""The figure that every chart is drawn in: as PNG, and as SVG that follows the theme of a page."""

import importlib
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from textwrap import fill
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap
from matplotlib.figure import Figure

from paceline.redaction import redact
from paceline.reports import theme
from paceline.reports.text import displayable

WIDE = 8.5
"""Inches from which on a figure takes the whole width of a page."""
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_FONTS = {"font-size", "font-weight", "font-style", "text-anchor"}
"""Properties of a text that are kept; the page chooses the font."""
_VARIABLES = {color: f"var(--{name})" for name, color in theme.LIGHT.items()} | {"#000000": "var(--ink)"}


class Picture(Figure):
    """A figure without pyplot and its list of open figures; a notebook shows it.

    Args:
        width: inches.
        height: inches.
    """

    def __init__(self, width: float, height: float) -> None:
        if "IPython" in sys.modules:
            # matplotlib asks it for its version; while another thread imports it, it has none. An import waits for that
            with suppress(ImportError):
                importlib.import_module("IPython")
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")
        FigureCanvasAgg(self)
        self._tips: dict[str, Sequence[str]] = {}

    def tip(self, artist: Artist, texts: Sequence[str]) -> None:
        """Show a text under the pointer in an SVG: one for each point of a collection, or one for all of an artist."""
        name = f"tip-{len(self._tips)}"
        artist.set_gid(name)
        self._tips[name] = [plain_text(text) for text in texts]

    def png(self) -> bytes:
        """Return the file."""
        self._lay_out()
        data = BytesIO()
        self.savefig(data, format="png", facecolor=theme.LIGHT["card"])
        return data.getvalue()

    _repr_png_ = png

    def svg(self, title: str) -> Markup:
        """Return an element for a page: colors are the theme's, and it has no style that a policy would have to allow.

        Args:
            title: its name for those who cannot see it.
        """
        self._lay_out()
        data = BytesIO()
        # text stays text, and the same chart has the same ids
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "paceline"}):
            self.savefig(data, format="svg", transparent=True, metadata={"Date": None})
        root = ElementTree.fromstring(data.getvalue())
        for parent in list(root.iter()):
            for child in [child for child in parent if child.tag.endswith(("metadata", "}style"))]:
                parent.remove(child)
        for element in root.iter():
            _adapt(element)
        self._add_tips(root)
        for group in root.iter(f"{{{_SVG}}}g"):
            group.attrib.pop("id", None)
        for size in ("width", "height", "version"):
            root.attrib.pop(size, None)
        kind = "chart wide-chart" if self.get_figwidth() >= WIDE else "chart"
        own = {"role": "img", "aria-label": plain_text(title), "class": kind, "stroke-linejoin": "round"}
        root.attrib.update(own)
        ElementTree.register_namespace("", _SVG)
        ElementTree.register_namespace("xlink", _LINK)
        return Markup(ElementTree.tostring(root, encoding="unicode"))

    def _lay_out(self) -> None:
        """Place everything, once. matplotlib does so for each file, and draws the figure one more time for it."""
        if (engine := self.get_layout_engine()) is not None:
            engine.execute(self)
            self.set_layout_engine(None)

    def _add_tips(self, root: ElementTree.Element) -> None:
        groups = {group.get("id", ""): group for group in root.iter(f"{{{_SVG}}}g")}
        for name, texts in self._tips.items():
            if (group := groups.get(name)) is None:
                continue
            drawn = list(group.iter(f"{{{_SVG}}}use")) or list(group.iter(f"{{{_SVG}}}path"))
            if len(texts) == 1:
                drawn = [group]
            elif len(drawn) != len(texts):
                continue  # markers beyond the edge are not in the file: no text is better than that of another point
            for element, text in zip(drawn, texts, strict=True):
                label = ElementTree.Element(f"{{{_SVG}}}title")
                label.text = text
                element.insert(0, label)


def _adapt(element: ElementTree.Element) -> None:
    """Write an element's style as attributes, in the colors of the theme."""
    properties = [pair.partition(":") for pair in element.attrib.pop("style", "").split(";")]
    is_text = element.tag == f"{{{_SVG}}}text"
    for name, _, value in properties:
        key = name.strip()
        if key == "font":  # matplotlib before 3.10 writes all of it in one: `bold 10px 'DejaVu Sans', ...`
            size = re.search(r"[\d.]+px", value)
            element.set("font-size", size[0] if size else "10px")
            element.set("font-weight", "bold" if re.search(r"\b(bold|700)\b", value) else "normal")
            continue
        if key and (not is_text or key in _FONTS or key in ("fill", "opacity")):
            element.set(key, value.strip())
    for key in ("fill", "stroke"):
        if (color := element.get(key)) is not None:
            element.set(key, _VARIABLES.get(color, color))
    if is_text:
        element.attrib.setdefault("fill", "var(--ink)")
    if path := element.get("d"):
        element.set("d", re.sub(r"\s*\n\s*", "", path))


def dress(axes: Axes, grid: str = "both") -> None:
    """Give axes the look that all charts have."""
    axes.grid(visible=True, axis=grid, color=theme.RULE, linewidth=0.7)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(theme.QUIET)
    axes.tick_params(which="both", colors=theme.QUIET)


def plain(text: str, width: int | None = None, indent: str = "") -> str:
    """Return a text as matplotlib takes it: without secrets, and with no `$` that begins a formula.

    Args:
        width: characters of a line, where it is to be wrapped.
        indent: of the lines after the first.
    """
    shown = plain_text(text)  # before it is wrapped, since half of a secret is not recognised
    return (fill(shown, width, subsequent_indent=indent) if width else shown).replace("$", r"\$")


def shortened(text: str, width: int) -> str:
    """Return as much of a text as fits into so many characters, as `plain` does."""
    shown = plain_text(text)
    return (shown if len(shown) <= width else f"{shown[: width - 1]}…").replace("$", r"\$")


def plain_text(text: str) -> str:
    """Return a text as an XML file may hold it, without secrets."""
    return redact(displayable(text))


def color_map(mode: str) -> Colormap:
    """Return the colors of values: brighter is better, and can be distinguished without red and green as well."""
    return colormaps["viridis" if mode == "max" else "viridis_r"].with_extremes(bad="none")
