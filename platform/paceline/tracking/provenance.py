"""Provenance of a run: command, code, versions, machine and user. Gathered on the driver, at launch."""

import getpass
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paceline.redaction import redact_arguments
from paceline.tracking import metrics
from paceline.tracking.environment import ENVIRONMENT_FILE, environment_text, package_version
from paceline.tracking.git_state import GitState, changed_and_untracked
from paceline.tracking.run_record import clean_tags

PACKAGES = ("paceline", "torch", "torchvision", "ray", "mlflow")
GIT_DIFF = "git.diff"


@dataclass(frozen=True)
class Provenance:
    """For a `RunRecord`."""

    tags: Mapping[str, str]
    artifacts: Mapping[str, str]
    """Name to text: what is installed, and the diff where it is wanted."""


def provenance(command: str, folder: Path | None = None, git_diff: bool = False) -> Provenance:
    """All of it. Never fails.

    Args:
        command: the command line that started the run.
        folder: where to ask git; by default the working folder.
        git_diff: whether the changes since the commit are kept, too, and not only their hash.
    """
    git = GitState(folder, git_diff)
    artifacts = {ENVIRONMENT_FILE: environment_text(), **({GIT_DIFF: git.diff} if git.diff else {})}
    return Provenance(_tags(command, git), artifacts)


def launch_tags(command: str, folder: Path | None = None) -> dict[str, str]:
    """The tags alone, for the runs of a launch whose own run has the rest. Never fails.

    Args:
        command: the command line that started the run.
        folder: where to ask git; by default the working folder.
    """
    return _tags(command, GitState(folder))


def command_line(arguments: list[str]) -> str:
    """`sys.argv` as it can be pasted into a shell, without secrets: `***` stands in their place."""
    hidden = redact_arguments(arguments)
    return shlex.join([Path(hidden[0]).name, *hidden[1:]]) if hidden else ""


def config_not_in_commit(tags: Mapping[str, str]) -> str:
    """The config file that a run's command names, where the run's commit does not have it, or has another one: git
    does not track it, or it was changed. Empty where nothing says so.

    Args:
        tags: the run's.
    """
    given = _config_file(tags.get(metrics.COMMAND, ""))
    changed, untracked = changed_and_untracked(tags)
    known = tags.get(metrics.GIT_COMMIT) and given
    return given if known and any(_may_be(name, given) for name in [*changed, *untracked]) else ""


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _tags(command: str, git: GitState) -> dict[str, str]:
    tags = {
        metrics.COMMAND: command,
        metrics.SOURCE_NAME: command,
        metrics.SOURCE_TYPE: "LOCAL",
        metrics.USER: _user(),
        metrics.HOST: platform.node(),
        metrics.OS: f"{platform.system()} {platform.release()} {platform.machine()}",
        metrics.CPU_COUNT: str(usable_cores()),
        metrics.version_tag("python"): platform.python_version(),
        **git.tags,
    }
    for package in PACKAGES:
        tags[metrics.version_tag(package)] = package_version(package) or "not installed"
    return clean_tags(tags)


def _config_file(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    return next((word for word in words if word.endswith((".yaml", ".yml")) and "=" not in word), "")


def _may_be(name: str, path: str) -> bool:
    """Whether git's name of a file, from the root of the repository, may be that of a path given in one of its folders;
    a name with a slash behind it is that of a whole folder."""
    own = PurePosixPath(name.partition(" (")[0]).parts
    whole = PurePosixPath(path).parts
    given = tuple(part for part in whole if part not in ("/", ".."))
    if name.endswith("/"):
        return own[-1] in given[:-1]
    # one that leaves its folder, or begins at that of the machine, may be longer than git's
    length = len(given) if given == whole else min(len(own), len(given))
    return own[-length:] == given[-length:]


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
