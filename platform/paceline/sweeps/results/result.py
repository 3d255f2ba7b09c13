"""What a sweep gives back to Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.experiment import ExperimentConfig
from paceline.sweeps.planning.points import trial_config
from paceline.sweeps.results import labels, ranking
from paceline.sweeps.results.ranking import Objective, SettingSummary
from paceline.sweeps.trials import TROUBLE, Trial

if TYPE_CHECKING:
    import pandas as pd

    from paceline.sweeps.results.plots import Picture

SHOWN_SETTINGS = 10
"""Rows of the table of the best settings, and of the Pareto front, on a terminal and in a notebook."""
_STATUS_WORDS = {
    "interrupted": "interrupted; the same command with --resume goes on from there",
    "stopped": "stopped, as sweep.stop says",
}


@dataclass(frozen=True, repr=False)
class SweepResult:
    """One sweep: its trials, the best of them, and where everything is."""

    sweep_id: str
    name: str
    status: str
    """`finished`; `stopped` when a condition of `sweep.stop` ended it; `interrupted` when it can go on."""
    trials: tuple[Trial, ...]
    objectives: tuple[Objective, ...]
    """Metrics and which way they are better, the most important one first."""
    config: ExperimentConfig
    """The sweep's own config, with its `sweep` section."""
    folder: Path
    """Everything that the sweep has on disk."""
    best_config_path: str
    """A config file that trains the best trial again; empty without a best trial."""
    wall_seconds: float
    """From the call to the result, this time."""
    mlflow_url: str | None = None
    parent_run_id: str | None = None
    """MLflow's id of the run whose children are the trials."""
    needs_ui: bool = False
    """Whether the MLflow page is there only while `paceline ui` runs."""

    @cached_property
    def df(self) -> "pd.DataFrame":
        """One row for each trial, in the order of their ids; one column for each axis, metric and figure.

        `seed` is a column when seeds were repeated, and a metric is `NaN` where a trial has none. `seconds` is the time
        on a worker group, and `peak_memory_bytes` and `samples_per_second` are those of the whole trial.
        """
        import pandas as pd

        return pd.DataFrame(_in_columns([_trial_row(trial) for trial in self._in_order], self._columns))

    @cached_property
    def table(self) -> "pd.DataFrame":
        """One row for each setting of the axes, best first, with the mean and sample deviation of each metric.

        `trials` counts those of the setting and `n` those of them that finished, which alone enter the means. Settings
        without any come last. A deviation is `NaN` for fewer than two trials.
        """
        import pandas as pd

        names = list(dict.fromkeys([*(metric for metric, _ in self.objectives), *ranking.metric_names(self.trials)]))
        best_first = ranking.ranked(self.trials, self.objectives)
        order = {summary.trials[0].id: place for place, summary in enumerate(best_first)}
        summaries = ranking.aggregate(self._in_order, names)
        summaries.sort(key=lambda summary: order.get(summary.trials[0].id, len(order)))
        figures = [column for name in names for column in (f"{name} mean", f"{name} std")]
        columns = [*labels.axis_keys(self.trials), "trials", "n", *figures]
        return pd.DataFrame(_in_columns([_setting_row(summary) for summary in summaries], columns))

    @cached_property
    def best(self) -> Trial | None:
        """The best finished trial by the first objective, see `ranking.best_trial`; None when there is none."""
        return ranking.best_trial(self.trials, self.objectives)

    @property
    def best_config(self) -> ExperimentConfig | None:
        """The config that trains the best trial again; None when there is none. After PBT it has the last values."""
        return trial_config(self.config, self.best.overrides) if self.best else None

    @cached_property
    def pareto(self) -> list[Trial]:
        """The trials that no other one betters in one objective without being worse in another; by `ranking.pareto`."""
        return ranking.pareto(self.trials, self.objectives)

    @property
    def failed(self) -> list[Trial]:
        """The trials that failed, ran out of memory or diverged, each with its `reason`."""
        return [trial for trial in self._in_order if trial.state in TROUBLE]

    def plot_pareto(self, x: str | Objective | None = None, y: str | Objective | None = None) -> "Picture":
        """Two metrics of every setting and their Pareto front, see `plots.pareto`.

        Raises:
            ValueError: a metric is missing or unknown, or no finished trial has both.
        """
        from paceline.sweeps.results import plots

        return plots.pareto(self.trials, self.objectives, x, y)

    def plot_heatmap(self, x: str, y: str, metric: str | Objective | None = None) -> "Picture":
        """A metric over two axes, the first objective by default, see `plots.heatmap`.

        Raises:
            ValueError: there is no such axis or metric, or no finished trial has the metric.
        """
        from paceline.sweeps.results import plots

        return plots.heatmap(self.trials, self.objectives, x, y, metric)

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values, as `paceline sweep --json` prints it."""
        return {
            "sweep_id": self.sweep_id,
            "name": self.name,
            "status": self.status,
            "trials": [trial.to_json() for trial in self._in_order],
            "best": self.best.to_json() if self.best else None,
            "best_config_path": self.best_config_path,
            "pareto": [trial.to_json() for trial in self.pareto],
            "mlflow_url": self.mlflow_url,
            "parent_run_id": self.parent_run_id,
            "wall_seconds": self.wall_seconds,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The result as a small table: label and value."""
        counts = labels.counts_text(self.trials)
        rows = [
            ("sweep", f"{self.name}/{self.sweep_id}"),
            ("status", _STATUS_WORDS.get(self.status, self.status)),
            ("trials", f"{len(self.trials)} trials{': ' if counts else ''}{counts}"),
            ("best", ranking.best_text(self.trials, self.objectives) or "none: no trial finished with its metric"),
            ("best config", self.best_config_path or "none"),
            *(self._front_rows() if len(self.objectives) > 1 else []),
            ("wall time", f"{self.wall_seconds:.1f} s"),
        ]
        hint = " (after `paceline ui`)" if self.needs_ui else ""
        return rows + ([("MLflow", f"{self.mlflow_url}{hint}")] if self.mlflow_url else [])

    def _front_rows(self) -> list[tuple[str, str]]:
        texts = [
            ranking.summary_text(summary, self.objectives, self._names) for summary in self._front[:SHOWN_SETTINGS]
        ]
        more = len(self._front) - len(texts)
        texts += [f"and {more} more"] if more else []
        return [("Pareto front" if number == 0 else "", text) for number, text in enumerate(texts or ["none"])]

    def __repr__(self) -> str:
        table = self._best_settings()
        widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
        lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in table]
        width = max(len(label) for label, _ in self.rows())
        parts = [f"{label:<{width}}  {value}" for label, value in self.rows()] + (
            ["", *lines] if len(table) > 1 else []
        )
        return "SweepResult\n" + "\n".join(f"  {line}".rstrip() for line in parts)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(label)}</th><td style='text-align:left'>{_cell(value)}</td></tr>"
            for label, value in self.rows()
        )
        heading, *body = self._best_settings()
        return f"<table>{rows}</table>" + (_html_table(heading, body) if body else "")

    def _best_settings(self) -> list[list[str]]:
        """The best settings as cells of text, a row of headings first."""
        keys, best_first = labels.axis_keys(self.trials), ranking.ranked(self.trials, self.objectives)
        heading = ["trial", *(self._names[key] for key in keys), *(metric for metric, _ in self.objectives), "n"]
        return [heading, *(self._cells(summary, keys) for summary in best_first[:SHOWN_SETTINGS])]

    def _cells(self, summary: SettingSummary, keys: Sequence[str]) -> list[str]:
        values = [labels.value_text(summary.setting[key]) if key in summary.setting else "" for key in keys]
        spreads = [summary.spreads[metric] for metric, _ in self.objectives]
        texts = [labels.spread_text(spread.mean, spread.std, spread.n) for spread in spreads]
        finished = f"{spreads[0].n} of {len(summary.trials)}" if len(summary.trials) > 1 else str(spreads[0].n)
        return [ranking.best_seed(summary, self.objectives).id, *values, *texts, finished]

    @cached_property
    def _in_order(self) -> list[Trial]:
        return sorted(self.trials, key=ranking.place)

    @cached_property
    def _names(self) -> dict[str, str]:
        return labels.short_names(labels.axis_keys(self.trials))

    @cached_property
    def _front(self) -> list[SettingSummary]:
        return ranking.front(self.trials, self.objectives)

    @property
    def _columns(self) -> list[str]:
        seed = ["seed"] if any("seed" in trial.overrides for trial in self.trials) else []
        metrics = [name for name in ranking.metric_names(self.trials) if name not in ranking.MEASURES]
        ends = ["samples", "steps", "seconds", "samples_per_second", "peak_memory_bytes", "attempts", "weights_sha256"]
        return ["id", *labels.axis_keys(self.trials), *seed, "state", "reason", *metrics, *ends]


def _trial_row(trial: Trial) -> dict[str, Any]:
    measures = {name: ranking.value_of(trial, name) for name in ranking.MEASURES}
    own = {key: getattr(trial, key) for key in ("id", "state", "reason", "attempts", "weights_sha256")}
    return {**trial.metrics, **trial.overrides, **measures, **own}


def _setting_row(summary: SettingSummary) -> dict[str, Any]:
    means = {f"{name} mean": spread.mean for name, spread in summary.spreads.items()}
    deviations = {f"{name} std": spread.std for name, spread in summary.spreads.items()}
    counts = {"trials": len(summary.trials), "n": len(summary.finished)}
    return {**summary.setting, **counts, **means, **deviations}


def _in_columns(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> dict[str, list[Any]]:
    return {column: [row.get(column) for row in rows] for column in columns}


def _html_table(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        return escape(value)
    link, _, hint = escape(value).partition(" ")
    return f'<a href="{link}" target="_blank">{link}</a> {hint}'
