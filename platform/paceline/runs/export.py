"""`export`: a run's best checkpoint as a folder that stands by itself.

find the run  ->  choose the checkpoint  ->  weights, or the traced model  ->  config.yaml, export.json  ->  registry
"""

import json
import math
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.torch import save_file

from paceline.config.experiment import ExperimentConfig, validate
from paceline.config.imports import AbsentObject, with_absent_objects
from paceline.config.loading import dump_yaml
from paceline.config.shareable import shareable
from paceline.direction import default_mode
from paceline.engine.manifest import MANIFEST, hash_file
from paceline.engine.rebuilding import AVERAGE, WEIGHTS, evaluated_weights, rebuild
from paceline.errors import ConfigError, EnvironmentFault, Problem, coded
from paceline.places import place_of
from paceline.redaction import redact
from paceline.runs.choosing import DEFAULT, Chosen, choose
from paceline.runs.finding import FoundRun, find_run, trial_of
from paceline.runs.loading import loading_lines, readme, version_text
from paceline.runs.readable import readable
from paceline.runs.reopening import config_of, recorded_points
from paceline.runs.trust import named_code, require_trust
from paceline.sweeps.results.ranking import Mode, Objective
from paceline.sweeps.results.record import without_secrets
from paceline.sweeps.results.reopening import sweep_in
from paceline.tracking.environment import package_version
from paceline.tracking.metric_points import MetricPoint

Format = Literal["safetensors", "pt2"]
FORMATS = get_args(Format)
PROGRAM = "model.pt2"
CONFIG = "config.yaml"
README = "README.md"
DESCRIPTION = "export.json"
ASIDE = ".export-"
"""Prefix of the folder that an export is written to, until it is complete."""
"""Describes the other files. Written last: an export without it is incomplete."""
PACKAGES = ("paceline", "torch", "safetensors")


@dataclass(frozen=True)
class Exported:
    """Result of an export: the files, and their place."""

    folder: Path
    format: Format
    run: FoundRun
    step: int
    """Optimizer step of the checkpoint."""
    why: str
    """Reason for choosing this checkpoint."""
    missed: str
    """Note that another step had a better value but its checkpoint is not kept; empty if none had."""
    metrics: dict[str, float]
    """Metrics measured at that step."""
    sha256: str = ""
    """SHA-256 of the file with the weights, or of the traced model."""
    warnings: tuple[str, ...] = ()
    registered: dict[str, Any] = field(default_factory=dict)
    """`name`, `version`, `is_new` and `url` in MLflow's model registry; empty when that was not asked for."""

    @property
    def file(self) -> Path:
        """The weights, or the traced model."""
        return self.folder / (WEIGHTS if self.format == "safetensors" else PROGRAM)

    def to_json(self) -> dict[str, Any]:
        """As `paceline export --json` prints it."""
        own = {**asdict(self), "metrics": _plain(self.metrics)}
        return {**own, "folder": str(self.folder), "run": str(self.run), "file": str(self.file)}

    def rows(self) -> list[tuple[str, str]]:
        """As a small table: label and value."""
        rows = [
            (self.run.kind, str(self.run).partition(" ")[2]),
            ("checkpoint", f"step {self.step}: {self.why}"),
            *([("not kept", self.missed)] if self.missed else []),
            *((key, f"{value:.6g}") for key, value in sorted(self.metrics.items()) if key.startswith("val/")),
            ("written", str(self.file)),
            ("SHA-256", self.sha256),
        ]
        if self.registered:
            word = "" if self.registered["is_new"] else ", which has been there before"
            rows.append(("registered", f"{self.registered['name']} version {self.registered['version']}{word}"))
        return rows + [("to load it" if not number else "", line) for number, line in enumerate(self.loading)]

    @property
    def loading(self) -> tuple[str, ...]:
        """Lines of Python that load the export. MLflow's own `load_model` cannot: the folder has no `MLmodel` file."""
        registered = (self.registered["name"], self.registered["version"]) if self.registered else None
        return loading_lines(self.format, self.file.name, registered, str(self.folder))


def export(
    run: str | Path,
    format: Format = "safetensors",
    output: str | Path | None = None,
    *,
    metric: str | None = None,
    mode: Mode | None = None,
    register: str | None = None,
    storage: str | Path | None = None,
    uri: str | None = None,
    trust: bool = False,
    tell: Callable[[str], object] = lambda text: None,
) -> Exported:
    """Export the best kept checkpoint of a run, or of a sweep's best trial, into a separate folder.

    `safetensors`: the weights; runs no code. `pt2`: the traced model, which loads without its Python code.

    Args:
        run: see `find_run`.
        format: `safetensors` or `pt2`.
        output: the folder; by default one below `exports` in the working folder.
        metric: metric that selects the best checkpoint; by default a sweep's first objective, else
            `checkpoint.monitor`, else `val/loss`.
        mode: direction in which the metric is better, `min` or `max`; by default derived from its name.
        register: name in MLflow's model registry, where the exported files become a version.
        storage: the folder that holds the runs, or its address; by default `runs` in the working folder.
        uri: MLflow's address; by default the run's own.
        trust: call the code that the config names, even if the config is from outside the working folder.
        tell: called with a text before each slow operation.

    Raises:
        EnvironmentFault: there is no such run, checkpoint or metric, or the folder cannot be written to.
        ConfigError: the config is not valid any more, or names code that is not trusted.
        UnusableCode: the model cannot be traced.
    """
    if format not in FORMATS:
        raise ConfigError([Problem("format", f"there is no format {format!r}", hint=f"choose {' or '.join(FORMATS)}")])
    if register is not None:
        from paceline.tracking.model_registry import check_name

        check_name(register)
    asked = find_run(run, storage, uri)
    found, objective = _of_sweep(asked) if asked.kind == "sweep" else (asked, None)
    with readable(found.folder):
        config, points = config_of(found), recorded_points(found)
    if metric is not None:
        objective = metric, mode or default_mode(metric)
    objective = objective or _monitored(config, points) or DEFAULT
    if format == "pt2":
        require_trust(config, found.folder, trust)
    chosen = choose(found, points, objective)
    folder = _folder(output, found, chosen, format)
    _check_folder(folder, found, chosen, format)
    if format == "pt2":
        tell("tracing the model, which imports torch: half a minute on a small machine")
    exported = _write(folder, found, chosen, config, format)
    if asked.note:
        exported = replace(exported, warnings=(coded(asked.note, "runs-and-sweeps"), *exported.warnings))
    if register is None:
        return exported
    tell("registering it in MLflow, which takes some seconds to import")
    return _registered(exported, register, uri)


def _monitored(config: ExperimentConfig, points: Sequence[MetricPoint]) -> Objective | None:
    """Return the metric of `checkpoint.monitor`, if it was measured."""
    objective = config.checkpoint.objective
    return objective if objective and any(point.key == objective[0] for point in points) else None


def _of_sweep(sweep: FoundRun) -> tuple[FoundRun, Objective]:
    """Return the best trial, and the objective in which it is the best."""
    with readable(sweep.folder):
        result = sweep_in(sweep.folder, sweep.store)
    if result.best is None:
        metric = result.objectives[0][0]
        also = f"; {sweep.note}" if sweep.note else ""
        raise EnvironmentFault(
            f"the {sweep} has no best trial: {result.why_no_best}{also}", "no-finished-trial", metric=metric
        )
    return trial_of(sweep, result.best.id), result.objectives[0]


def _folder(output: str | Path | None, found: FoundRun, chosen: Chosen, format: Format) -> Path:
    if output is not None:
        return place_of(output)
    of_sweep = f"{found.sweep.name}-" if found.sweep is not None else ""
    kind = "" if format == "safetensors" else f"-{format}"
    return place_of("exports") / f"{found.name}-{of_sweep}{found.id}-step-{chosen.step}{kind}"


def _check_folder(folder: Path, found: FoundRun, chosen: Chosen, format: Format) -> None:
    """A folder may hold nothing, or an earlier export of the same."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise EnvironmentFault(f"{folder} is a file: choose a folder with --output", "output-not-usable", path=folder)
    for left in folder.glob(f"{ASIDE}*"):  # by an export that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        held = json.loads((folder / DESCRIPTION).read_bytes())
    except (OSError, ValueError, RecursionError):
        held = {}
    if not isinstance(held, dict):
        held = {}
    if held and (held.get("run"), held.get("step"), held.get("format")) == (str(found), chosen.step, format):
        return
    if any(folder.iterdir()):
        what = f"holds the export of {held.get('run')}, step {held.get('step')}" if held else "is not empty"
        raise EnvironmentFault(
            f"{folder} {what}: choose another folder with --output", "output-not-usable", path=folder
        )


def _write(folder: Path, found: FoundRun, chosen: Chosen, config: ExperimentConfig, format: Format) -> Exported:
    """Write the files to a temporary folder, and move them once they are complete. Leaves no empty folder behind."""
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=folder))
        try:
            about = Exported(folder, format, found, chosen.step, chosen.why, chosen.missed, chosen.metrics)
            exported = _fill(aside, about, chosen, config)
            # the description first: if this is killed, the same export may write to the folder again
            for name in (DESCRIPTION, exported.file.name, CONFIG, README):
                (aside / name).replace(folder / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            for each in made:
                with suppress(OSError):  # it holds the export
                    each.rmdir()
    except OSError as error:
        told = f"the export cannot be written to {folder}: {error.strerror or error}"
        raise EnvironmentFault(told, "output-not-written", path=folder, errno=error.errno) from error
    return exported


def _fill(aside: Path, exported: Exported, chosen: Chosen, config: ExperimentConfig) -> Exported:
    file = aside / exported.file.name
    checks: dict[str, Any] = {}
    if exported.format == "safetensors":
        if (chosen.folder / AVERAGE).is_file():
            save_file(evaluated_weights(chosen.folder), file)
        else:
            _copy(chosen.folder / WEIGHTS, file)
    else:
        from paceline.runs.tracing import save_program

        checks = save_program(config, rebuild(config, chosen.folder), file)
    text, is_whole = _config_text(config)
    (aside / CONFIG).write_text(f"# {exported.run}, step {exported.step}\n{text}")
    needs_model = isinstance(getattr(config.model, "path", None), AbsentObject)
    store, about = exported.run.store, f"{exported.run}, step {exported.step}"
    place = str(exported.run.folder if store is None else store.shown_address())
    text = readme(exported.format, exported.file.name, place, about, needs_model)
    (aside / README).write_text(text)
    broken = tuple(coded(text, "broken-checkpoint") for text in chosen.broken)
    hidden = () if is_whole else (coded(f"what looked like a secret is hidden in {CONFIG}", "secret-hidden"),)
    found = hash_file(file)
    exported = replace(exported, sha256=found.sha256, warnings=(*broken, *hidden))
    content = _description(exported, asdict(found), chosen, config, checks)
    (aside / DESCRIPTION).write_text(json.dumps(content, indent=1))
    return exported


def _copy(source: Path, target: Path) -> None:
    """Copy the weights, and verify the copy with the manifest."""
    shutil.copyfile(source, target)
    wanted = json.loads((source.parent / MANIFEST).read_bytes())["files"][WEIGHTS]["sha256"]
    if hash_file(target).sha256 != wanted:
        raise EnvironmentFault(f"{target} is not what was copied to it: the disk may be failing", "disk", path=target)


def _config_text(config: ExperimentConfig) -> tuple[str, bool]:
    """The config as `train` takes it, and whether nothing in it had to be hidden."""
    tree = shareable(config).model_copy(update={"sweep": None}).model_dump(mode="json")
    hidden = without_secrets(tree)
    try:
        return dump_yaml(validate(with_absent_objects(hidden))), hidden == tree
    except ConfigError:  # what is hidden was not free text
        return redact(dump_yaml(shareable(config))), False


def _description(
    exported: Exported, entry: Mapping[str, Any], chosen: Chosen, config: ExperimentConfig, checks: Mapping[str, Any]
) -> dict[str, Any]:
    versions = {package: package_version(package) for package in PACKAGES}
    return {
        "format": exported.format,
        "run": str(exported.run),
        "step": exported.step,
        "why": exported.why,
        "metrics": _plain(exported.metrics),
        "files": {exported.file.name: dict(entry)},
        "checkpoint": chosen.folder.name,
        "imports": named_code(config),
        "checked": dict(checks),
        "versions": {**versions, "python": platform.python_version()},
    }


def _plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    # JSON knows no NaN
    return {key: value if math.isfinite(value) else None for key, value in metrics.items()}


def _registered(exported: Exported, name: str, uri: str | None) -> Exported:
    from paceline.tracking.model_registry import register

    place = f"exported/{exported.format}-step-{exported.step}"

    def description(version: int) -> str:
        about = f"{exported.run}, step {exported.step}"
        return version_text(about, loading_lines(exported.format, exported.file.name, (name, version), ""))

    given = exported.run.tracking, exported.sha256, exported.step, uri
    version = register(name, exported.folder, place, *given, description)
    return replace(exported, registered=asdict(version))
