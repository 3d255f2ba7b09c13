"""Values to hide: those of environment variables such as `API_KEY`, and secrets in addresses, configs and commands.

A value is searched for in every text, metric names included, so it must not be an ordinary word. Some keys always have
secret values (`password`, `api_key`). Others are doubtful: a model also has a `pad_token`. Below a doubtful key, a
value that reads as a name is not a secret.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

SHORTEST = 8
"""Characters of the shortest value that is taken for a secret: `pad_token: <pad>` is not one."""
DOUBTFUL_WORDS = r"(?:token|pwd)"
"""Words that end the names of secrets, but other names as well."""
WORDS = (
    rf"(?:password|passwd|passphrase|secret|(?:api|access|secret|private|account)[ _-]?key|credentials?|authorization|"
    rf"{DOUBTFUL_WORDS})"
)
"""Words that end the name of a secret."""
IN_QUERY = rf"(?:{WORDS}|sig|signature)"
"""The same in an address's query: signed addresses have their signature there."""
# No search that fails may be long: on a long word, it would take the square of its length.
_REST = r"(?:(?!://)(?:\\.|[^\s\"\\]))*@"
URL_USER = re.compile(
    rf"(://)(?:(?<!http://)(?<!https://)[^/\s:@\[]*:{_REST}|[^/\s]*@|[^/\s:@\[]*:(?!\d{{1,5}}[/?#]){_REST})"
)
"""Matches `://` and the user information before an address's host. A password may contain slashes, and the path after a
port may contain an `@`. In a web address, a number before the slash is read as a port, and text that a host cannot
contain as a password."""
URL_QUERY = re.compile(rf"(?i)[?&][\w.-]*{IN_QUERY}=[^&\s'\"]+")
_CERTAIN_NAME = re.compile(
    r"(?i)PASSWORD|PASSWD|PASSPHRASE|_(?:PWD|PASS)(?:_|$)|SECRET|(?:API|ACCESS|PRIVATE)_?KEY|CREDENTIAL"
)
_DOUBTFUL_NAME = re.compile(r"(?i)TOKEN(?:_|$)|_KEY(?:_|$)|^KEY$")
_WORD = r"(?:[A-Z]?[a-z]{1,20}|[A-Z]{1,20})"
_PIECE = (
    rf"(?:(?:{_WORD}|[A-Z]?[a-z]{{2,12}}(?:[A-Z][a-z]{{2,12}}){{1,4}})(?:\d{{1,3}}[a-z]?)?|\d{{1,3}}[A-Za-z]{{0,2}})"
)
_NAME = re.compile(
    rf"(?:[/~.]{{0,3}}{_PIECE}(?:[_./:|-]{{1,3}}{_PIECE})*[/:]?"  # gpt2-medium, val/loss, BatchNorm2d, ./data/train
    r"|<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\])"  # <|endoftext|>, [MASK]
)
_LONGEST_NAME = 200
_PATH = re.compile(r"(?i)[/~.]|[a-z]:\\")
"""Matches the beginning of a path; a secret may begin in the same way."""
_PATHS_NAME = re.compile(r"(?i)(?:FILE|PATH|DIR|DIRECTORY|FOLDER|HOME|ROOT|SOCK|CREDENTIALS?)S?$")
_ESCAPED_IN_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~])")


class Known(NamedTuple):
    """Secrets to hide in all texts."""

    texts: tuple[str, ...] = ()
    """Secrets in each way of writing them, the longest first."""
    folded: tuple[re.Pattern[str], ...] = ()
    """Patterns of the secrets with blanks, at which a line may have been broken."""


_learned: set[str] = set()
_known: tuple[object, int, Known] = (None, -1, Known())
"""The environment, the number of learned values, and the secrets found in both."""


def remember(values: Iterable[str]) -> None:
    """Take these values for secrets from now on, but for short ones, words, and paths that exist."""
    _learned.update(value for value in values if _can_be_searched_for(value))


def known() -> Known:
    """Return all values to hide; collected again only after a change."""
    global _known
    # what lies beneath, since the environment itself is decoded at each look
    environment = getattr(os.environ, "_data", os.environ)
    before, learned, found = _known
    if before != environment or learned != len(_learned):
        values = {*_environment_secrets(), *_learned}
        texts = sorted({form for value in values for form in _forms(value)}, key=lambda form: (-len(form), form))
        folded = (re.compile(r"[\s\\]+".join(map(re.escape, value.split()))) for value in sorted(values))
        found = Known(tuple(texts), tuple(each for each in folded if r"[\s\\]+" in each.pattern))
        _known = dict(environment), len(_learned), found
    return found


def passwords_in(text: str) -> Iterator[str]:
    """Yield the passwords and tokens of the addresses in a text, as written and with percent-encoding removed."""
    if "://" not in text:
        return
    passwords = [found[0][3:-1].partition(":")[2] for found in URL_USER.finditer(text)]
    tokens = [part.partition("=")[2] for part in re.split("[?&]", text) if URL_QUERY.match(f"&{part}")]
    yield from dict.fromkeys(form for value in (*passwords, *tokens) for form in (value, unquote(value)))


def is_name(value: str) -> bool:
    """Return True if a value reads as the name of something: words with separators and small numbers, or a special
    token such as `<|endoftext|>`. Generated tokens and passwords do not."""
    return len(value) <= _LONGEST_NAME and _NAME.fullmatch(value) is not None


def is_existing_path(value: str) -> bool:
    """Return True if a value is the path of an existing file or folder."""
    if not _PATH.match(value):
        return False
    try:
        return Path(value).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, or of no user
        return False


def _can_be_searched_for(value: str) -> bool:
    """Return True if a secret is so unusual that other texts have it only where the secret is meant."""
    return len(value) >= SHORTEST and not re.fullmatch(_WORD, value) and not is_existing_path(value)


def _environment_secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        is_certain = _CERTAIN_NAME.search(name) is not None
        is_secret = is_certain or (_DOUBTFUL_NAME.search(name) is not None and not is_name(value))
        candidates = [value] if is_secret and not _names_path(name, value) else []
        yield from filter(_can_be_searched_for, (*candidates, *passwords_in(value)))


def _names_path(variable: str, value: str) -> bool:
    return _PATHS_NAME.search(variable) is not None and _PATH.match(value) is not None


def _forms(value: str) -> tuple[str, ...]:
    """Return the ways to write a value: in addresses, JSON (also within JSON), Python, YAML, HTML and Markdown."""
    page, text = escape(value, quote=False), json.dumps(value)[1:-1]
    return (
        *(value, quote(value, safe=""), quote(value), quote_plus(value)),
        *(text, json.dumps(text)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]),
        *(value.replace("'", "''"), value.replace("'", "'\"'\"'")),
        *(page, escape(value), _ESCAPED_IN_MARKDOWN.sub(r"\\\1", page)),
    )
