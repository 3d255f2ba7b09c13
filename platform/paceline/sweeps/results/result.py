"""`SweepResult`: a finished sweep in Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.listener import UI_HINT
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault
from paceline.redaction import redact, redact_tree
from paceline.reports.text import counted
from paceline.storage.address import is_address
from paceline.sweeps.planning.planned_trials import trial_config, trial_count
from paceline.sweeps.results import ranking
from paceline.sweeps.results.ranking import Objective, SettingSummary
from paceline.sweeps.results.result_text import ResultText, counts_text
from paceline.sweeps.states import ENDED, TROUBLE
from paceline.sweeps.trial import Trial, axis_keys, planned_order
from paceline.tracking.costs import Ledger

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from paceline.reports.figure import Picture

_STATUS_WORDS = {
    "running": "running; this is how it stood when it was read",
    "interrupted": "interrupted; the same command with --resume continues it",
    "stopped": "stopped, as sweep.stop says",
}


@dataclass(frozen=True, repr=False)
class SweepResult:
    """One sweep: its trials, the best of them, and where everything is."""

    sweep_id: str
    name: str
    status: str
    """`finished`; `stopped` when a condition of `sweep.stop` ended it; `interrupted` when it can be resumed; `running`
    where `load_sweep` has met it so."""
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
    """From the call to the result, this time; after `load_sweep`, how long its last launch was recorded."""
    mlflow_url: str | None = None
    parent_run_id: str | None = None
    """MLflow's id of the run whose children are the trials."""
    needs_ui: bool = False
    """True if the MLflow page is there only while `paceline ui` runs."""
    review_url: str | None = None
    """MLflow's page with the trials side by side, see `tracking.views`."""
    cost: Ledger | None = None
    """Cost of all launches together, with failed and pruned trials and the time between them."""

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
        without any come last. A deviation is `NaN` for fewer than two trials; where no setting has two, there are none.
        """
        import pandas as pd

        names = list(dict.fromkeys([*(metric for metric, _ in self.objectives), *ranking.metric_names(self.trials)]))
        best_first = ranking.ranked(self.trials, self.objectives)
        order = {summary.trials[0].id: place for place, summary in enumerate(best_first)}
        summaries = ranking.aggregate(self._in_order, names)
        summaries.sort(key=lambda summary: order.get(summary.trials[0].id, len(order)))
        of_each = ("mean", "std") if any(len(summary.finished) > 1 for summary in summaries) else ("mean",)
        figures = [f"{name} {figure}" for name in names for figure in of_each]
        feasible = ["feasible"] if self.has_constraints else []
        columns = [*axis_keys(self.trials), "trials", "n", *feasible, *figures]
        return pd.DataFrame(_in_columns([_setting_row(summary) for summary in summaries], columns))

    @cached_property
    def best(self) -> Trial | None:
        """The best finished trial by the first objective that keeps all constraints, see `ranking.best_trial`; None
        when there is none."""
        return ranking.best_trial(self.trials, self.objectives)

    @property
    def summary(self) -> str:
        """The best setting in one line, with its values; where there is none, the reason."""
        return redact(self._text.best or self.why_no_best)

    @property
    def has_constraints(self) -> bool:
        """True if the sweep has constraints, and a trial has ended that may break them."""
        return any(trial.violations for trial in self.trials)

    @property
    def why_no_best(self) -> str:
        """The reason why there is no best trial."""
        if self._text.ranked:
            return f"all {counted(len(self._text.ranked), 'finished setting')} break a constraint of sweep.constraints"
        return f"no trial finished with {self.objectives[0][0]}"

    @property
    def best_config(self) -> ExperimentConfig | None:
        """The config that trains the best trial again; None when there is none. After PBT it has the last values."""
        return trial_config(self.config, self.best.params) if self.best else None

    def load_model(self, *, model: Any = None) -> "nn.Module":
        """The model of the best trial with its final weights, on the CPU, in eval mode. Runs the code that the config
        names.

        Args:
            model: see `RunResult.load_model`.

        Raises:
            EnvironmentFault: there is no best trial, or its checkpoint is gone.
            UnusableCode: see `RunResult.load_model`.
        """
        from paceline.engine.manifest import numbered
        from paceline.engine.rebuilding import rebuild

        if self.best is None or self.best_config is None:
            message = f"the sweep {self.name}/{self.sweep_id} has no best trial: {self.why_no_best}"
            raise EnvironmentFault(message, "no-finished-trial")
        if is_address(self.best.checkpoint):
            from paceline.storage.read_copies import brought

            return rebuild(self.best_config, brought(self.best.checkpoint), model)
        checkpoints = self.folder / "trials" / self.best.id / "checkpoints"  # where it is now, if it was moved
        newest = next((path for _, path in numbered(checkpoints)), checkpoints)
        return rebuild(self.best_config, newest, model)

    @cached_property
    def pareto(self) -> list[Trial]:
        """The trials that no other one betters in one objective without being worse in another; by `ranking.pareto`."""
        return ranking.pareto(self.trials, self.objectives)

    @property
    def failed(self) -> list[Trial]:
        """The trials that failed, ran out of memory or diverged, each with its `reason`."""
        return [trial for trial in self._in_order if trial.state in TROUBLE]

    def plot_pareto(self, x: str | Objective | None = None, y: str | Objective | None = None) -> "Picture":
        """Two metrics of every setting and their Pareto front, see `charts.pareto`.

        Raises:
            ValueError: a metric is missing or unknown, or no finished trial has both.
        """
        from paceline.sweeps.results import charts

        return charts.pareto(self.trials, self.objectives, x, y)

    def plot_heatmap(self, x: str, y: str, metric: str | Objective | None = None) -> "Picture":
        """A metric over two axes, the first objective by default, see `heatmap.heatmap`.

        Raises:
            ValueError: there is no such axis or metric, or no finished trial has the metric.
        """
        from paceline.sweeps.results import heatmap

        return heatmap.heatmap(self.trials, self.objectives, x, y, metric)

    def plot_parallel(self, metric: str | Objective | None = None) -> "Picture":
        """Draw each setting as a line across its values, coloured by a metric, the first objective by default.

        Raises:
            ValueError: no finished trial has the metric, or no axis has two values.
        """
        from paceline.sweeps.results.parallel_coordinates import parallel_coordinates

        objective = self.objectives[0] if metric is None else metric
        chosen = ranking.objective_of(objective, self.objectives) if isinstance(objective, str) else objective
        return parallel_coordinates(self.trials, chosen)

    def plot_curves(self) -> "Picture":
        """Draw losses and metrics of the best settings over the training samples seen, seeds as bands.

        Raises:
            ValueError: no trial has logged a metric of the sweep.
        """
        from paceline.sweeps.results.pictures import curves_of, histories_of

        histories = histories_of(self.folder, self.trials, self.objectives)
        picture = curves_of(self.config, self.trials, self.objectives, histories)
        if picture is None:
            raise ValueError("curves cannot be drawn: no trial has logged a metric of the sweep")
        return picture

    def plot_importance(self) -> "Picture":
        """Draw the share of the first objective's variation that each axis accounts for (Optuna's fANOVA).

        Raises:
            ValueError: there are fewer than two axes or six finished settings, or all settings have the same result.
        """
        from paceline.sweeps.results.pictures import importance_of

        picture = importance_of(self.config, self.trials, self.objectives)
        if picture is None:
            raise ValueError("importance cannot be drawn: it needs two axes and six finished settings that differ")
        return picture

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values, as `paceline sweep --json` prints it."""
        told: dict[str, Any] = {
            "sweep_id": self.sweep_id,
            "name": self.name,
            "status": self.status,
            "trials": [trial.to_json() for trial in self._in_order],
            "best": self.best.to_json() if self.best else None,
            "best_config_path": self.best_config_path,
            "pareto": [trial.to_json() for trial in self.pareto],
            "mlflow_url": self.mlflow_url,
            "review_url": self.review_url,
            "parent_run_id": self.parent_run_id,
            "wall_seconds": self.wall_seconds,
            "cost": self.cost.to_json() if self.cost else None,
        }
        hidden: dict[str, Any] = redact_tree(told)
        return hidden

    def rows(self) -> list[tuple[str, str]]:
        """The result as a small table, label and value: summary, ranking, trials to look at, and edges of the space."""
        text = self._text
        rows = [*self._summary, *text.ranking_rows(), *text.unfinished_rows(), *text.equal_rows(), *text.edge_rows()]
        return [(label, redact(text)) for label, text in rows]

    @property
    def _summary(self) -> list[tuple[str, str]]:
        rows = [
            ("sweep", f"{self.name}/{self.sweep_id}"),
            ("status", _STATUS_WORDS.get(self.status, self.status)),
            ("trials", self._counts),
            ("best", self._text.best or f"none: {self.why_no_best}"),
            ("best config", self.best_config_path or "none"),
            *([("constraints", self._text.constraints)] if self.has_constraints else []),
            *(self._text.front_rows() if len(self.objectives) > 1 else []),
            ("wall time", f"{self.wall_seconds:.1f} s"),
            *(self.cost.lines() if self.cost else []),
        ]
        hint = UI_HINT if self.needs_ui else ""
        links = {"MLflow": self.mlflow_url, "review": self.review_url}
        return rows + [(label, f"{url}{hint}") for label, url in links.items() if url]

    @property
    def _counts(self) -> str:
        known, ended = len(self.trials), sum(trial.state in ENDED for trial in self.trials)
        planned = max(known, trial_count(self.config.sweep) if self.config.sweep else 0)
        number = f"{ended} of {planned}" if ended < planned else str(planned)
        counts = [counts_text(self.trials), f"{planned - known} not begun" if planned > known else ""]
        text = ", ".join(filter(None, counts))
        return f"{number} trial{'' if planned == 1 else 's'}{': ' if text else ''}{text}"

    def __repr__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "SweepResult\n" + "\n".join(f"  {label:<{width}}  {value}".rstrip() for label, value in self.rows())

    def _repr_html_(self) -> str:
        return self._text.html(self._summary)

    @cached_property
    def _text(self) -> ResultText:
        return ResultText(self.trials, self.objectives)

    @cached_property
    def _in_order(self) -> list[Trial]:
        return sorted(self.trials, key=planned_order)

    @property
    def _columns(self) -> list[str]:
        seed = ["seed"] if any("seed" in trial.params for trial in self.trials) else []
        metrics = [name for name in ranking.metric_names(self.trials) if name not in ranking.MEASURES]
        ends = ["samples", "steps", "seconds", "samples_per_second", "peak_memory_bytes", "attempts", "weights_sha256"]
        constraints = ["feasible", "broken"] if self.has_constraints else []
        return ["id", *axis_keys(self.trials), *seed, "state", "reason", *constraints, *metrics, *ends]


def _trial_row(trial: Trial) -> dict[str, Any]:
    measures = {name: ranking.value_of(trial, name) for name in ranking.MEASURES}
    own = {key: getattr(trial, key) for key in ("id", "state", "reason", "attempts", "weights_sha256")}
    outcome = {"feasible": trial.is_feasible, "broken": ", ".join(trial.broken)}
    return {**trial.metrics, **trial.params, **measures, **own, **outcome}


def _setting_row(summary: SettingSummary) -> dict[str, Any]:
    means = {f"{name} mean": spread.mean for name, spread in summary.spreads.items()}
    deviations = {f"{name} std": spread.std for name, spread in summary.spreads.items()}
    counts = {"trials": len(summary.trials), "n": len(summary.finished)}
    is_feasible = not summary.broken if summary.finished else None
    return {**summary.setting, **counts, "feasible": is_feasible, **means, **deviations}


def _in_columns(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> dict[str, list[Any]]:
    return {column: [row.get(column) for row in rows] for column in columns}
