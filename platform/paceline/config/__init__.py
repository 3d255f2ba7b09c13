"""The config of an experiment: its types, loading, overrides, checks and errors. Never imports torch or ray."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.config.experiment import ExperimentConfig
    from paceline.config.loading import load_config

__all__ = ["ExperimentConfig", "load_config"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: the components import `config.base`, and `experiment` imports the components.
    if name == "ExperimentConfig":
        from paceline.config.experiment import ExperimentConfig

        return ExperimentConfig
    if name == "load_config":
        from paceline.config.loading import load_config

        return load_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
