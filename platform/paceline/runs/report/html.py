"""The one place where HTML is made: whatever is no `Markup` is text, and is escaped, without secrets."""

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import TypeAlias
from urllib.parse import urlsplit

from paceline.redaction import redact

VOID = frozenset({"meta", "br", "img", "input", "path", "line", "rect", "circle"})
"""Elements that are written without an end where they have no content."""
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What no HTML file may hold, and what cannot be written as UTF-8."""
_FORBIDDEN = re.compile(r"on|style$|srcdoc$|action$|formaction$")
_URL_ATTRIBUTES = ("href", "xlink:href")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"
"""Text, HTML, nothing, or several of them."""
Value = str | float | bool | None


def tag(element: str, /, *children: Child, **attributes: Value) -> Markup:
    """An element.

    Args:
        element: such as `td`.
        children: what it holds; text is escaped.
        attributes: `class_` and `for_` stand for the two words that Python keeps for itself, `_` for `-`. True is one
            without a value, None and False leave it out.

    Raises:
        ValueError: the attribute could run or load something.
    """
    opening = element + "".join(_attributes(attributes))
    content = join(children)
    if element in VOID and not content:
        return Markup(f"<{opening}>") if element in ("meta", "br", "img", "input") else Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{content}</{element}>")


def join(children: Child) -> Markup:
    """Several pieces as one, text escaped."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return text(children)
    return Markup("".join(map(join, children)))


def text(plain: str) -> Markup:
    """Text as HTML that shows it, without secrets."""
    return Markup(escape(redact(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", plain)), quote=False))


def link(url: str, content: Child) -> Markup:
    """A link to a web page; the content alone where the address is none."""
    if not is_web(url):
        return join(content)
    return tag("a", content, href=url, target="_blank", rel="noopener noreferrer")


def is_web(url: str) -> bool:
    """Whether an address is one of the web, rather than something that runs or reads a file."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc) and url == url.strip()


def _attributes(attributes: Mapping[str, Value]) -> Iterable[str]:
    for given, value in attributes.items():
        name = given.rstrip("_").replace("_", "-")
        if _FORBIDDEN.match(name) or not _is_harmless(name, str(value)):
            raise ValueError(f"the attribute {name}={value!r} could run or load something")
        if value is True:
            yield f" {name}"
        elif value is not None and value is not False:
            yield f' {name}="{_value(value)}"'


def _is_harmless(name: str, value: str) -> bool:
    """A link may lead to the web or within the page, a picture must be in the file itself."""
    if name == "src":
        return value.startswith("data:image/png;base64,")
    return name not in _URL_ATTRIBUTES or value.startswith("#") or is_web(value)


def _value(value: str | float) -> str:
    if isinstance(value, str) and value.startswith("data:image/png;base64,"):
        return escape(value)
    if isinstance(value, str):
        return escape(redact(_UNSEEN.sub("\N{REPLACEMENT CHARACTER}", value)))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
