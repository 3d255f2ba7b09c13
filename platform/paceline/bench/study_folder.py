"""The folder of a study."""

from pathlib import Path

from paceline.cluster.run_folder import RunFolder


class StudyFolder(RunFolder):
    """`<storage>/<name>/<run_id>`: the config, the journal, what was found out, what is recommended, the report."""

    @property
    def recommended(self) -> Path:
        """The recommended config, which `train` and `sweep` accept."""
        return self.path / "recommended.yaml"

    @property
    def findings(self) -> Path:
        """All that was found out, as the command prints it with `--json`."""
        return self.path / "findings.json"

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.path / "report.html"

    @property
    def ray(self) -> Path:
        """Folder that Ray writes to."""
        return self.path / "ray"

    def outputs(self) -> dict[str, bytes]:
        """Return the recommended config and the report by file name; what was not written is left out."""
        return {file.name: file.read_bytes() for file in (self.recommended, self.report) if file.exists()}

    def recommended_text(self) -> str | None:
        """Return the recommended config as YAML; None where no file could hold it."""
        return self.recommended.read_text() if self.recommended.exists() else None

    def wall_seconds(self) -> float:
        """Return the duration of the study; 0 where it is not known."""
        return float(self.read().get("wall_seconds", 0.0))

    def clear(self) -> None:
        """Remove what is not needed once the study has ended."""
