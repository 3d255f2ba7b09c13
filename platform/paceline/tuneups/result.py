"""Result of `tuneup`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.bench.notebook_tables import notebook_tables
from paceline.bench.study_result import StudyResult
from paceline.config.experiment import ExperimentConfig
from paceline.redaction import redact
from paceline.tuneups.answer import changes_text
from paceline.tuneups.explanations import rows_of
from paceline.tuneups.outcome import Findings, TechniqueResult
from paceline.tuneups.stored_findings import findings_json, technique_json
from paceline.tuneups.texts import HEADING, noise_text, quality_text, speed_text, summary_text, without_gain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False, kw_only=True)
class TuneupResult(StudyResult):
    """A finished tune-up."""

    tuneup_id: str
    findings: Findings

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
            **self._places_json(),
        }

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heading and rows: a technique each."""
        return HEADING, rows_of(self.findings)

    def rows(self) -> list[tuple[str, str]]:
        """Rows below the table of techniques: label and text."""
        found = self.findings
        together = speed_text(found.speedup, found.speedup_interval) if found.recommended else without_gain(found)
        rows = [
            ("noise", noise_text(found.noise)),
            ("bottleneck", found.bottleneck),
            ("recommended", ", ".join(changes_text(found).splitlines())),
            ("speed", together),
            ("quality", quality_text(found.quality) if found.recommended else ""),
            ("summary", summary_text(self.name, found)),
            *(("note", note) for note in found.notes),
            *self._place_rows(),
        ]
        return [(label, text) for label, text in rows if text]

    def __repr__(self) -> str:
        gains = [technique.name for technique in self.techniques if technique.is_recommended]
        speed = speed_text(self.findings.speedup, self.findings.speedup_interval)
        what = f"{', '.join(gains)}: {speed}" if gains else without_gain(self.findings)
        return f"<TuneupResult {self.name}/{self.tuneup_id}; {what}>"

    def _repr_html_(self) -> str:
        return notebook_tables(repr(self), self.rows(), *self.table())
