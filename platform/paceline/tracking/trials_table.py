"""All trials of a sweep as a table for a spreadsheet."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

from paceline.tracking.run_record import param_text
from paceline.tracking.sweep_note import TrialRow

_NUMBER = re.compile(r"(?i)[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf(?:inity)?|nan)")
# Also behind what separates cells where a spreadsheet does not expect commas.
_FORMULA = re.compile(r"(^|[;\t])(?=[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])")


def trials_csv(rows: Sequence[TrialRow]) -> str:
    """All trials as a table for a spreadsheet: a column for each key of the settings and for each metric.

    A sweep with constraints has two more: if a finished trial is feasible, and which constraints a trial breaks.
    Texts that a spreadsheet would compute as formulas begin with a `'`, see OWASP's page on CSV injection.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row.setting))
    measured = sorted({key for row in rows for key in row.metrics})
    own = ["samples", "samples_per_second", "seconds", "workers"]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    constrained = ["feasible", "broken"] if any(row.violations for row in rows) else []
    table.writerow(_cells(["id", "state", "reason", *constrained, *keys, *measured, *own]))
    for row in rows:
        settings = [param_text(row.setting[key]) if key in row.setting else "" for key in keys]
        values = [row.metrics.get(key, "") for key in measured]
        feasible = param_text(not row.broken) if row.state == "finished" else ""
        outcome = [feasible, "; ".join(row.broken)] if constrained else []
        counts = (getattr(row, key) for key in own)
        table.writerow(_cells([row.id, row.state, row.reason, *outcome, *settings, *values, *counts]))
    return text.getvalue()


def _cells(values: Iterable[object]) -> list[object]:
    return [_without_formula(value) if isinstance(value, str) else value for value in values]


def _without_formula(text: str) -> str:
    if _NUMBER.fullmatch(text):
        return text
    safe = _FORMULA.sub(r"\1'", text)
    return safe.replace("\r\n", "\n").replace("\r", "\n")  # the writer would not quote it, and the row would end there
