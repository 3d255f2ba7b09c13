"""Reads YAML into plain values, and records the position of each key."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from paceline.config.yaml_rules import MAPPING, MERGE, READERS, SEQUENCE, Loader
from paceline.errors import ConfigError, Problem

Key = tuple[str | int, ...]
"""Path of a value in the tree: keys of mappings and positions in lists."""
Position = tuple[int, int]
"""Line and column, both counted from 1."""

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000


def dotted(key: Key) -> str:
    """Return a key as written in messages and overrides, such as `optimizer.lr`."""
    return ".".join(str(part) for part in key)


@dataclass(frozen=True)
class Source:
    """Tree of a YAML file, and the position of every key in it."""

    name: str
    """Path of the file, as given by the user."""
    tree: dict[str, Any]
    positions: Mapping[str, Position]
    """Dotted key to its position in this file; list items are counted from 0."""
    parent: "Source | None" = None
    """File that this one extends; None without one. Its values are in `tree`, unless this file overrides them."""
    file: Path | None = None
    """Path of the file; None for text that is not in a file."""

    @property
    def chain(self) -> "list[Source]":
        """This file, the file that it extends, and so on."""
        return [self] if self.parent is None else [self, *self.parent.chain]

    def has(self, key: str) -> bool:
        """Return True if a key is written in one of the files."""
        return any(key in source.positions for source in self.chain)

    def position(self, key: str) -> Position:
        """Return the position of a key, or of its nearest enclosing key if the key is not written in the files."""
        return self._find(key)[1]

    def place(self, key: str) -> str:
        """Return `file:line:column` of a key."""
        source, (line, column) = self._find(key)
        return f"{source.name}:{line}:{column}"

    def _find(self, key: str) -> "tuple[Source, Position]":
        while key:
            for source in self.chain:
                if key in source.positions:
                    return source, source.positions[key]
            key = key.rpartition(".")[0]
        return self, (1, 1)


def read_source(path: Path) -> Source:
    """Read a config file.

    Raises:
        ConfigError: the file does not exist, or is not a valid YAML mapping; with every problem found.
    """
    return replace(read_text(_text_of(path), str(path)), file=path)


def read_text(text: str, name: str) -> Source:
    """Read the text of a config file; messages call the file `name`.

    Raises:
        ConfigError: the text is not a valid YAML mapping; with every problem found.
    """
    reader = _Reader(lambda at: f"{name}:{at[0]}:{at[1]}")
    tree = reader.read(text)
    if not reader.problems and not isinstance(tree, dict):
        kind = "holds a list" if isinstance(tree, list) else f"holds {tree!r:.40}"
        reason = "the file is empty" if tree is None else f"the file {kind} instead of keys and values"
        code = "empty-file" if tree is None else "not-a-mapping"
        reader.report(code, (1, 1), (), reason, "write at least name, model and data, as in 'name: my-run'")
    if reader.problems:
        raise ConfigError(list(dict.fromkeys(reader.problems)))
    return Source(name, tree, reader.positions)


def read_value(text: str, place: str) -> Any:
    """Read the value of an override by the same rules; messages give `place` as its place.

    Raises:
        ConfigError: the text is not valid YAML.
    """
    reader = _Reader(lambda _: place)
    value = reader.read(text)
    if reader.problems:
        raise ConfigError(list(dict.fromkeys(reader.problems)))
    return value


def _text_of(path: Path) -> str:
    name = str(path)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise ConfigError([Problem("too-large", f"the file is larger than {MAX_BYTES:,} bytes", place=name)])
        return raw.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError([Problem("no-file", "there is no such file", place=name, hint=_near_file(path))]) from None
    except IsADirectoryError:
        hint = "give the path of a YAML file"
        raise ConfigError([Problem("is-folder", "this is a folder, not a file", place=name, hint=hint)]) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        problem = Problem("not-utf8", "this is not UTF-8 text", place=f"{name}:{line}:1", hint="save the file as UTF-8")
        raise ConfigError([problem]) from None
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError([Problem("unreadable", f"the file cannot be read: {error}", place=name)]) from None


def _near_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix in (".yaml", ".yml")]
    except OSError:
        return f"the folder {str(path.parent)!r} does not exist either"
    near = get_close_matches(path.name, names, n=1) or get_close_matches(f"{path.name}.yaml", names, n=1)
    return f"did you mean {path.with_name(near[0])}?" if near else ""


class _TooMuchError(Exception):
    """Raised if a document has more than `MAX_VALUES` values, counted with its aliases expanded."""


@dataclass
class _Reader:
    """Converts the nodes of one document to values, and collects positions and problems."""

    place: Callable[[Position], str]
    problems: list[Problem] = field(default_factory=list)
    positions: dict[str, Position] = field(default_factory=dict)
    values: int = 0
    open_nodes: list[int] = field(default_factory=list)

    def report(self, code: str, at: Position, key: Key, reason: str, hint: str = "") -> None:
        """Add a problem."""
        self.problems.append(Problem(code, reason, dotted(key), self.place(at), hint))

    def read(self, text: str) -> Any:
        """Return the document as plain values; None if it is empty or not valid YAML."""
        try:
            node = Loader(text).get_single_node()
            return None if node is None else self._value(node, ())
        except yaml.reader.ReaderError as error:
            at = (text[: error.position].count("\n") + 1, 1)
            reason = f"the character {chr(error.character)!r} is not allowed in YAML"
            self.report("yaml-syntax", at, (), reason)
        except yaml.MarkedYAMLError as error:
            self._syntax(error)
        except _TooMuchError:
            self.report("too-large", (1, 1), (), f"the file holds more than {MAX_VALUES:,} values, aliases counted")
        except (ValueError, OverflowError) as error:
            self.report("yaml-syntax", (1, 1), (), f"this is not YAML: {error}")
        return None

    def _syntax(self, error: yaml.MarkedYAMLError) -> None:
        mark = error.problem_mark or error.context_mark
        at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = str(error.problem)
        if problem.startswith("found character '\\t'"):
            place = "indent" if mark and _begins_line(mark) else "separate values in"
            self.report("yaml-tab", at, (), f"tab characters cannot {place} YAML", "use spaces")
            return
        code = "too-deep" if problem.startswith("nested deeper") else "yaml-syntax"
        self.report(code, at, (), problem if not error.context else f"{problem} ({error.context})", _hint_for(problem))

    def _value(self, node: yaml.Node, key: Key) -> Any:
        self._count()
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, key)
        if node.tag not in (MAPPING, SEQUENCE):
            return self._foreign(node, key)
        if id(node) in self.open_nodes:
            return self.report("yaml-alias", _at(node), key, "this alias contains itself")
        if len(self.open_nodes) >= Loader.max_depth:
            return self.report("too-deep", _at(node), key, f"nested deeper than {Loader.max_depth} levels")
        self.open_nodes.append(id(node))
        value = self._mapping(node, key) if isinstance(node, yaml.MappingNode) else self._list(node, key)
        self.open_nodes.pop()
        return value

    def _count(self) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            raise _TooMuchError

    def _scalar(self, node: yaml.ScalarNode, key: Key) -> Any:
        if node.tag == MERGE:
            return node.value
        if node.tag not in READERS:
            return self._foreign(node, key)
        try:
            return READERS[node.tag](node.value)
        except ValueError as error:
            return self.report("bad-value", _at(node), key, f"{node.value[:40]!r} is not a valid value: {error}")

    def _foreign(self, node: yaml.Node, key: Key) -> None:
        self.report(
            "yaml-tag", _at(node), key, f"the tag {node.tag[:80]!r} is not allowed", "write the value without it"
        )

    def _list(self, node: yaml.Node, key: Key) -> list[Any]:
        for index, item in enumerate(node.value):
            self.positions[dotted((*key, index))] = _at(item)
        return [self._value(item, (*key, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, (key_node, value_node) in self._entries(node, key).items():
            self.positions[dotted((*key, name))] = _at(key_node)
            found[name] = self._value(value_node, (*key, name))
        return found

    def _entries(self, node: yaml.MappingNode, key: Key) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            self._count()
            if key_node.tag == MERGE:
                for base in self._bases(value_node, key):
                    merged = {**self._entries(base, key), **merged}
                continue
            name = self._key_name(key_node, key)
            if name in own:
                first = _at(own[name][0])[0]
                hint = f"first on line {first}; keep one of the two"
                self.report("duplicate-key", _at(key_node), (*key, name), "is written twice", hint)
            elif name is not None:
                own[name] = (key_node, value_node)
        return {**merged, **own}

    def _bases(self, node: yaml.Node, key: Key) -> Iterator[yaml.MappingNode]:
        for base in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(base, yaml.MappingNode) and id(base) not in self.open_nodes:
                self.open_nodes.append(id(base))
                yield base
                self.open_nodes.pop()
            else:
                self.report("yaml-merge", _at(base), key, "'<<' needs a mapping, or a list of them, to merge")

    def _key_name(self, node: yaml.Node, key: Key) -> str | None:
        name = self._scalar(node, key) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(name, str):
            return name
        shown = repr(node.value[:40]) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        hint = f'write "{node.value[:40]}" in quotes' if isinstance(node, yaml.ScalarNode) else ""
        self.report("bad-key", _at(node), key, f"{shown} cannot be a key: keys are text", hint)
        return None


def _at(node: yaml.Node) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


_HINT = [
    (r"cannot start any token", "indent with spaces, and put text that starts with a special character in quotes"),
    (r"mapping values are not allowed", "put text that holds ': ' in quotes, and check the indentation"),
    (r"another document", "keep one document: remove the '---' between two"),
    (r"could not find expected ':'", "every key needs a ':' and a space after it"),
    (r"expected <block end>", "check the indentation, and that every bracket and quote is closed"),
    (r"expected ',' or|found unexpected end of stream", "check that every bracket and quote is closed"),
]


def _begins_line(mark: yaml.Mark) -> bool:
    """Return True if only whitespace precedes a position on its line."""
    return mark.buffer is not None and not mark.buffer[mark.pointer - mark.column : mark.pointer].strip()


def _hint_for(problem: str) -> str:
    return next((hint for pattern, hint in _HINT if re.search(pattern, problem)), "")
