"""What is known of a run when it is launched."""

import getpass
import json
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.durable import write_durably
from paceline.tracking import metrics
from paceline.tracking.redact import redact, redact_values, without_credentials

PARAM_LENGTH = 6000
"""MLflow's limit for the value of a param, in characters."""
TAG_LENGTH = 8000
"""MLflow's limit for the value of a tag, in characters."""
RECORD_FILE = "record.json"
GIT_TIMEOUT_SECONDS = 2.0
PACKAGES = ("paceline", "torch", "torchvision", "ray", "mlflow")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class RunRecord:
    """A run's identity and all that does not change while it runs. Made on the driver."""

    run_id: str
    """Paceline's own identifier of the run, the same over all resumes."""
    name: str
    """MLflow shows it as the run's: the config's `name`, or for a sweep's trial what it tries out."""
    uri: str = field(repr=False)
    """MLflow's address, see `store.tracking_uri`. May hold credentials: they are used, and never stored."""
    experiment: str
    """MLflow experiment that holds the run."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key to value: the config and what was derived from it, see `flatten`. Kept as YAML would write them."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """See `metrics` for the keys, and `launch_tags` for most of the values."""
    artifacts: Mapping[str, str] = field(default_factory=dict)
    """Name to text, such as `config.yaml`."""
    start_time_ms: int = field(default_factory=_now_ms)
    """When the run was launched, in milliseconds since 1970."""
    parent: str = ""
    """`run_id` of the run that MLflow shows this one under, in the same experiment; empty for none."""
    title: str = ""
    """The config's `name` where `name` is another one; empty where it is the same."""
    picture: bool = True
    """Whether the loss curve is drawn at the end, which takes a quarter of a second of a core."""

    def __post_init__(self) -> None:
        if not self.run_id or _has_quotes(self.run_id):
            raise ValueError(f"a run id must be text without quotes, not {self.run_id!r}")
        if _has_quotes(self.parent) or self.parent == self.run_id:
            raise ValueError(f"a parent must be another run's id, not {self.parent!r}")
        params = redact_values({key: param_text(value) for key, value in self.params.items()})
        object.__setattr__(self, "params", {key: value[:PARAM_LENGTH] for key, value in params.items()})
        own = {metrics.RUN_ID: self.run_id, metrics.NAME: self.title or self.name}
        tags = {metrics.KIND: "run", **self.tags, **own}
        object.__setattr__(self, "tags", clean_tags(tags))
        object.__setattr__(self, "artifacts", {path: redact(text) for path, text in self.artifacts.items()})

    def save(self, folder: Path) -> None:
        """Write the record into the run's folder, without the address's credentials."""
        content = {**asdict(self), "uri": without_credentials(self.uri)}
        write_durably(folder / RECORD_FILE, json.dumps(content, indent=1).encode())

    @classmethod
    def load(cls, folder: Path, uri: str | None = None) -> "RunRecord":
        """Read what `save` wrote; `uri` replaces the address, and is needed when that had credentials."""
        content = json.loads((folder / RECORD_FILE).read_text())
        return cls(**{**content, "uri": uri or content["uri"]})


def _has_quotes(run_id: str) -> bool:
    return "'" in run_id or "`" in run_id


def clean_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags as they may be stored: no secrets, and no longer than MLflow takes."""
    return {key: redact(str(value))[:TAG_LENGTH] for key, value in tags.items()}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys. An empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def param_text(value: Any) -> str:
    """A value as the user would write it in the config: `null`, `true`, `[1, 2]`, `0.1`, plain text."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def launch_tags(command: str, folder: Path | None = None) -> dict[str, str]:
    """Where a run comes from: code, versions, machine and user. Runs on the driver; never fails.

    Args:
        command: the command line that started the run.
        folder: where to ask git; by default the working folder.
    """
    tags = {
        metrics.COMMAND: command,
        metrics.SOURCE_NAME: command,
        metrics.SOURCE_TYPE: "LOCAL",
        metrics.USER: _user(),
        metrics.HOST: platform.node(),
        metrics.OS: f"{platform.system()} {platform.release()} {platform.machine()}",
        metrics.CPU_COUNT: str(usable_cores()),
        metrics.version_tag("python"): platform.python_version(),
        **_git_tags(folder),
    }
    for package in PACKAGES:
        tags[metrics.version_tag(package)] = package_version(package) or "not installed"
    return clean_tags(tags)


def sweep_tags(sweep_id: str) -> dict[str, str]:
    """What tells a sweep's own run from others."""
    return {metrics.KIND: "sweep", metrics.SWEEP_ID: sweep_id}


def trial_tags(sweep_id: str, trial_id: str) -> dict[str, str]:
    """What tells the run of a sweep's trial from others.

    `metrics.TRIAL_STATE` is not among them, and must not be in a record: what changes goes through
    `Recorder.set_tags`, since MLflow is told a record's tags again whenever the run is opened.
    """
    return {metrics.KIND: "trial", metrics.SWEEP_ID: sweep_id, metrics.TRIAL_ID: trial_id}


def trial_state_tags(state: str) -> dict[str, str]:
    """For `Recorder.set_tags`: how a trial stands, such as `running` or `pruned`."""
    return {metrics.TRIAL_STATE: state}


def command_line(arguments: list[str]) -> str:
    """`sys.argv` as it can be pasted into a shell."""
    return shlex.join([Path(arguments[0]).name, *arguments[1:]]) if arguments else ""


def package_version(package: str) -> str | None:
    """Version of an installed package, found without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _git_tags(folder: Path | None) -> dict[str, str]:
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    tags = {metrics.GIT_COMMIT: commit}
    branch = _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    if branch and branch != "HEAD":
        tags[metrics.GIT_BRANCH] = branch
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if changes is not None:
        tags[metrics.GIT_DIRTY] = "true" if changes else "false"
    return tags


def _git(folder: Path | None, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,  # None rather than this process's folder by name: it may have been removed
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
