"""The note on a run's page in MLflow, with its result and the way to reproduce it, and the picture of its losses."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from paceline.direction import default_mode
from paceline.redaction import redact
from paceline.reports.text import number_text
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.markdown import code, escaped
from paceline.tracking.provenance import config_not_in_commit
from paceline.tracking.thinned_curves import Place, ThinnedCurve

_UNITS = {
    metrics.SAMPLES_PER_SECOND: "samples/s, since the point before",
    metrics.SAMPLES_PER_SECOND_OVERALL: "samples/s, without the warm-up",
    metrics.STEP_SECONDS: "s",
    metrics.ENERGY_JOULES: "J",
}
_RESULTS = ("train/", "val/")
"""Prefixes of the keys that come first in the table."""
_RANKED = (*_RESULTS, metrics.SAMPLES_PER_SECOND)
"""Prefixes of the keys of which one value is better than another; of the others only the last one is shown."""
_OF_ONE_LAUNCH = ("--resume", "--extend")
"""Flags with which a command takes up what was there, which it does not find again once the run is finished."""
MAX_WARNINGS, MAX_WARNING_LENGTH = 10, 300
"""Warnings in the note, and characters of each: MLflow shows no more than 8,000 characters in all."""
_LEFT_OUT = ("cost/", "axis/", "system/", "rank_seconds/", metrics.VALIDATION_EPOCH)
"""Prefixes of the keys that have a table of their own, are a setting, or are about machines."""


def summary(
    name: str,
    curves: Mapping[str, ThinnedCurve],
    status: str,
    reason: str | None,
    tags: Mapping[str, str],
    ledger: Ledger | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """Return Markdown with the outcome, a table of final and best metrics, the cost, the newest warnings, and the
    command to rerun it."""
    parts = [f"## {escaped(name)}", _outcome(curves, status)]
    if reason:
        parts.append(code(reason))
    if curves:
        parts.append(_table(curves, "best of the extension" if metrics.EXTENDED_FROM in tags else "best"))
    if ledger is not None:
        parts.append(ledger.markdown())
    if warnings:
        parts.append(_warnings_part(warnings))
    parts.append(_reproduction(tags))
    return "\n\n".join(part for part in parts if part)


def loss_curve(curves: Mapping[str, ThinnedCurve], path: Path, title: str = "") -> None:
    """Draw training and validation loss over the optimizer steps into a PNG file.

    Raises:
        ValueError: there is no finite loss in the curves.
    """
    losses = [(key, curves[key].places) for key in (metrics.TRAIN_LOSS, metrics.VAL_LOSS) if key in curves]
    if not any(places for _, places in losses):
        raise ValueError("there is no finite loss to draw")
    from paceline.reports.line_chart import ChartLine, line_chart

    path.write_bytes(line_chart(title or "loss", [ChartLine(key, places) for key, places in losses]).png())


def _outcome(curves: Mapping[str, ThinnedCurve], status: str) -> str:
    steps = max((curve.newest[0] for curve in curves.values()), default=0)
    rate = curves.get(metrics.SAMPLES_PER_SECOND_OVERALL) or curves.get(metrics.SAMPLES_PER_SECOND)
    speed = f", {rate.newest[1]:,.0f} samples/s" if rate else ""
    return f"**{status.lower()}** after {steps:,.0f} optimizer steps{speed}."


def _table(curves: Mapping[str, ThinnedCurve], best_title: str) -> str:
    rows = [f"| metric | last | {best_title} | at step |", "|---|---:|---:|---:|"]
    shown = [key for key in curves if not key.startswith(_LEFT_OUT)]
    for key in sorted(shown, key=lambda each: (not each.startswith(_RESULTS), each)):
        best = _best(key, curves[key]) if key.startswith(_RANKED) else None
        better = f"{number_text(best[1])} | {best[0]:.0f}" if best else " | "
        rows.append(f"| {escaped(key)} | {_with_unit(key, curves[key].newest[1])} | {better} |")
    return "\n".join(rows)


def _with_unit(key: str, value: float) -> str:
    if key.endswith("_bytes"):
        return f"{value / 2**20:,.0f} MiB"
    return f"{number_text(value)} {_UNITS[key]}" if key in _UNITS else number_text(value)


def _warnings_part(warnings: Sequence[str]) -> str:
    shown = [redact(text) for text in warnings[-MAX_WARNINGS:]]
    lines = [f"- {escaped(shorten(text, MAX_WARNING_LENGTH, placeholder=' ...'))}" for text in shown]
    earlier = len(warnings) - len(shown)
    return "\n".join(["Warnings:", "", *([f"- {earlier} earlier ones"] if earlier else []), *lines])


def _reproduction(tags: Mapping[str, str]) -> str:
    command = tags.get(metrics.COMMAND)
    if not command:
        return ""
    commit = tags.get(metrics.GIT_COMMIT)
    lines = [f"git checkout {commit}"] if commit else []
    changed = " (files had been changed since that commit)" if tags.get(metrics.GIT_DIRTY) == "true" else ""
    block = code("\n".join([*lines, _from_the_start(command)]))
    missing = config_not_in_commit(tags)
    hint = f"That commit does not have {escaped(missing)} as it was: take the artifact config.yaml in its place."
    return f"To get it again{changed}:\n\n{block}" + (f"\n\n{hint}" if missing else "")


def _from_the_start(command: str) -> str:
    """Return a command that trains from scratch what a launch with this one has ended with."""
    try:
        words = shlex.split(command)
    except ValueError:  # it was cut within a quoted word
        return command
    return shlex.join([word for word in words if word not in _OF_ONE_LAUNCH])


def _best(key: str, curve: ThinnedCurve) -> Place | None:
    return curve.lowest if default_mode(key) == "min" else curve.highest
