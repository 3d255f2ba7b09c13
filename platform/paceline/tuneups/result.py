"""Result of `tuneup`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.notebook_tables import notebook_tables
from paceline.cluster.listener import UI_HINT
from paceline.config.experiment import ExperimentConfig
from paceline.redaction import redact
from paceline.tuneups.answer import changes_text
from paceline.tuneups.explanations import rows_of
from paceline.tuneups.outcome import Findings, TechniqueResult
from paceline.tuneups.stored_findings import findings_json, technique_json
from paceline.tuneups.texts import HEADING, noise_text, quality_text, speed_text, summary_text, without_gain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class TuneupResult:
    """A finished tune-up."""

    tuneup_id: str
    name: str
    findings: Findings
    config: ExperimentConfig
    """The config that was tuned."""
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
    def techniques(self) -> tuple[TechniqueResult, ...]:
        """The techniques, in the order of the trials."""
        return self.findings.techniques

    @property
    def bottleneck(self) -> str:
        """The part that takes most of the time of a step."""
        return self.findings.bottleneck

    @property
    def recommended(self) -> ExperimentConfig:
        """The recommended config."""
        from paceline.tuneups.recommended_config import recommended_config

        return recommended_config(self.config, self.findings)

    @property
    def df(self) -> "pd.DataFrame":
        """A row for each technique."""
        import pandas as pd

        return pd.DataFrame([technique_json(technique) for technique in self.techniques])

    def to_json(self) -> dict[str, Any]:
        """As `paceline tuneup --json` prints it."""
        return {
            "tuneup_id": self.tuneup_id,
            "name": self.name,
            "summary": redact(summary_text(self.name, self.findings)),
            **findings_json(self.findings),
            "recommended_path": self.recommended_path,
            "report_path": self.report_path,
            "wall_seconds": self.wall_seconds,
            "mlflow_url": self.mlflow_url,
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heading and rows: a technique each."""
        return HEADING, rows_of(self.findings)

    def rows(self) -> list[tuple[str, str]]:
        """Rows below the table of techniques: label and text."""
        found = self.findings
        together = speed_text(found.speedup, found.speedup_interval) if found.recommended else without_gain(found)
        link = self.mlflow_url or ""
        rows = [
            ("noise", noise_text(found.noise)),
            ("bottleneck", found.bottleneck),
            ("recommended", ", ".join(changes_text(found).splitlines())),
            ("speed", together),
            ("quality", quality_text(found.quality) if found.recommended else ""),
            ("summary", summary_text(self.name, found)),
            *(("note", note) for note in found.notes),
            ("config", self.recommended_path),
            ("report", self.report_path),
            ("wall time", f"{self.wall_seconds:.0f} s"),
            ("MLflow", f"{link}{UI_HINT if self.needs_ui else ''}" if link else ""),
        ]
        return [(label, text) for label, text in rows if text]

    def __repr__(self) -> str:
        gains = [technique.name for technique in self.techniques if technique.is_recommended]
        speed = speed_text(self.findings.speedup, self.findings.speedup_interval)
        what = f"{', '.join(gains)}: {speed}" if gains else without_gain(self.findings)
        return f"<TuneupResult {self.name}/{self.tuneup_id}; {what}>"

    def _repr_html_(self) -> str:
        return notebook_tables(repr(self), self.rows(), *self.table())
