"""The newest scale study of a config, for those who choose among batch sizes."""

from dataclasses import dataclass
from pathlib import Path

from paceline.batch_scaling.critical_batch import Rule, expected_efficiency, smallest_untrainable
from paceline.batch_scaling.findings import ScaleFindings
from paceline.batch_scaling.folder import SCALE, ScaleFolder
from paceline.batch_scaling.stored_findings import findings_of
from paceline.batch_scaling.texts import count_text
from paceline.bench.findings_file import read_findings
from paceline.cluster.resume_rules import config_difference
from paceline.config.batch_sizes import largest_sizes
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault

MAY_DIFFER = (
    *("storage", "tracking", "checkpoint", "sweep", "scale", "tuneup", "scaling"),
    *("data.num_workers", "data.prefetch_factor", "data.persistent_workers", "data.cache", "data.pin_memory"),
    *("trainer.log_every_n_steps", "trainer.evaluate_every_n_epochs", "trainer.evaluate_every_n_steps"),
)
"""Keys and sections of the config that do not change how far larger batches pay."""
FAR_BEYOND = 2.0
"""Batches larger than this many times the critical batch size are not worth trying: they take three times the samples
of a small one."""


@dataclass(frozen=True)
class EarlierStudy:
    """Results of a scale study for those who choose a batch size."""

    study_id: str
    findings: ScaleFindings

    @property
    def critical_batch_size(self) -> float:
        """In samples; `inf` if it is larger than any batch that was tried."""
        assert self.findings.critical is not None
        return self.findings.critical.size

    def efficiency(self, size: int) -> float:
        """Return the share of a batch's samples that the config's own batch takes for the same gain."""
        return expected_efficiency(size, self.findings.own_batch_size, self.critical_batch_size)

    def efficiency_of(self, config: ExperimentConfig) -> float:
        """Return the efficiency of a config's batch; of a schedule, that of the largest."""
        return self.efficiency(largest_sizes(config).global_batch_size)

    def rule(self, size: int) -> Rule:
        """Return the learning-rate rule that held at a batch size."""
        return self.findings.rules.at(size)

    def why_not(self, size: int) -> str:
        """Return the reason why a batch size is not worth trying; empty if it is."""
        if size >= smallest_untrainable(self.findings.branches):
            return f"scale study {self.study_id} found no finite loss with a batch so large"
        if size > FAR_BEYOND * self.critical_batch_size:
            critical = f"the critical batch size, which is {count_text(self.critical_batch_size)} samples"
            return f"far beyond {critical} by scale study {self.study_id}"
        return ""


def earlier_study(config: ExperimentConfig, home: Path, study_id: str | None = None) -> EarlierStudy | None:
    """Return the newest finished study of a config that measured the critical batch size; None if there is none.

    Args:
        home: folder of all that has the config's name.
        study_id: the only study that counts; None for any.
    """
    own_batch_size = largest_sizes(config).global_batch_size
    for file in sorted(home.glob(f"{study_id or '*'}/{ScaleFolder.FILE}"), reverse=True):
        folder = ScaleFolder(file.parent)
        try:
            content = folder.read()
            if content.get("status") != "finished":
                continue
            if config_difference(content.get("config", {}), config.model_dump(mode="json"), MAY_DIFFER):
                continue
            findings = read_findings(folder, SCALE, findings_of)
        except EnvironmentFault:  # it is damaged, and no reason to fail
            continue
        # without a global batch size, that follows from the number of workers
        if findings.critical is not None and findings.own_batch_size == own_batch_size:
            return EarlierStudy(folder.run_id, findings)
    return None
