"""Preflight: the request compared with the capacity, before anything starts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.cluster.listener import Events
from paceline.cluster.placement import Request, Room, asked_text, fits, hint_text, too_small
from paceline.config.experiment import ExperimentConfig
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.storage.address import is_address
from paceline.tracking.tracking_uri import (
    ENVIRONMENT_VARIABLE,
    is_sqlite,
    sqlite_file,
)


@dataclass(frozen=True)
class Resources:
    """CPU cores and GPUs of each node of a cluster, or of one machine."""

    nodes: tuple[Room, ...]

    @classmethod
    def of_machine(cls, cpus: float, gpus: float) -> "Resources":
        """Return the resources of one machine."""
        return cls((Room(cpus, gpus),))

    @property
    def cpus(self) -> float:
        """Number of CPU cores of all nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> float:
        """Number of GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)


def uses_gpu(config: ExperimentConfig, available: Resources) -> bool:
    """Return True if the workers get GPUs: as asked for, and with `auto` if there are any.

    `check_resources` reports too few GPUs: training on CPU beside idle GPUs is probably not intended.
    """
    if is_data_parallel(config):
        return True
    asked = config.scaling.use_gpu
    return available.gpus > 0 if asked == "auto" else bool(asked)


def requested(config: ExperimentConfig, use_gpu: bool) -> Room:
    """Return the resources that the workers reserve together; for an elastic run, those of the fewest workers."""
    scaling = config.scaling
    if is_data_parallel(config) and not scaling.num_workers:
        return Room(0.0, 2.0)
    per_worker = (1.0 if scaling.gpus_per_worker == "auto" else scaling.gpus_per_worker) if use_gpu else 0.0
    workers = scaling.fewest_workers
    return Room(workers * scaling.cpus_per_worker, max(workers, 1) * per_worker)


def request_of(config: ExperimentConfig, use_gpu: bool) -> Request:
    """Return the reserved resources as a request to nodes."""
    workers, asked = max(config.scaling.fewest_workers, 1), requested(config, use_gpu)
    key = "scaling.min_workers" if config.scaling.is_elastic else "scaling.num_workers"
    return Request(workers, asked.cpus / workers, asked.gpus / workers, config.scaling.placement, key=key)


def of_fixed_size(config: ExperimentConfig) -> ExperimentConfig:
    """Return the config with a fixed number of workers, for a sweep, whose worker groups keep their size."""
    scaling = config.scaling.model_copy(update={"min_workers": None})
    return config.model_copy(update={"scaling": scaling})


def warn_of_fixed_size(config: ExperimentConfig, what: str, listener: Events) -> None:
    """Warn that the number of workers of an elastic config stays the same here.

    Args:
        what: command that is about to run, such as `a sweep`.
    """
    if config.scaling.is_elastic:
        scaling = config.scaling
        reason = f"{what} keeps its {scaling.num_workers} workers: scaling.min_workers: {scaling.min_workers}"
        listener.event("warning", {"code": "no-effect", "message": f"{reason} has no effect"})


def check_resources(config: ExperimentConfig, available: Resources, where: str) -> bool:
    """Check that the request can be met, and return True if GPUs are used.

    Raises:
        EnvironmentFault: more is requested than is available.
    """
    use_gpu = uses_gpu(config, available)
    asked, key = requested(config, use_gpu), request_of(config, use_gpu).key
    if is_data_parallel(config):
        _check_data_parallel(asked.gpus, available, where)
    if asked.gpus > available.gpus:
        raise too_few_gpus("scaling asks for", asked.gpus, key, available, where)
    if asked.cpus > available.cpus:
        raise EnvironmentFault(
            f"scaling asks for {asked.cpus:g} CPU cores ({config.scaling.fewest_workers} workers x "
            f"{config.scaling.cpus_per_worker:g}), {where} has {available.cpus:g}: lower {key} or "
            "scaling.cpus_per_worker",
            "too-few-cores",
            asked=asked.cpus,
            available=available.cpus,
            where=where,
            key=key,
        )
    check_precision(config, use_gpu, where)
    if config.scaling.num_workers:
        _check_placement(request_of(config, use_gpu), available, where)
    return use_gpu


def too_few_gpus(what: str, asked: float, key: str, available: Resources, where: str) -> EnvironmentFault:
    """Return the error for workers that need more GPUs than there are.

    Args:
        what: subject and verb, such as `scaling asks for`.
        key: the field to lower.
    """
    return EnvironmentFault(
        f"{what} {asked:g} GPUs, {where} has {available.gpus:g}: lower {key}, "
        "or set scaling.use_gpu=false to train on CPU",
        "too-few-gpus",
        asked=asked,
        available=available.gpus,
        where=where,
    )


def check_precision(config: ExperimentConfig, use_gpu: bool, where: str) -> None:
    """Check that the device of the workers supports the config's precision.

    Raises:
        EnvironmentFault: it does not.
    """
    if config.trainer.precision == "16-mixed" and not use_gpu:
        message = f"trainer.precision 16-mixed needs GPUs, {where} offers none: use bf16-mixed"
        raise EnvironmentFault(message, "precision-needs-gpu", precision=config.trainer.precision, where=where)


def _check_placement(request: Request, available: Resources, where: str) -> None:
    """Check that nodes can hold the workers as they are to be placed: Ray would wait forever for such nodes."""
    rooms = available.nodes
    if not fits(request, rooms):
        nodes = f"{where} has {len(rooms)} nodes" if len(rooms) > 1 else f"{where} is one node"
        raise too_small(request, rooms, f"{asked_text(request)}, {nodes}: {hint_text(request, rooms)}")


def is_data_parallel(config: ExperimentConfig) -> bool:
    """Return True if one process is to train on several GPUs."""
    return config.parallel.strategy == "data_parallel"


def _check_data_parallel(gpus: float, available: Resources, where: str) -> None:
    # Ray would wait forever for a node that has them
    most = max(node.gpus for node in available.nodes)
    if gpus > most:
        has = f"{where} has {most:g}" + (" on its largest node" if len(available.nodes) > 1 else "")
        raise EnvironmentFault(
            f"parallel.strategy data_parallel needs at least {gpus:g} GPUs in one process, {has}: "
            "set parallel.strategy=ddp, which also trains on one GPU or on CPU",
            "too-few-gpus",
            asked=gpus,
            available=most,
            where=where,
        )


def local_resources() -> Resources:
    """Return the cores and GPUs that a local Ray will find on this machine, without importing torch or Ray."""
    return Resources.of_machine(float(len(os.sched_getaffinity(0))), float(_local_gpus()))


def process_resources() -> Resources:
    """Return the cores and GPUs that this process itself can train on. Imports torch, which alone knows the GPUs it can
    use."""
    import torch

    return Resources.of_machine(float(len(os.sched_getaffinity(0))), float(torch.cuda.device_count()))


def needs_gpu(config: ExperimentConfig) -> bool:
    """Return True if the config cannot be trained on CPU."""
    needs = config.scaling.use_gpu is True or config.trainer.precision == "16-mixed"
    return needs or is_data_parallel(config)


def _local_gpus() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([entry for entry in visible.split(",") if entry.strip() not in ("", "-1")])
    driver = Path("/proc/driver/nvidia/gpus")
    return len(list(driver.iterdir())) if driver.is_dir() else 0


def cluster_resources() -> Resources:
    """Return the cores and GPUs of the Ray cluster that this process is connected to."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Resources(tuple(Room(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in alive))


def worker_threads(config: ExperimentConfig) -> int:
    """Return the number of torch threads of each worker: its whole CPU cores, at least 1."""
    return max(1, int(config.scaling.cpus_per_worker))


def check_this_machine(config: ExperimentConfig) -> None:
    """Check that this machine has the resources that the config asks for. Imports torch only if it is needed for that.

    Raises:
        EnvironmentFault: it lacks some of them.
    """
    if config.scaling.num_workers:
        check_resources(config, local_resources(), "this machine")
    elif needs_gpu(config):
        check_resources(config, process_resources(), "this machine")


def require_shared_places(config: ExperimentConfig, environment: Mapping[str, str] = os.environ) -> None:
    """Check that a cluster keeps the runs and their record outside the working folder, which does not outlive the job.

    Args:
        environment: variables of the driver, which may name the tracking address.

    Raises:
        ConfigError: the runs or their record would be kept in the working folder.
    """
    hint = "name a place that outlives the job and that every node reaches"
    problems = [
        Problem("storage", _no_shared_storage(config), "storage.path", hint=hint),
        Problem("tracking-uri", _no_shared_tracking(config, environment), "tracking.uri", hint=hint),
    ]
    if problems := [problem for problem in problems if problem.reason]:
        raise ConfigError(problems)


def _no_shared_storage(config: ExperimentConfig) -> str:
    path = config.storage.path
    if path is None:
        return "must be set when training on a cluster"
    if not is_address(path) and not Path(path).expanduser().is_absolute():
        return f"must be an absolute path when training on a cluster; {path!r} is in the working folder"
    return ""


def _no_shared_tracking(config: ExperimentConfig, environment: Mapping[str, str]) -> str:
    uri = config.tracking.uri or environment.get(ENVIRONMENT_VARIABLE, "").strip()
    if not uri:
        return f"must be set when training on a cluster, here or as {ENVIRONMENT_VARIABLE}"
    file = sqlite_file(uri) if is_sqlite(uri) else None
    if file is not None and not file.is_absolute():
        source = "" if config.tracking.uri else f", as {ENVIRONMENT_VARIABLE} says"
        return f"must be an absolute path when training on a cluster; {str(file)!r}{source} is in the working folder"
    return ""
