"""Result of `scale`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.stored_findings import findings_json
from paceline.batch_scaling.texts import HEADING, critical_text, noise_text, rows_of, summary_text, time_text
from paceline.bench.notebook_tables import notebook_tables
from paceline.cluster.listener import UI_HINT
from paceline.config.experiment import ExperimentConfig
from paceline.config.overrides import override_texts
from paceline.redaction import redact

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class ScaleResult:
    """A finished study of batch sizes."""

    scale_id: str
    name: str
    findings: ScaleFindings
    config: ExperimentConfig
    """The config as it was."""
    recommended_path: str
    """File with the recommended config, which `train` accepts; empty where no file can hold it."""
    report_path: str
    """The report as one HTML file."""
    folder: Path
    wall_seconds: float
    mlflow_url: str | None
    mlflow_run_id: str | None
    needs_ui: bool = False
    """True if the link needs `paceline ui` to be running."""

    @property
    def recommended(self) -> ExperimentConfig:
        """The recommended config."""
        return self.config.with_overrides({**self.findings.recommended, "scale": None})

    @property
    def df(self) -> "pd.DataFrame":
        """A row for each batch size and number of workers."""
        import pandas as pd

        return pd.DataFrame(findings_json(self.findings)["table"])

    def to_json(self) -> dict[str, Any]:
        """As `paceline scale --json` prints it."""
        return {
            "scale_id": self.scale_id,
            "name": self.name,
            "summary": redact(summary_text(self.findings)),
            **findings_json(self.findings),
            "recommended_path": self.recommended_path,
            "report_path": self.report_path,
            "wall_seconds": self.wall_seconds,
            "mlflow_url": self.mlflow_url,
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heading and rows: a batch size and number of workers each."""
        return HEADING, rows_of(self.findings)

    def rows(self) -> list[tuple[str, str]]:
        """Rows below the table: label and text."""
        found, link = self.findings, self.mlflow_url or ""
        rows = [
            ("summary", summary_text(found)),
            ("target", found.target.text),
            ("critical batch", critical_text(found.critical)),
            ("noise scale", noise_text(found)),
            ("rule", found.rules.text),
            ("recommended", ", ".join(override_texts(found.recommended))),
            ("time", time_text(found)),
            ("samples spent", f"{found.samples_spent:,}"),
            *(("note", note) for note in found.notes),
            ("config", self.recommended_path),
            ("report", self.report_path),
            ("wall time", f"{self.wall_seconds:.0f} s"),
            ("MLflow", f"{link}{UI_HINT if self.needs_ui else ''}" if link else ""),
        ]
        return [(label, text) for label, text in rows if text]

    def __repr__(self) -> str:
        return f"<ScaleResult {self.name}/{self.scale_id}; {redact(summary_text(self.findings))}>"

    def _repr_html_(self) -> str:
        return notebook_tables(repr(self), self.rows(), *self.table())
