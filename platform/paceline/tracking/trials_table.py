"""All trials of a sweep as a table for a spreadsheet."""

import csv
import io
from collections.abc import Sequence

from paceline.tracking.run_record import param_text
from paceline.tracking.sweep_note import TrialRow


def trials_csv(rows: Sequence[TrialRow]) -> str:
    """All trials as a table for a spreadsheet: a column for each key of the settings and for each metric."""
    keys = list(dict.fromkeys(key for row in rows for key in row.setting))
    measured = sorted({key for row in rows for key in row.metrics})
    own = ["samples", "samples_per_second", "seconds", "workers"]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["id", "state", "reason", *keys, *measured, *own])
    for row in rows:
        settings = [param_text(row.setting[key]) if key in row.setting else "" for key in keys]
        values = [row.metrics.get(key, "") for key in measured]
        table.writerow([row.id, row.state, row.reason, *settings, *values, *(getattr(row, key) for key in own)])
    return text.getvalue()
