"""Plan of a submission: the config and its surroundings, checked before anything is sent."""

import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.job_package import (
    JobEnvironment,
    JobFolder,
    check_with_ray,
    job_environment,
    look_through,
    size_text,
)
from paceline.cluster.preflight import require_shared_places
from paceline.cluster.run_folder import storage_folder, storage_of
from paceline.cluster.user_code import Kind, modules_of_job, package_folder
from paceline.config.derived import derive
from paceline.config.experiment import ExperimentConfig
from paceline.config.extending import EXTENDS, read_config_file
from paceline.config.loading import load_config, placing
from paceline.config.overrides import parse_override
from paceline.config.overrides import place_of as place_of_override
from paceline.config.own_techniques import missing_in_techniques
from paceline.config.shareable import secrets_of
from paceline.errors import ConfigError, Problem, coded
from paceline.places import place_of
from paceline.redaction import learn, redact, redact_tree
from paceline.tracking.tracking_uri import ENVIRONMENT_VARIABLE, tracking_uri

Flags = Sequence[str] | Callable[[Kind], Sequence[str]]
"""Options of the command that the driver runs, or a function that returns them for a kind of command."""

CheckSweep = Callable[[ExperimentConfig], Any]
"""`plan_trials` of `paceline.sweeps.planning.planned_trials`, which `cluster` does not import. Raises a ConfigError."""

PYTHON_PATH = "PYTHONPATH"
DATA_PLACES = ("root", "file")
"""Fields of data sets that name a folder or a file."""


@dataclass(frozen=True)
class JobPlan:
    """Everything that is settled before the cluster is asked."""

    config: ExperimentConfig
    kind: Kind
    command: tuple[str, ...]
    """Command that the driver runs, in the working folder."""
    environment: JobEnvironment
    folder: JobFolder
    package: JobFolder
    warnings: tuple[str, ...] = ()
    """Warnings about parts of the job that are probably not intended, as sentences."""

    @property
    def entrypoint(self) -> str:
        """The command as a shell takes it."""
        return shlex.join(self.command)

    @property
    def identity(self) -> dict[str, str]:
        """Metadata that identifies the run: two jobs that share it would work on the same one. Visible to all who may
        list jobs."""
        return {"paceline_name": self.config.name, "paceline_storage": str(self.config.storage.path)}

    @property
    def waits_for_nodes(self) -> bool:
        """True if the driver waits for nodes that have not joined yet."""
        return any(each.startswith("--wait-for-resources") for each in self.command)

    def new_id(self) -> str:
        """Return an id for the job: the config's name, and the time (UTC)."""
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", self.config.name)
        return f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"

    def rows(self) -> list[tuple[str, str]]:
        """Return the contents of the job, by label."""
        shown = self.environment.shown()
        rows = [
            ("command", redact(self.entrypoint)),
            ("folder", _sent(self.folder)),
            ("package", _sent(self.package)),
            *(("module", module) for module in self.environment.modules),
            ("variables", redact(" ".join(f"{name}={value}" for name, value in shown["env_vars"].items()))),
        ]
        rows += [(key, redact(str(value))) for key, value in self.environment.others.items()]
        return rows + [("warning", text) for text in self.warnings]

    def to_json(self) -> dict[str, Any]:
        """Return the plan for `--json`."""
        sizes = {"files": len(self.folder.files), "size_bytes": self.folder.size_bytes}
        return {
            "kind": self.kind,
            "entrypoint": redact(self.entrypoint),
            "working_folder": {"path": str(self.folder.folder), **sizes},
            "runtime_env": redact_tree(self.environment.shown()),
            "metadata": self.identity,
            "warnings": list(self.warnings),
        }


def plan_job(
    file: str | Path,
    overrides: Sequence[str] = (),
    kind: Kind | None = None,
    flags: Flags = (),
    environment_file: Path | None = None,
    check_sweep: CheckSweep | None = None,
) -> JobPlan:
    """Check all that can be checked here, and find the files to send. Contacts no cluster; imports Ray at the end.

    Args:
        file: the config file, in the working folder or below.
        overrides: texts of the form `key.path=value`.
        kind: None: see `kind_of`.
        flags: options of the command that the driver runs, such as `--fork`.
        environment_file: of a runtime environment; None: `configs/deploy/runtime_env.yaml`, if it exists.
        check_sweep: checks a sweep's points, see `CheckSweep`; None: they are checked on the cluster.

    Raises:
        ConfigError: the config, an override or the runtime environment is wrong, or would be on the cluster.
        EnvironmentFault: the working folder is too large to be sent.
    """
    overrides = list(overrides)
    config = load_config(file, overrides)
    learn(secrets_of(config))
    kind = kind or kind_of(config)
    options = flags(kind) if callable(flags) else flags
    environment = job_environment(environment_file)
    real = _real(place_of(file))
    with placing(file, overrides):
        _raise_if_any(
            [
                *_lost_places(config, kind, environment),
                *_shown_secrets(config, overrides, environment),
                *_out_of_reach(real, config, kind, environment),
                *_raised_by(lambda: _check_as_the_command(config, kind, check_sweep)),
            ]
        )
    check_with_ray(environment)
    folder = look_through(environment.folder, environment.excludes)
    with placing(file, overrides):
        _raise_if_any([*_left_out(real, config, kind, folder)])
    inside = real.relative_to(environment.folder).as_posix()
    command = ("python", "-m", "paceline", kind, inside, *overrides, *options)
    warnings = (
        *(coded(text, "data-not-sent") for text in _data_at_home(config, folder)),
        *(coded(text, "environment-visible") for text in _open_secrets(environment)),
    )
    return JobPlan(config, kind, command, environment, folder, look_through(package_folder()), warnings)


def _raise_if_any(problems: Sequence[Problem]) -> None:
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))


def _raised_by(check: Callable[[], object]) -> Sequence[Problem]:
    try:
        check()
    except ConfigError as error:
        return error.problems
    return ()


def kind_of(config: ExperimentConfig) -> Kind:
    """Return `sweep`, `scale` or `tuneup`, the first of these sections that the config has; else `train`."""
    sections: tuple[Kind, ...] = ("sweep", "scale", "tuneup")
    return next((each for each in sections if getattr(config, each) is not None), "train")


def _lost_places(config: ExperimentConfig, kind: Kind, environment: JobEnvironment) -> Iterator[Problem]:
    """Yield places of results that are wrong, or do not outlive the job."""
    wrong = [*_raised_by(lambda: (storage_folder if kind in ("scale", "tuneup") else storage_of)(config))]
    if uri := config.tracking.uri or environment.env_vars.get(ENVIRONMENT_VARIABLE, "").strip():
        tracking = config.tracking.model_copy(update={"uri": uri})
        wrong += _raised_by(lambda: tracking_uri(tracking, environment.folder))
    yield from wrong
    keys = {each.key for each in wrong}
    yield from (
        each for each in _raised_by(lambda: require_shared_places(config, environment.env_vars)) if each.key not in keys
    )


def _shown_secrets(
    config: ExperimentConfig, overrides: Sequence[str], environment: JobEnvironment
) -> Iterator[Problem]:
    """Yield secrets that Ray would show to whoever may list jobs.

    Overrides are in the job's command. MLflow's address is taken along from here; the one in the user's file is theirs.
    """
    shown = "which Ray shows to everybody who may list jobs"
    hint = (
        "write it into the config file, which is not shown, or have your code take it from a variable of the nodes' "
        "own environment"
    )
    for text in overrides:
        key, value = parse_override(text)
        if redact_tree(value, key) != value or redact(text) != text:
            place = redact(place_of_override(f"{key}=..."))
            yield Problem("secret", f"is a secret, and would stand in the job's command, {shown}", key, place, hint)
    uri = environment.env_vars.get(ENVIRONMENT_VARIABLE, "")
    if ENVIRONMENT_VARIABLE in environment.taken_along and redact(uri) != uri and not config.tracking.uri:
        reason = f"{ENVIRONMENT_VARIABLE} has a password, which Ray would show to everybody who may list jobs"
        hint = "give the address without it, and MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD to the nodes"
        yield Problem("secret", reason, "tracking.uri", hint=hint)


def _out_of_reach(file: Path, config: ExperimentConfig, kind: Kind, environment: JobEnvironment) -> Iterator[Problem]:
    """Yield the config file, and the modules that it names, where the job does not find them."""
    folder = environment.folder
    if not file.is_relative_to(folder):
        reason = f"is not below the working folder {folder}, which is what travels"
        yield Problem("outside-folder", reason, "", str(file), "go to a folder that holds it")
    for key, place in modules_of_job(config, kind):
        if place == package_folder() or str(place) in environment.modules:
            continue
        hint = "move it there"
        if place.is_dir():
            hint += ", or name it under py_modules in the runtime environment"
        if not place.is_relative_to(folder):
            reason = f"{place} is not below the working folder {folder}, which is what travels"
            yield Problem("outside-folder", reason, key, hint=hint)
        elif place.parent not in (folder, file.parent) and PYTHON_PATH not in environment.env_vars:
            reason = f"{place} lies neither in the working folder nor beside the config: the job would not find it"
            yield Problem("not-importable", reason, key, hint=hint)


def _check_as_the_command(config: ExperimentConfig, kind: Kind, check_sweep: CheckSweep | None) -> None:
    """Check what the command itself checks at its start."""
    if kind != "sweep":
        derive(config, config.data.sizes())
        if problems := missing_in_techniques(config) if kind == "tuneup" else []:
            raise ConfigError(problems)
    elif config.sweep is None:
        hint = "add one, such as sweep: {space: {optimizer.lr: [0.01, 0.1]}}, or submit with --job train"
        raise ConfigError([Problem("sweep", "there is no sweep section", "sweep", hint=hint)])
    elif check_sweep is not None:
        check_sweep(config)


def _left_out(file: Path, config: ExperimentConfig, kind: Kind, folder: JobFolder) -> Iterator[Problem]:
    """Yield files that the job needs and `.gitignore` and the like leave out."""
    hint = "take the pattern that leaves it out from .gitignore, .rayignore or excludes"
    for each in read_config_file(file).chain:
        sent = _real(place_of(each.file)) if each.file is not None else file
        key = "" if sent == file else EXTENDS
        if not sent.is_relative_to(folder.folder):
            reason = f"is not below the working folder {folder.folder}, which is what travels"
            yield Problem("outside-folder", reason, key, str(sent), "go to a folder that holds it")
        elif folder.leaves_out(sent):
            yield Problem("left-out", "is left out of what travels", key, str(sent), hint)
    for key, place in modules_of_job(config, kind):
        if place != package_folder() and folder.leaves_out(place):
            yield Problem("left-out", f"{place} is left out of what travels", key, hint=hint)


def _data_at_home(config: ExperimentConfig, folder: JobFolder) -> Iterator[str]:
    """Yield warnings about data that are named relative to the working folder, and do not travel."""
    for field in DATA_PLACES:
        named = getattr(config.data, field, None)
        if not isinstance(named, str) or Path(named).is_absolute():
            continue
        place = (folder.folder / named).resolve()
        if place.exists() and folder.leaves_out(place):
            yield f"data.{field}: {place} does not travel; name a place that the nodes have by its absolute path"


def _open_secrets(environment: JobEnvironment) -> Iterator[str]:
    if names := environment.open_secrets():
        yield f"Ray shows {', '.join(names)} of the runtime environment to everybody who may list jobs"


def _real(file: Path) -> Path:
    """Return the file by its own name in its real folder: the target of a link is sent under the link's name."""
    return file.parent.resolve() / file.name


def _sent(folder: JobFolder) -> str:
    return f"{folder.folder}: {len(folder.files):,} files, {size_text(folder.size_bytes)}"
