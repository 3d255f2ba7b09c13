"""Conversion of plain YAML scalars to values by the rules of YAML 1.2 instead of PyYAML's YAML 1.1.

`1e-3` is a number; `on`, `off`, `yes` and `no`, dates, `1:30` and numbers with leading zeros are text.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import yaml

_PREFIX = "tag:yaml.org,2002:"
MERGE = _PREFIX + "merge"
MAPPING = _PREFIX + "map"
SEQUENCE = _PREFIX + "seq"

_RULES = [
    (_PREFIX + "null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_PREFIX + "bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_PREFIX + "int", r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*|0x[0-9a-fA-F]+)", list("-+0123456789")),
    (
        _PREFIX + "float",
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+0123456789."),
    ),
    (MERGE, r"<<", ["<"]),
]

LONGEST_NUMBER = 64
"""Maximum number of characters of a whole number; Python refuses to print much longer ones."""


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, starts in _RULES:
        for start in starts:
            table.setdefault(start, []).append((tag, re.compile(rf"(?:{pattern})\Z")))
    return table


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("only true and false are booleans")
    return text.lower() == "true"


def _read_int(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise ValueError(f"a whole number of more than {LONGEST_NUMBER} digits")
    return int(text, 0)


def _read_float(text: str) -> float:
    name = text.lower()
    return float(name.replace(".", "")) if name.endswith(("inf", "nan")) else float(text)


READERS: Mapping[str, Callable[[str], Any]] = {
    _PREFIX + "null": lambda _: None,
    _PREFIX + "bool": _read_bool,
    _PREFIX + "int": _read_int,
    _PREFIX + "float": _read_float,
    _PREFIX + "str": str,
}
"""Parser of the scalars of each allowed tag; raises ValueError for text that is not a valid value."""


class Loader(yaml.SafeLoader):
    """PyYAML's safe loader with these rules, and a limit on nesting instead of a RecursionError."""

    yaml_implicit_resolvers = _resolvers()
    max_depth = 50
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node of the document.

        Raises:
            MarkedYAMLError: it is nested deeper than `max_depth` levels.
        """
        self.depth += 1
        if self.depth > self.max_depth:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {self.max_depth} levels", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class Dumper(yaml.SafeDumper):
    """Writes YAML that has the same meaning in YAML 1.1 and 1.2: text such as `off` and `1e-3` is quoted."""

    yaml_implicit_resolvers: ClassVar = {  # type: ignore[misc]
        start: _resolvers().get(start, []) + yaml.SafeDumper.yaml_implicit_resolvers.get(start, [])
        for start in [*_resolvers(), *yaml.SafeDumper.yaml_implicit_resolvers]
    }

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: anchors are never written, equal values are written out each time."""
        return True
