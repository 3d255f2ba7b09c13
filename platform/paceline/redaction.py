"""Removes secrets from text that is shown, logged or stored. Runs wherever text leaves the process.

A secret is recognised by its key (`password: ...`), by its shape (`ghp_...`), or by its value. Known values are those
of environment variables with names such as `API_KEY`, and those that the config or the command has under such a key:
see `secret_values`. A key such as `token` is doubtful: a value that reads as a name (`pad_token: "<|endoftext|>"`) is
kept.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import unescape
from typing import Any

from paceline.secret_values import (
    DOUBTFUL_WORDS,
    IN_QUERY,
    SHORTEST,
    URL_QUERY,
    URL_USER,
    WORDS,
    is_existing_path,
    is_name,
    known,
    passwords_in,
    remember,
)

HIDDEN = "***"
_BEGINNINGS = (
    *("password", "passwd", "pwd", "passphrase", "secret", "token", "credential", "authorization", "bearer"),
    *(f"{word}{sign}key" for word in ("api", "access", "private", "account") for sign in ("", "_", "-", " ")),
    *("sig=", "signature="),
)
"""Lower-case beginnings of all matches of the next patterns. Searching for these first is many times faster."""
# In quotes up to their end, or up to the line's where they were cut; without quotes, up to the first blank.
_IN_QUOTES = r"(?:(?!(?P=quote))(?:\\.|[^\n\\])){8,500}(?=(?P=quote))|(?![\"'\s])[^\n\"']{8,500}$"
# On one line: the next line of a YAML file is another key.
_ASSIGNED = re.compile(
    rf"(?im)({WORDS}\\{{0,4}}[\"']?[ \t]*[:=][ \t]*(?P<quote>\\{{0,4}}[\"'])?)"
    rf"(?(quote)(?:{_IN_QUOTES})|(?![\"'\s])[^\s,}}\"']{{8,}})"
)
_HEADER = re.compile(
    r"(?i)((?:authorization\\{0,4}[\"']?[ \t]*[:=][ \t]*\\{0,4}[\"']?(?:basic|bearer|token|digest)|bearer)[ \t]+)"
    r"(?=[^\s\d]{0,200}\d)[^\s,}\"']{8,}"
)
_END = re.compile(r"[).;!?]*(?:(?<!^)</?[A-Za-z].*)?$", re.DOTALL)
"""The end of a sentence or of a call, and the next tag of a page, which belong to no value."""
_CODE = re.compile(r"[A-Za-z_][\w.]{0,100}[(\[]")
_DOUBTFUL = re.compile(rf"(?i){DOUBTFUL_WORDS}")
_IN_QUERY = re.compile(rf"(?i)({IN_QUERY}=)[^&\s'\"]+")
_KEY_PART = re.compile(r"[\w.-]*")
_KEY_LENGTH = 100
_LONGEST_NAME = 300
"""Characters of the longest text that may be a name or code."""
_WORD_LENGTH = 16
"""Characters of the longest of the words, and of a sign behind it."""
# The others begin with what is looked for fast, and no search that fails may be long: on a long word, they would
# take the square of its length.
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)


def _shape(prefix: str, rest: str, inside: str = "A-Za-z0-9") -> re.Pattern[str]:
    """Compile a pattern for secrets that start with `prefix`, unless a character of the class `inside` precedes it."""
    return re.compile(rf"{prefix}(?<![{inside}]{prefix}){rest}")


_SHAPES = (
    *(_shape(prefix, r"[0-9A-Z]{16}(?![0-9A-Za-z])") for prefix in ("AKIA", "ASIA")),  # Amazon
    *(_shape(f"gh{kind}_", r"[A-Za-z0-9]{20,255}") for kind in "pousr"),  # GitHub
    _shape("github_pat_", r"[A-Za-z0-9_]{20,255}"),
    _shape("glpat-", r"[A-Za-z0-9_-]{20,255}"),  # GitLab
    _shape("hf_", r"[A-Za-z0-9]{20,255}"),  # Hugging Face
    _shape("xox", r"[abeoprs]-[A-Za-z0-9-]{10,255}"),  # Slack
    _shape("AIza", r"[0-9A-Za-z_-]{35}"),  # Google
    _shape("sk-", r"(?:(?:ant|proj|svcacct|admin)-[A-Za-z0-9_-]{20,255}|[A-Za-z0-9]{20,255})"),  # OpenAI, Anthropic
    _shape("dapi", r"[0-9a-f]{32}(?:-\d)?(?![0-9A-Za-z])"),  # Databricks
    _shape("nvapi-", r"[A-Za-z0-9_-]{40,255}"),  # NVIDIA
    _shape("pypi-", r"AgE[A-Za-z0-9_-]{40,255}"),
    # a JSON web token; where a search that fails could be long, each run is looked at from its beginning alone
    _shape("eyJ", r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?", r"A-Za-z0-9_\-"),
)
_KEYS_ALONE = (
    r"(?:passwords|passphrases|secrets|(?:api|access|private)[ _-]?keys|"
    r"(?:encryption|signing|ssh|master|auth|license)[ _-]?key)"
)
"""Keys that mark a secret in a config, but are too common in other texts. `tokens` is left out: models have lists of
them."""
_DOUBTFUL_KEY = rf"(?:{DOUBTFUL_WORDS}|pass|auth|storage[ _-]?key)"
_SECRET_KEY = re.compile(
    rf"(?i)(?:^|[._-]|(?-i:(?<=[a-z0-9])(?=[A-Z])))(?:(?P<doubtful>{_DOUBTFUL_KEY})|{WORDS}|{_KEYS_ALONE})$"
)


def redact(text: str) -> str:
    """Hide secrets: known values, credentials in URLs and headers, `password=...`, `token: ...`, and known shapes."""
    text = _without_assigned(URL_USER.sub(rf"\g<1>{HIDDEN}@", _without_values(text)))
    if "PRIVATE KEY" in text:
        text = _KEY_BLOCK.sub(HIDDEN, text)
    for shape in _SHAPES:
        text = shape.sub(HIDDEN, text)
    return text


def redact_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Hide the values of keys such as `api_key`, and the secrets within the other texts."""
    return {
        key: value if not isinstance(value, str) else HIDDEN if _is_secret(key, value) else redact(value)
        for key, value in values.items()
    }


def redact_tree(value: Any, key: str = "") -> Any:
    """Redact JSON values of any depth, the keys of mappings included. Below a key such as `secret`, all is hidden."""
    if isinstance(value, Mapping):
        return {redact(str(name)): redact_tree(inner, _key_below(key, str(name))) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact_tree(inner, key) for inner in value]
    return redact_values({key: value})[key]


def redact_bytes(data: bytes) -> bytes:
    """Return a file's bytes for storage: a text without its secrets, binary data unchanged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    hidden = redact(text)
    return data if hidden == text else hidden.encode()


def redact_arguments(arguments: Sequence[str]) -> list[str]:
    """Redact the arguments of a command, the values of options such as `--api-key` included."""
    secret = set(_secret_places(arguments))
    return [
        redact(argument) if place not in secret else f"{_assigned_name(argument)}{HIDDEN}"
        for place, argument in enumerate(arguments)
    ]


def learn(values: Iterable[str]) -> None:
    """Hide these values from now on, wherever this process shows or stores something."""
    remember(values)


def without_credentials(uri: str) -> str:
    """Return an address without user name, password and tokens, as it may be stored."""
    bare = URL_USER.sub(r"\g<1>", uri)
    if bare.lower().startswith(("http:", "https:")):
        return re.split("[?#]", bare, maxsplit=1)[0]  # a server's address needs no query: what is there is a token
    base, _, query = bare.partition("?")
    kept = "&".join(part for part in query.split("&") if not URL_QUERY.match(f"&{part}"))
    return f"{base}?{kept}" if kept else base


def names_in(value: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of a tree, and its texts that are not secret."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name)
            yield from names_in(inner, _key_below(key, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from names_in(inner, key)
    elif isinstance(value, str) and not _is_secret(key, value):
        yield without_credentials(value)


def secrets_in(value: Any, key: str = "") -> Iterator[str]:
    """Yield the values that a tree holds under keys such as `api_key`, and the passwords of its addresses."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from secrets_in(inner, _key_below(key, str(name)))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secrets_in(inner, key)
    elif isinstance(value, str):
        if _is_secret(key, value):
            yield value
        yield from passwords_in(value)


def secrets_among(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the secrets among the arguments of a command."""
    for place in _secret_places(arguments):
        yield arguments[place].removeprefix(_assigned_name(arguments[place]))
    for argument in arguments:
        yield from passwords_in(argument)


def _is_secret(key: str, value: str) -> bool:
    found = _SECRET_KEY.search(key) if len(value) >= SHORTEST else None
    return found is not None and not (found["doubtful"] and is_name(value))


def _secret_places(arguments: Sequence[str]) -> Iterator[int]:
    """Yield the indices of arguments that are secrets, or that contain one after a `=`."""
    for place, argument in enumerate(arguments):
        option = arguments[place - 1] if place else ""
        is_value = option.startswith("-") and "=" not in option and not argument.startswith("--")
        if (is_value and _is_secret(option, argument) and not is_existing_path(argument)) or _assigned_name(argument):
            yield place


def _assigned_name(argument: str) -> str:
    """Return the part of an argument before its secret, such as `--api-key=`; empty if it has no secret."""
    key, sign, value = argument.partition("=")
    return key + sign if sign and _is_secret(key, value) else ""


def _key_below(key: str, name: str) -> str:
    """Return the key that decides whether a value is secret: that of the mapping that contains it, or its own."""
    own, above = _SECRET_KEY.search(name), _SECRET_KEY.search(key)
    return name if above is None or (above["doubtful"] and own is not None) else key


def _without_values(text: str) -> str:
    texts, folded = known()
    for value in texts:
        if value in text:
            text = text.replace(value, HIDDEN)
    for pattern in folded:
        text = pattern.sub(HIDDEN, text)
    return text


def _without_assigned(text: str) -> str:
    """Hide the values that follow words such as `password`."""
    kept, end = [], 0
    for start in _beginnings(text):
        if start < end:
            continue  # within what was hidden
        found = _assigned_at(text, start)
        if found is not None:
            kept += [text[end:start], found[1], HIDDEN]
            end = found.end()
    return "".join([*kept, text[end:]]) if kept else text


def _assigned_at(text: str, start: int) -> re.Match[str] | None:
    """Match the word at `start` and the secret after it; None without one. Group 1 is the text before the secret."""
    found = _HEADER.match(text, start) if text[start] in "aAbB" else None
    found = found or _ASSIGNED.match(text, start)
    if found and _DOUBTFUL.match(text, start) and _is_name_or_code(text[found.end(1) : found.end()]):
        found = None
    in_query = _IN_QUERY.match(text, start) if found or "=" in text[start : start + _WORD_LENGTH] else None
    return in_query if in_query and _is_in_query(text, start) else found


def _is_name_or_code(value: str) -> bool:
    """Return True for a name as texts and pages have it (`&lt;|endoftext|&gt;</td>`), and for an expression."""
    if len(value) > _LONGEST_NAME:
        return False
    plain = _END.sub("", unescape(value).replace("\\", ""))
    return is_name(plain.strip("\"'")) or _CODE.match(value) is not None


def _is_in_query(text: str, start: int) -> bool:
    """Return True if the word at `start` belongs to the key of a URL's query parameter."""
    earliest = max(0, start - _KEY_LENGTH)
    mark = max(text.rfind("?", earliest, start), text.rfind("&", earliest, start))
    return mark >= 0 and _KEY_PART.fullmatch(text, mark + 1, start) is not None


def _beginnings(text: str) -> list[int]:
    lower = text.lower()
    if len(lower) != len(text):  # a few letters of other scripts
        lower = "".join(letter.lower() if len(letter.lower()) == 1 else letter for letter in text)
    found: list[int] = []
    for word in _BEGINNINGS:
        place = lower.find(word)
        while place >= 0:
            found.append(place)
            place = lower.find(word, place + len(word))
    return sorted(found)
