"""Evaluation and prediction with a trained run.

checkpoint  ->  config, changed by overrides  ->  here or on Ray  ->  metrics, or the parts of a file  ->  the file
"""

import math
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.cluster.evaluation_config import (
    ChosenCheckpoint,
    EvaluationLaunch,
    EvaluationRequest,
    GivenObjects,
    choose_checkpoint,
    evaluation_config,
)
from paceline.cluster.listener import Listener, SilentListener
from paceline.cluster.prediction_file import complete_file, merge
from paceline.cluster.preflight import check_resources, check_this_machine, process_resources
from paceline.cluster.ray_session import on_cluster
from paceline.cluster.run_folder import writable
from paceline.cluster.signals import terminating_interrupts
from paceline.cluster.worker_group import error_of
from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import make_importable, remembered_folders
from paceline.config.loading import Overrides
from paceline.config.shareable import secrets_of
from paceline.errors import ConfigError, Problem, RunFailed
from paceline.places import default_address, place_of
from paceline.private_files import make_folder
from paceline.redaction import learn, redact, redact_tree
from paceline.storage.address import is_address, parse


@dataclass(frozen=True)
class TrainedRun:
    """A run to evaluate: its name, config, folder and newest checkpoint."""

    name: str
    """Name for messages, such as `run mnist/20250101-120000-abcdef`."""
    config: ExperimentConfig
    folder: Path
    """Folder of the run on disk. An evaluation changes nothing in it."""
    checkpoint: str
    """Folder of its newest checkpoint, or its address in an object store; empty if it has none."""


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation, in addition to the run's config."""

    checkpoint: str | Path = "last"
    """Checkpoint to evaluate, see `choose_checkpoint`."""
    overrides: Overrides = field(default_factory=dict)
    """Dotted keys and values, or texts `key=value`."""
    objects: GivenObjects = field(default_factory=GivenObjects)
    address: str | None = field(default_factory=default_address)
    """Address of a Ray cluster; None for a private local Ray, or inside a submitted job for its cluster."""
    wait_seconds: float = 0.0
    """Seconds to wait for free resources on a cluster."""
    listener: Listener = field(default_factory=SilentListener)


@dataclass(frozen=True)
class Evaluated:
    """Metrics of a checkpoint."""

    run: str
    """Name for messages, such as `run mnist/20250101-120000-abcdef`."""
    checkpoint: str
    """Its folder, or its address in an object store."""
    step: int
    metrics: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `paceline evaluate --json`."""
        # JSON knows no NaN
        metrics = {key: value if math.isfinite(value) else None for key, value in self.metrics.items()}
        shown: dict[str, Any] = redact_tree({**vars(self), "metrics": metrics})
        return shown

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a small table: label and value."""
        metrics = [(key, f"{value:.6g}") for key, value in sorted(self.metrics.items())]
        return _shown([_named(self.run), ("checkpoint", self.checkpoint), *metrics])


@dataclass(frozen=True)
class Predicted:
    """A file of predictions."""

    run: str
    checkpoint: str
    step: int
    set: str
    output: Path
    samples: int
    shapes: dict[str, list[int]]
    """Shape of each tensor or column, by name; -1 for a dimension that differs from sample to sample."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `paceline predict --json`."""
        shown: dict[str, Any] = redact_tree({**vars(self), "output": str(self.output)})
        return shown

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a small table: label and value."""
        shapes = [(name, f"shape {shape}") for name, shape in self.shapes.items()]
        return _shown([_named(self.run), ("checkpoint", self.checkpoint), ("written", str(self.output)), *shapes])


def _named(run: str) -> tuple[str, str]:
    kind, _, name = run.partition(" ")
    return kind, name


def _shown(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(redact(label), redact(text)) for label, text in rows]


def evaluate_run(run: TrainedRun, sets: Sequence[str], options: EvaluationOptions) -> Evaluated:
    """Compute the metrics of a run's checkpoint on sets of its data, see `RunResult.evaluate`."""
    with _working_folder(run, options) as folder:
        checkpoint, launch = _prepare(run, sets, options, folder)
        return Evaluated(run.name, checkpoint.place, checkpoint.step, _values(launch))


def predict_run(run: TrainedRun, name: str, output: str | Path, options: EvaluationOptions) -> Predicted:
    """Write the predictions of a run's checkpoint for a set of its data, see `RunResult.predict`."""
    with complete_file(output) as file, _working_folder(run, options, file.parent) as folder:
        predicted = _predict(run, name, file, folder, options)
    return replace(predicted, output=place_of(output))


def predicted_tensors(run: TrainedRun, name: str, options: EvaluationOptions) -> dict[str, Any]:
    """Return the predictions as tensors on the CPU, by name."""
    from safetensors.torch import load_file

    with _working_folder(run, options) as folder:
        file = folder / "predictions.safetensors"
        _predict(run, name, file, folder, options)
        return dict(load_file(file))


def _predict(run: TrainedRun, name: str, file: Path, folder: Path, options: EvaluationOptions) -> Predicted:
    # no metric is computed, so that those which were Python objects are not missed
    options = replace(options, objects=replace(options.objects, metrics={}))
    parts = folder / "parts"
    with writable(folder):
        make_folder(parts)
    with _shared_parts(run, parts, options.address) as place:
        checkpoint, launch = _prepare(run, [name], options, folder, place)
        samples = int(_values(launch)["samples"])
        if is_address(place):
            _bring(place, parts)
    shapes = merge(sorted(parts.iterdir()), file)
    found = next(iter(shapes.values()))[0]
    if found != samples:
        raise RunFailed(f"the workers wrote {samples} predictions, and {found} are there: do they share {run.folder}?")
    return Predicted(run.name, checkpoint.place, checkpoint.step, name, file, samples, shapes)


@contextmanager
def _working_folder(run: TrainedRun, options: EvaluationOptions, near: Path | None = None) -> Iterator[Path]:
    """Yield a folder that all workers find. It is not created here; it is removed at the end.

    On a cluster it is beside the run's own. Elsewhere nothing is written there: it may be an archive.

    Args:
        near: folder on the disk that is to hold the result; None for one in which temporary files are kept.
    """
    here = near or Path(tempfile.gettempdir())
    home = run.folder.parent if on_cluster(options.address) else here
    folder = home / f".evaluation-{secrets.token_hex(6)}"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _shared_parts(run: TrainedRun, folder: Path, address: str | None) -> Iterator[str]:
    """Yield a place that all workers can write to. On a cluster, this is the object store of a run that is kept in one;
    otherwise it is `folder`."""
    if not (is_address(run.checkpoint) and on_cluster(address)):
        yield str(folder)
        return
    from paceline.storage.remote_folder import RemoteFolder
    from paceline.storage.store_faults import StoreFault

    home = parse(run.checkpoint, "checkpoint").parent.parent.parent.pinned()
    shared = home / folder.parent.name
    try:
        yield str(shared)
    finally:
        with suppress(StoreFault):  # what has been brought here counts
            RemoteFolder(shared).remove_all()


def _bring(place: str, folder: Path) -> None:
    from paceline.storage.remote_folder import RemoteFolder

    remote = RemoteFolder(parse(place))
    for name in remote.files():
        with writable(folder):
            remote.download(name, folder / name)


def _prepare(
    run: TrainedRun, sets: Sequence[str], options: EvaluationOptions, folder: Path, parts: str = ""
) -> tuple[ChosenCheckpoint, EvaluationLaunch]:
    """Check what can be checked. Starts nothing."""
    if not sets:
        raise ConfigError([Problem("no-set", "no set is named", "set", hint="name one, such as validation")])
    make_importable([Path.cwd(), *remembered_folders(run.folder), *remembered_folders(run.folder.parent.parent)])
    checkpoint = choose_checkpoint(run.checkpoint, options.checkpoint)
    config = evaluation_config(run.config, checkpoint, options.overrides, options.objects)
    if not is_address(config.storage.path):  # where it is now, if it was moved: the nodes are asked whether they see it
        config = config.with_overrides({"storage.path": str(run.folder.parent)})
    learn(secrets_of(config))
    if not on_cluster(options.address):
        check_this_machine(config)
    request = EvaluationRequest(WorkerSpec.of(config, options.address), checkpoint.place, tuple(sets), parts)
    return checkpoint, EvaluationLaunch(
        config, request, folder, options.address, options.wait_seconds, options.listener
    )


def _values(launch: EvaluationLaunch) -> dict[str, float]:
    """Return the values that the workers have found.

    Raises:
        PacelineError: they failed.
    """
    ending = _run(launch)
    if ending["status"] == "failed":
        raise error_of(ending["failure"])
    return dict(ending["values"])


def _run(launch: EvaluationLaunch) -> dict[str, Any]:
    workers = launch.config.scaling.num_workers
    if workers > 1 or (workers and on_cluster(launch.address)):  # one on this machine needs no Ray, which takes a while
        from paceline.cluster.evaluation_on_ray import evaluate_on_ray

        return evaluate_on_ray(launch)
    launch.listener.stage("importing torch")
    import torch

    from paceline.cluster.evaluation_worker import evaluate_here

    use_gpu = check_resources(launch.config, process_resources(), "this machine")
    launch.listener.stage("building the model and loading the data")
    with terminating_interrupts():
        return evaluate_here(launch.request, torch.device("cuda" if use_gpu else "cpu"))
