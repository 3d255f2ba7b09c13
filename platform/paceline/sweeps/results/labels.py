"""Short words for a sweep's settings, values and states, for the terminal, notebooks and pictures."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from paceline.redaction import redact
from paceline.reports.text import number_text

LONGEST_VALUE = 24
"""Characters of a value that are shown."""
GAP = "  "
LEAST_WIDTH = 12
"""Characters that the column of a table keeps which gives way."""
LONGEST_REASON = 60
"""Characters of a reason in the text of a trial."""
_STATE_WORDS = {"oom": "out of memory", "predicted_oom": "predicted out of memory"}
_SAYING_LITTLE = ("name", "path")
"""Last parts of keys that do not say what they are about."""


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The shortest ending that no two keys share, by dotted key: `global_batch_size` of `data.global_batch_size`."""
    parts = {key: key.split(".") for key in keys}
    return {key: _shortest(own, [other for k, other in parts.items() if k != key]) for key, own in parts.items()}


def _shortest(own: list[str], others: list[list[str]]) -> str:
    for length in range(2 if own[-1] in _SAYING_LITTLE else 1, len(own) + 1):
        if not any(other[-length:] == own[-length:] for other in others):
            return ".".join(own[-length:])
    return ".".join(own)


def value_text(value: Any) -> str:
    """A value of an axis in few characters: `256`, `0.001`, `linear`, `true`, `[1, 2]`."""
    if isinstance(value, float):
        text = f"{value:.4g}"
    elif isinstance(value, str):
        text = value if value.isprintable() else ascii(value)
    else:
        text = json.dumps(value, default=repr)
    return text if len(text) <= LONGEST_VALUE else shortened(redact(text), LONGEST_VALUE)  # half a secret is not known


def is_number(value: Any) -> bool:
    """Whether a value of an axis is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def setting_text(params: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """All params in one line: `global_batch_size=256, lr_scaling=linear`."""
    return ", ".join(f"{names.get(key, key)}={value_text(value)}" for key, value in params.items())


def values_text(params: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The values alone, in the order of the keys: `256, linear`; a dash for one that is not there."""
    return ", ".join(value_text(params[key]) if key in params else "-" for key in keys)


def state_text(state: str) -> str:
    """A state in words: `oom` becomes `out of memory`."""
    return _STATE_WORDS.get(state, state)


def outcome_text(state: str, broken: Sequence[str]) -> str:
    """A state in words, of a finished trial with the constraints that it breaks: `infeasible: val/loss < 0.5`."""
    return f"infeasible: {', '.join(broken)}" if broken and state == "finished" else state_text(state)


def spread_text(mean: float, std: float, n: int) -> str:
    """A mean, with its deviation where several trials were finished: `0.9731 ± 0.0012`."""
    shown = std if std > 1e-12 * abs(mean) else 0.0  # equal values differ from their own mean by rounding
    return number_text(mean) + (f" ± {shown:.2g}" if n > 1 else "")


def table_width(table: Sequence[Sequence[str]]) -> int:
    """Characters of a line that holds all cells in full."""
    return sum(max(map(len, column)) + len(GAP) for column in zip(*table, strict=True)) - len(GAP)


def table_lines(table: Sequence[Sequence[str]], width: int, flexible: int) -> list[str]:
    """Rows of cells as aligned lines of at most `width` characters; it is the flexible column that gives way."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    others = sum(widths) - widths[flexible] + len(GAP) * (len(widths) - 1)
    widths[flexible] = min(widths[flexible], max(width - others, LEAST_WIDTH))
    lines = [
        GAP.join(f"{shortened(cell, size):<{size}}" for cell, size in zip(row, widths, strict=True)) for row in table
    ]
    return [shortened(line.rstrip(), width) for line in lines]


def shortened(text: str, width: int) -> str:
    """The text, or as much of its beginning as fits into `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def html_table(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Rows of cells under a heading, for a notebook."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<table data-role='ranking'><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def html_cell(value: str) -> str:
    """A text for a notebook, a link where it is one: `http://here (after a hint)`."""
    if not value.startswith(("http://", "https://")):
        return escape(value)
    link, _, hint = escape(value).partition(" ")
    return f'<a href="{link}" target="_blank">{link}</a> {hint}'


def clock_text(seconds: float) -> str:
    """A time in seconds as on a clock: `0:07`, `1:02:33`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
