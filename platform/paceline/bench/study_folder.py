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
