"""Result of `scale`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.stored_findings import findings_json
from paceline.batch_scaling.texts import HEADING, critical_text, noise_text, rows_of, summary_text, time_text
from paceline.bench.notebook_tables import notebook_tables
from paceline.bench.study_result import StudyResult
from paceline.config.experiment import ExperimentConfig
from paceline.config.overrides import override_texts
from paceline.redaction import redact

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False, kw_only=True)
class ScaleResult(StudyResult):
    """A finished study of batch sizes."""

    scale_id: str
    findings: ScaleFindings

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
            **self._places_json(),
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heading and rows: a batch size and number of workers each."""
        return HEADING, rows_of(self.findings)

    def rows(self) -> list[tuple[str, str]]:
        """Rows below the table: label and text."""
        found = self.findings
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
            *self._place_rows(),
        ]
        return [(label, text) for label, text in rows if text]

    def __repr__(self) -> str:
        return f"<ScaleResult {self.name}/{self.scale_id}; {redact(summary_text(self.findings))}>"

    def _repr_html_(self) -> str:
        return notebook_tables(repr(self), self.rows(), *self.table())
