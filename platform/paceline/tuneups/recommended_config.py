"""The recommended config as a file: what `train` and `sweep` accept, each changed line with its reason."""

import textwrap
from collections.abc import Mapping

from paceline.config.experiment import ExperimentConfig
from paceline.config.loading import dump_yaml
from paceline.config.shareable import shareable
from paceline.errors import ConfigError
from paceline.redaction import redact
from paceline.tuneups.outcome import Findings, TechniqueResult
from paceline.tuneups.texts import quality_text, speed_text, technique_speed, without_gain

WIDTH = 118


def recommended_config(config: ExperimentConfig, findings: Findings) -> ExperimentConfig:
    """The config with all recommended changes, under its own name and without the section `tuneup`."""
    return config.with_overrides({**findings.recommended, "tuneup": None})


def recommended_yaml(config: ExperimentConfig, findings: Findings) -> str | None:
    """The recommended config as commented YAML; None where no file can hold it: a Python object is in it."""
    try:
        text = dump_yaml(shareable(recommended_config(config, findings)))
    except ConfigError:
        return None
    return "\n".join([*_head(config, findings), *_commented(text.splitlines(), _reasons(findings))]) + "\n"


def _head(config: ExperimentConfig, findings: Findings) -> list[str]:
    if not findings.recommended:
        said = without_gain(findings)
        return [f"# What was measured of {config.name}: {said}. This is the config as it was."]
    parts = [f"# {config.name}, tuned: {speed_text(findings.speedup, findings.speedup_interval)} of the speed before."]
    if findings.quality.verdict != "same":
        parts.append(f"# Quality: {quality_text(findings.quality)}.")
    return [redact(part) for part in parts]


def _reasons(findings: Findings) -> dict[str, str]:
    """Return the reason for each recommended field, by dotted key."""
    reasons: dict[str, str] = {}
    for technique in findings.techniques:
        if technique.is_recommended:
            reasons |= {key: _reason(technique) for key in technique.overrides if key in findings.recommended}
    return reasons


def _reason(technique: TechniqueResult) -> str:
    alone = "" if technique.speedup is None else f"; alone {technique_speed(technique)}"
    return redact(f"{technique.name}: {technique.reason}{alone}")


def _commented(lines: list[str], reasons: Mapping[str, str]) -> list[str]:
    """The lines of a dumped config, with a comment above each that sets one of the fields: the reason, or the name of
    the technique where the reason is given above."""
    found: list[str] = []
    section = ""
    told: set[str] = set()
    for line in lines:
        name = line.split(":", 1)[0]
        if line and not line.startswith((" ", "-")):
            section = name
        key = f"{section}.{name.strip()}" if line.startswith("  ") and not line.startswith("   ") else name
        if reason := reasons.get(key, ""):
            indent = line[: len(line) - len(line.lstrip())]
            comment = reason.partition(":")[0] if reason in told else reason
            found += [f"{indent}# {part}" for part in textwrap.wrap(comment, WIDTH - len(indent))]
            told.add(reason)
        found.append(line)
    return found
