"""The trials of a sweep as rows, and as a table for a spreadsheet."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.config.constraints import Violations, broken_by
from paceline.tracking.run_record import param_text

_NUMBER = re.compile(r"(?i)[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf(?:inity)?|nan)")
# Also behind what separates cells where a spreadsheet does not expect commas.
_FORMULA = re.compile(r"(^|[;\t])(?=[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20])")


@dataclass(frozen=True)
class TrialRow:
    """A trial, as the sweep's own run shows it."""

    id: str
    setting: Mapping[str, Any]
    """Dotted key to value, without the seed: trials of one setting are shown as one."""
    state: str
    """`finished`, `pruned`, `failed`, `oom`, `diverged`, `skipped`, `running` and so on."""
    reason: str = ""
    """Reason for its end."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    samples: int = 0
    """Training samples consumed."""
    samples_per_second: float = 0.0
    seconds: float = 0.0
    """Time on its workers, in seconds."""
    workers: int = 1
    """Processes that worked on it at the same time."""
    seed: str = ""
    """Tells trials of one setting apart; a setting that a search drew twice has the same one."""
    violations: Violations = field(default_factory=dict)
    """By constraint of the sweep, by how much the trial breaks it."""

    @property
    def broken(self) -> list[str]:
        """The constraints that it breaks."""
        return broken_by(self.violations)


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
