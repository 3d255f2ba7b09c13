"""A report's HTML as a tree, to be looked at by attributes."""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "input"}
FORBIDDEN = {"iframe", "object", "embed", "link", "base", "form", "foreignobject"}


@dataclass
class Node:
    """An element."""

    tag: str
    attributes: dict[str, str]
    children: "list[Node | str]" = field(default_factory=list)

    def walk(self) -> "Iterator[Node]":
        """The element and all within it, in their order."""
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    @property
    def text(self) -> str:
        """The text that is shown, spaces drawn together; without script and style."""
        words = [child if isinstance(child, str) else child.text for child in self.children]
        return "" if self.tag in ("script", "style") else " ".join(" ".join(words).split())

    def all(self, tag: str = "", /, **attributes: str | None) -> "list[Node]":
        """The elements within it with a tag and attributes, `_` for `-`; None stands for any value."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            node
            for node in self.walk()
            if (not tag or node.tag == tag)
            and all(name in node.attributes for name in wanted)
            and all(value in (None, node.attributes[name]) for name, value in wanted.items())
        ]

    def one(self, tag: str = "", /, **attributes: str | None) -> "Node":
        """The only such element."""
        (node,) = self.all(tag, **attributes)
        return node

    def classes(self, name: str) -> "list[Node]":
        """The elements of a class."""
        return [node for node in self.walk() if name in node.attributes.get("class", "").split()]

    @property
    def cells(self) -> list[str]:
        """What the cells of a row show."""
        return [node.text for node in self.all("td")]

    @property
    def values(self) -> list[float | None]:
        """The numbers that the cells of a row are sorted by."""
        found = (node.attributes.get("data-value") for node in self.all("td"))
        return [None if value is None else float(value) for value in found]


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            node = self.open[-1].children[-1]
            assert isinstance(node, Node)
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(source: str) -> Node:
    """HTML as a tree."""
    builder = _Builder()
    builder.feed(source)
    builder.close()
    return builder.open[0]


def page_from(source: str) -> Node:
    """A whole report, which is looked at for what none may have: nothing runs but its own script, nothing is loaded."""
    page = parsed(source)
    (script,), (style,) = page.all("script"), page.all("style")
    policy = next(each.attributes["content"] for each in page.all("meta", http_equiv=None))
    for node, kind in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256("".join(map(str, node.children)).encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    for node in page.walk():
        assert node.tag not in FORBIDDEN
        assert not [each for each in node.attributes if each.startswith("on") or each in ("style", "srcset")], node.tag
        assert node.attributes.get("src", "data:image/png;").startswith("data:image/png;")
        assert node.attributes.get("href", "#").startswith(("#", "http://", "https://")), node.attributes
        assert node.tag == "a" or "href" not in node.attributes
    return page


def sections(page: Node) -> list[str]:
    """The addresses of the sections."""
    return [node.attributes["id"] for node in page.all("section")]
