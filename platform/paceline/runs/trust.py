"""Code that a config names, where the config comes from somebody else."""

from pathlib import Path

from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import called_components
from paceline.errors import ConfigError, Problem


def named_code(config: ExperimentConfig) -> dict[str, str]:
    """Return the import paths that building the config's parts would import and call, by section."""
    return {key: component.import_path for key, component in called_components(config)}


def require_trust(config: ExperimentConfig, folder: Path, is_trusted: bool) -> None:
    """A config can name any function there is, and its arguments. Refuse to call one for a config of unknown origin.

    Args:
        folder: where the run is kept. What lies in the working folder is one's own.
        is_trusted: whether the user has said that it may be called.

    Raises:
        ConfigError: it names code, lies elsewhere, and nobody has said so.
    """
    code = named_code(config)
    if not code or is_trusted or folder.resolve().is_relative_to(Path.cwd().resolve()):
        return
    named = ", ".join(f"{section}.path {path}" for section, path in code.items())
    reason = f"this would import and call {named}, as the config in {folder} says, which is not in the working folder"
    hint = "add --trust if you know where the config comes from, or go to the folder that its runs/ lies in"
    raise ConfigError([Problem("trust", reason, hint=hint)])
