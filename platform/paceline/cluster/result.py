"""What a finished run gives back to Python."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault
from paceline.tracking.costs import Ledger
from paceline.tracking.redact import redact, redact_tree

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

JSON_FIELDS = (
    "run_id",
    "name",
    "status",
    "metrics",
    "steps",
    "samples_per_second",
    "peak_memory_bytes",
    "wall_seconds",
    "checkpoint",
    "weights_sha256",
    "mlflow_url",
    "mlflow_run_id",
    "review_url",
)
UI_HINT = " (after `paceline ui`, which may print another port)"
"""Stands behind the links of a store that only `paceline ui` serves."""


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run: how it ended, its metrics, and where everything is."""

    run_id: str
    name: str
    status: str
    """`finished`, or `interrupted` when it was stopped and can go on."""
    metrics: dict[str, float]
    """The newest value of each metric, such as `val/accuracy`."""
    steps: int
    """Optimizer steps done."""
    samples_per_second: float
    """Over all workers, warm-up and evaluation left out."""
    peak_memory_bytes: int
    """Of rank 0: allocated on the GPU, or resident on CPU."""
    wall_seconds: float
    """From the call to the result, this time."""
    checkpoint: str
    """Folder of the newest checkpoint, or its address in an object store."""
    weights_sha256: str
    """Over the final weights, see `engine.state.weights_sha256`."""
    config: ExperimentConfig
    folder: Path
    """Everything that the run has on disk."""
    mlflow_url: str | None = None
    mlflow_run_id: str | None = None
    needs_ui: bool = False
    """Whether the MLflow page is there only while `paceline ui` runs."""
    review_url: str | None = None
    """MLflow's page with the runs of its experiment side by side, see `tracking.views`."""
    cost: Ledger | None = None
    """What it took, all launches of the run together."""
    straggler: str = ""
    """The workers that the others had to wait for, one on each line; empty when there was none."""
    points: tuple[tuple[str, float, int], ...] = field(default=(), repr=False)
    """All logged values: (key, value, step)."""

    @cached_property
    def history(self) -> "pd.DataFrame":
        """One row per logged step, one column per metric; `NaN` where a metric was not logged."""
        import pandas as pd

        table = pd.DataFrame(self.points, columns=["metric", "value", "step"])
        wide = table.pivot_table(index="step", columns="metric", values="value", aggfunc="first")
        wide.columns.name = None
        return wide

    def load_model(self, checkpoint: str | Path | None = None, *, model: Any = None) -> "nn.Module":
        """The trained model, rebuilt from its config, on the CPU, in eval mode. Runs the code that the config names.

        Args:
            checkpoint: folder of the checkpoint, or of the export, whose weights it gets; by default `checkpoint`. One
                in an object store is copied into the cache.
            model: what `train` was given as `model`, where that was a Python object and this is another program; or a
                module, which gets the weights.

        Raises:
            EnvironmentFault: there is no such checkpoint.
            UnusableCode: the model has other weights (`weights-mismatch`), or was a Python object of another program
                and is not given (`needs-object`).
        """
        from paceline.engine.rebuilding import rebuild
        from paceline.storage.address import is_address

        if not (checkpoint or self.checkpoint):
            message = f"the run {self.name}/{self.run_id} has saved no checkpoint"
            raise EnvironmentFault(message, "no-checkpoint", run_id=self.run_id)
        place = checkpoint or self.checkpoint
        if is_address(place):
            from paceline.storage.copies import brought

            return rebuild(self.config, brought(str(place)), model)
        return rebuild(self.config, Path(place), model)

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values, as `paceline train --json` prints it."""
        fields = {key: getattr(self, key) for key in JSON_FIELDS}
        # JSON knows no NaN
        fields["metrics"] = {key: value if math.isfinite(value) else None for key, value in self.metrics.items()}
        told: dict[str, Any] = redact_tree({**fields, "cost": self.cost.to_json() if self.cost else None})
        return told

    def rows(self) -> list[tuple[str, str]]:
        """The result as a small table: label and value."""
        again = "; the same command goes on from there" if self.status == "interrupted" else ""
        rows = [("run", f"{self.name}/{self.run_id}"), ("status", f"{self.status} after {self.steps} steps{again}")]
        results = {key: value for key, value in sorted(self.metrics.items()) if key.startswith(("train/", "val/"))}
        rows += [
            *((key, f"{value:.4g}") for key, value in results.items()),
            *(("straggler", line) for line in self.straggler.splitlines()),
            ("samples/s", f"{self.samples_per_second:,.0f}"),
            ("peak memory", f"{self.peak_memory_bytes / 2**20:,.0f} MiB"),
            ("wall time", f"{self.wall_seconds:.1f} s"),
            *(self.cost.lines() if self.cost else []),
            ("checkpoint", self.checkpoint or "none"),
        ]
        hint = UI_HINT if self.needs_ui else ""
        links = {"MLflow": self.mlflow_url, "review": self.review_url}
        rows += [(label, f"{url}{hint}") for label, url in links.items() if url]
        return [(redact(label), redact(text)) for label, text in rows]

    def __repr__(self) -> str:
        width = max(len(label) for label, _ in self.rows())
        return "RunResult\n" + "\n".join(f"  {label:<{width}}  {value}" for label, value in self.rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(k)}</th><td>{_cell(v)}</td></tr>" for k, v in self.rows()
        )
        return f"<table>{cells}</table>"


def _cell(value: str) -> str:
    if not value.startswith("http"):
        return escape(value)
    link, _, hint = escape(value).partition(" ")
    return f'<a href="{link}" target="_blank">{link}</a> {hint}'
