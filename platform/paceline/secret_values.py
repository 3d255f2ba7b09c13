"""Which values are secrets: those of variables with a telling name, of addresses, and those of configs and commands."""

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
WORDS = (
    r"(?:password|passwd|pwd|passphrase|secret|token|api[ _-]?key|access[ _-]?key|secret[ _-]?key|private[ _-]?key|"
    r"credentials?|authorization)"
)
"""What the name of a secret ends with."""
IN_QUERY = rf"(?:{WORDS}|sig|signature)"
"""The same in an address's query: signed addresses have their signature there."""
# No search that fails may be long: on a long word, it would take the square of its length.
_REST = r"(?:(?!://)(?:\\.|[^\s\"\\]))*@"
URL_USER = re.compile(
    rf"(://)(?:(?<!http://)(?<!https://)[^/\s:@\[]*:{_REST}|[^/\s]*@|[^/\s:@\[]*:(?!\d{{1,5}}[/?#]){_REST})"
)
"""What stands before an address's host. A password may have slashes, and so may the path behind a port have an `@`:
a web address with a number there is taken for the latter, and what no host can have for the former."""
URL_QUERY = re.compile(rf"(?i)[?&][\w.-]*{IN_QUERY}=[^&\s'\"]+")
_SECRET_NAME = re.compile(
    r"(?i)PASSWORD|PASSWD|PASSPHRASE|_(?:PWD|PASS)(?:_|$)|TOKEN(?:_|$)|SECRET|_KEY(?:_|$)|^KEY$|APIKEY|CREDENTIAL"
)
_OURS = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
"""Variables that hold nothing else: 4 characters are enough."""
_SAYS_NOTHING = re.compile(r"(?i)(?:true|false|none|null|default|disabled?|enabled?|required|optional)$")
_PATH = re.compile(r"(?i)[/~.]|[a-z]:\\")
"""How paths begin; secrets may begin so as well."""
_PATHS_NAME = re.compile(r"(?i)(?:FILE|PATH|DIR|DIRECTORY|FOLDER|HOME|ROOT|SOCK|CREDENTIALS?)S?$")
_ESCAPED_IN_MARKDOWN = re.compile(r"([\\`*_{}\[\]#|~])")


class Known(NamedTuple):
    """What is to be hidden wherever it stands."""

    texts: tuple[str, ...] = ()
    """The longest first."""
    folded: tuple[re.Pattern[str], ...] = ()
    """Those with blanks, at which a line may have been broken."""


_learned: set[str] = set()
_known: tuple[object, int, Known] = (None, -1, Known())
"""The environment and the number of learned values, and what follows from both."""


def remember(values: Iterable[str]) -> None:
    """Take these values for secrets from now on, but for paths that exist and for words that say nothing."""
    _learned.update(value for value in values if len(value) >= SHORTEST and not says_nothing(value))


def known() -> Known:
    """All values that are to be hidden; put together again only when something has changed."""
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
    """The passwords and tokens of the addresses in a text, as they are written and as they are meant."""
    if "://" not in text:
        return
    passwords = [found[0][3:-1].partition(":")[2] for found in URL_USER.finditer(text)]
    tokens = [part.partition("=")[2] for part in re.split("[?&]", text) if URL_QUERY.match(f"&{part}")]
    yield from dict.fromkeys(form for value in (*passwords, *tokens) for form in (value, unquote(value)))


def says_nothing(value: str) -> bool:
    """Whether a value is not secret, wherever it stands: a word such as `default`, or the path of something."""
    return _SAYS_NOTHING.match(value) is not None or _is_there(value)


def _environment_secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if name in _OURS and len(value) >= SHORTEST // 2:
            yield value
        candidates = [value] if _SECRET_NAME.search(name) and not _names_path(name, value) else []
        for each in (*candidates, *passwords_in(value)):
            if len(each) >= SHORTEST and not says_nothing(each):
                yield each


def _names_path(variable: str, value: str) -> bool:
    return _PATHS_NAME.search(variable) is not None and _PATH.match(value) is not None


def _is_there(value: str) -> bool:
    """Whether it is the path of something."""
    if not _PATH.match(value):
        return False
    try:
        return Path(value).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, or of no user
        return False


def _forms(value: str) -> tuple[str, ...]:
    """How a value may be written: in addresses, JSON (also within JSON), Python, YAML, HTML and Markdown."""
    page, text = escape(value, quote=False), json.dumps(value)[1:-1]
    return (
        *(value, quote(value, safe=""), quote(value), quote_plus(value)),
        *(text, json.dumps(text)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]),
        *(value.replace("'", "''"), value.replace("'", "'\"'\"'")),
        *(page, escape(value), _ESCAPED_IN_MARKDOWN.sub(r"\\\1", page)),
    )
