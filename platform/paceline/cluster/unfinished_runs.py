"""The choice between continuing the newest unfinished sweep or tune-up of a name and starting a new one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from paceline.cluster.config_difference import config_difference
from paceline.cluster.initial_weights import adopt_weights, pin_weights
from paceline.cluster.run_identity import Folder, Intent, new_run, nothing_to_resume, other_config
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault


@dataclass(frozen=True)
class Unfinished(Generic[Folder]):
    """How unfinished ones of a kind are found and continued."""

    kind: type[Folder]
    word: str
    """What a user calls it."""
    may_differ: Sequence[str]
    """Keys and sections of the config that may differ when it is continued."""
    has_begun: Callable[[Folder], bool]
    """Whether there is anything in it that would be lost."""
    over: Collection[str] = ("finished",)
    """The status of those that are never continued."""

    def last(self, home: Path) -> Folder | None:
        """The newest one of a name.

        Args:
            home: `<storage>/<name>`.
        """
        paths = sorted(home.iterdir(), reverse=True) if home.is_dir() else []
        return next((self.kind(path) for path in paths if (path / self.kind.FILE).exists()), None)

    def newest(self, home: Path) -> Folder | None:
        """The newest one of a name, when it is unfinished."""
        folder = self.last(home)
        return None if folder is None or folder.read().get("status") in self.over else folder

    def with_weights(self, config: ExperimentConfig, home: Path, intent: Intent) -> ExperimentConfig:
        """The config with `model.weights` pinned: as the one that is continued or extended has it, or as it is now.

        Raises:
            ConfigError: there are no such weights.
        """
        known = None if intent == "new" else self.last(home) if intent == "extend" else self.newest(home)
        return with_pinned_weights(config, known.read() if known is not None else {})

    def difference(self, folder: Folder, config: ExperimentConfig) -> Mapping[str, tuple[Any, Any]]:
        """What differs between its config and another one, and may not: dotted key to (its value, the other's).

        Raises:
            EnvironmentFault: its file is damaged.
        """
        known = folder.read().get("config")
        if not isinstance(known, Mapping):
            hint = f"put it back from a copy, or move {folder.path} away to start again"
            file = folder.path / self.kind.FILE
            raise EnvironmentFault(f"{file} is damaged: {hint}", "run-file-damaged", file=str(file))
        return config_difference(known, config.model_dump(mode="json"), self.may_differ)

    def choose(self, home: Path, config: ExperimentConfig, intent: Intent) -> tuple[Folder, bool]:
        """The folder to work in, and whether it is that of an earlier launch.

        Raises:
            ConfigError: the unfinished one has another config, or there is none to resume.
            EnvironmentFault: the file of the unfinished one is damaged.
        """
        unfinished = None if intent == "new" else self.newest(home)
        if unfinished is None and intent == "resume":
            raise nothing_to_resume(self.word, home)
        if unfinished is None or not self.is_continued(unfinished, config, intent):
            return new_run(home, config, self.kind), False
        unfinished.write(status="running")
        return unfinished, True

    def is_continued(self, unfinished: Folder, config: ExperimentConfig, intent: Intent) -> bool:
        """Return True if a command continues an unfinished one, False if it starts a new one.

        Raises:
            ConfigError: the unfinished one has another config.
            EnvironmentFault: its file is damaged.
        """
        difference = self.difference(unfinished, config)
        if difference and (intent == "resume" or self.has_begun(unfinished)):
            hint = "undo the change to continue it, or start again with --new"
            raise other_config(self.word, config.name, unfinished, difference, hint)
        return not difference


def with_pinned_weights(config: ExperimentConfig, content: Mapping[str, Any]) -> ExperimentConfig:
    """The config with `model.weights` pinned, as an unfinished sweep or tune-up has it, or else as it is now.

    Args:
        content: of the file of the unfinished one; empty where there is none.

    Raises:
        ConfigError: there are no such weights.
    """
    stored = content.get("config")
    if isinstance(stored, Mapping):
        config = adopt_weights(config, stored, of_sweep=True)
    return pin_weights(config, of_sweep=True)
