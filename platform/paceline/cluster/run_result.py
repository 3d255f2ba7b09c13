"""`RunResult`: a finished run in Python."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cluster.kept_checkpoints import BestCheckpoint, best_checkpoint
from paceline.cluster.listener import UI_HINT
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault
from paceline.redaction import redact, redact_tree
from paceline.tracking.costs import Ledger

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn

    from paceline.cluster.evaluation import EvaluationOptions, TrainedRun
    from paceline.cluster.listener import Listener
    from paceline.config.loading import Overrides

JSON_FIELDS = (
    "run_id",
    "name",
    "status",
    "stopped_early",
    "warnings",
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


@dataclass(frozen=True, repr=False)
class RunResult:
    """One run: how it ended, its metrics, and where everything is."""

    run_id: str
    name: str
    status: str
    """`finished`, or `interrupted` when it was stopped and can be resumed."""
    metrics: dict[str, float]
    """The newest value of each metric, such as `val/accuracy`."""
    steps: int
    """Optimizer steps done."""
    samples_per_second: float
    """Samples per second over all workers, without warm-up and evaluation."""
    peak_memory_bytes: int
    """Peak memory of rank 0 in bytes: allocated on the GPU, or resident on CPU."""
    wall_seconds: float
    """Seconds from the call to the result, of this launch."""
    checkpoint: str
    """Folder of the newest checkpoint, or its address in an object store."""
    weights_sha256: str
    """SHA-256 of the final weights, see `engine.state.weights_sha256`."""
    config: ExperimentConfig
    folder: Path
    """Folder with everything that the run has on disk."""
    mlflow_url: str | None = None
    mlflow_run_id: str | None = None
    needs_ui: bool = False
    """True if the MLflow page is there only while `paceline ui` runs."""
    review_url: str | None = None
    """MLflow's page with the runs of its experiment side by side, see `tracking.views`."""
    cost: Ledger | None = None
    """Cost of all launches of the run together; None if it is not counted."""
    stopped_early: str | None = None
    """Reason why a callback finished the run before its end; None if none did."""
    warnings: tuple[str, ...] = ()
    """Warnings of all launches of the run, each with its code at the end, as `paceline explain CODE` takes it."""
    straggler: str = ""
    """Workers that the others had to wait for, one on each line; empty without any."""
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

    @cached_property
    def best(self) -> BestCheckpoint | None:
        """The best kept checkpoint: `step`, `metric`, `value` and `checkpoint`; None without `checkpoint.monitor`."""
        return best_checkpoint(self.config, self.points, self.folder / "checkpoints", self.checkpoint)

    def load_model(self, checkpoint: str | Path | None = None, *, model: Any = None) -> "nn.Module":
        """Rebuild the trained model from its config, on the CPU, in eval mode. Runs the code that the config names.

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
            from paceline.storage.read_copies import brought

            return rebuild(self.config, brought(str(place)), model)
        return rebuild(self.config, Path(place), model)

    def evaluate(
        self,
        sets: str | Sequence[str] = "validation",
        *,
        checkpoint: str | Path = "last",
        overrides: "Overrides | None" = None,
        model: Any = None,
        data: Any = None,
        task: Any = None,
        optimizer: Any = None,
        metrics: Mapping[str, Any] | None = None,
        callbacks: Sequence[Any] | None = None,
        address: str | None = None,
        wait_seconds: float = 0.0,
        listener: "Listener | None" = None,
    ) -> dict[str, float]:
        """Compute the metrics of a checkpoint as training does: on the validation sets, they equal the run's own.

        Runs the code that the config names, in this process with `scaling.num_workers: 0`, else on Ray. Nothing in the
        run's folder changes, and nothing is recorded.

        Args:
            sets: `validation` (all validation sets), `test`, `training`, or the name of a validation set; or several.
            checkpoint: `last`, `best` by `checkpoint.monitor`, one of the run's such as `step-100`, or the folder or
                address of any.
            overrides: changes of the run's config, such as `{"data.path": "mine:holdout"}`; what training alone uses,
                such as the optimizer, cannot be changed.
            model: what `train` was given as `model`, where that was a Python object and this is another program, or
                another one. Likewise the following five; `callbacks=[]` evaluates without any.
            address: a Ray cluster's address, see `train`; likewise the following two.

        Returns:
            The metrics by name: `val/loss`, `val/<name>/loss` where the validation sets have names, `test/loss`,
            `train/loss`.

        Raises:
            EnvironmentFault: there is no such checkpoint, or this environment lacks something.
            ConfigError: an override is wrong, there is no such set, or the weights do not fit the model.
            UnusableCode: a Python object has to be given again (`needs-object`).
            RunFailed: a worker failed.
        """
        from paceline.cluster.evaluation import evaluate_run
        from paceline.cluster.evaluation_config import GivenObjects

        objects = GivenObjects(model, data, task, optimizer, metrics, callbacks)
        with _evaluation_options(self, checkpoint, overrides, objects, address, wait_seconds, listener) as options:
            names = [sets] if isinstance(sets, str) else list(sets)
            return evaluate_run(self._trained, names, options).metrics

    def predict(
        self,
        set: str = "validation",
        *,
        output: str | Path | None = None,
        checkpoint: str | Path = "last",
        overrides: "Overrides | None" = None,
        model: Any = None,
        data: Any = None,
        task: Any = None,
        optimizer: Any = None,
        callbacks: Sequence[Any] | None = None,
        address: str | None = None,
        wait_seconds: float = 0.0,
        listener: "Listener | None" = None,
    ) -> "dict[str, torch.Tensor]":
        """Predict every sample of a set with a checkpoint, in the order of the set, whatever the workers.

        Args:
            set: `validation` where there is one validation set, its name where there are several, `test` or
                `training`.
            output: a file to write them to instead, `.safetensors` or `.parquet`, which is there only once it is
                complete. The predictions are never in memory as a whole.
            checkpoint: see `evaluate`; likewise the following ones.

        Returns:
            `predictions` and, where the task gives them, `targets`: shape [samples, ...], on the CPU; empty with
            `output`. Those in mappings and sequences are named `predictions.boxes`, `predictions.0`.

        Raises:
            UnusableCode: a Python object has to be given again (`needs-object`).
            RunFailed: a worker failed, or the task gives no predictions, or not one for each sample.
            PacelineError: see `evaluate`; or the file cannot be written.
        """
        from paceline.cluster.evaluation import predict_run, predicted_tensors
        from paceline.cluster.evaluation_config import GivenObjects

        objects = GivenObjects(model, data, task, optimizer, None, callbacks)
        with _evaluation_options(self, checkpoint, overrides, objects, address, wait_seconds, listener) as options:
            if output is None:
                return predicted_tensors(self._trained, set, options)
            predict_run(self._trained, set, output, options)
            return {}

    @property
    def _trained(self) -> "TrainedRun":
        from paceline.cluster.evaluation import TrainedRun

        return TrainedRun(f"run {self.name}/{self.run_id}", self.config, self.folder, self.checkpoint)

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain JSON values, as `paceline train --json` prints it."""
        fields = {key: getattr(self, key) for key in JSON_FIELDS}
        # JSON knows no NaN
        fields["metrics"] = {key: value if math.isfinite(value) else None for key, value in self.metrics.items()}
        told: dict[str, Any] = redact_tree(
            {
                **fields,
                "best": asdict(self.best) if self.best else None,
                "cost": self.cost.to_json() if self.cost else None,
            }
        )
        return told

    def rows(self) -> list[tuple[str, str]]:
        """Return the result as a small table: label and value."""
        again = "; the same command resumes it" if self.status == "interrupted" else ""
        status = self.stopped_early or f"{self.status} after {self.steps} steps{again}"
        rows = [("run", f"{self.name}/{self.run_id}"), ("status", status)]
        best = self.best
        results = {key: value for key, value in sorted(self.metrics.items()) if key.startswith(("train/", "val/"))}
        rows += [
            *((key, f"{value:.4g}") for key, value in results.items()),
            *(("straggler", line) for line in self.straggler.splitlines()),
            ("samples/s", f"{self.samples_per_second:,.0f}"),
            ("peak memory", f"{self.peak_memory_bytes / 2**20:,.0f} MiB"),
            ("wall time", f"{self.wall_seconds:.1f} s"),
            *(self.cost.lines() if self.cost else []),
            ("checkpoint", self.checkpoint or "none"),
            *([("best", f"{best.metric} {best.value:.4g} at step {best.step}: {best.checkpoint}")] if best else []),
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


@contextmanager
def _evaluation_options(
    run: RunResult,
    checkpoint: str | Path,
    overrides: "Overrides | None",
    objects: Any,
    address: str | None,
    wait_seconds: float,
    listener: "Listener | None",
) -> "Iterator[EvaluationOptions]":
    """Yield the options of an evaluation; without a listener of the caller's, its stages are shown as those of
    `train`."""
    from paceline.cluster.evaluation import EvaluationOptions

    given = checkpoint, overrides or {}, objects, address, wait_seconds
    if listener is not None:
        yield EvaluationOptions(*given, listener)
        return
    from paceline.display import watched

    with watched(run.name) as shown:
        yield EvaluationOptions(*given, shown)


def _cell(value: str) -> str:
    if not value.startswith("http"):
        return escape(value)
    link, _, hint = escape(value).partition(" ")
    return f'<a href="{link}" target="_blank">{link}</a> {hint}'
