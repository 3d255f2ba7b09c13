"""Paceline finds, proves and runs the fastest training configuration of a PyTorch model on a Ray cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.batch_scaling.result import ScaleResult
    from paceline.batch_scaling.scale import scale
    from paceline.callbacks.callback import Callback, Control, TrainContext
    from paceline.cluster.run_result import RunResult
    from paceline.cluster.train import train
    from paceline.config import ExperimentConfig, load_config
    from paceline.errors import ConfigError, EnvironmentFault, PacelineError, RunFailed
    from paceline.linting.apart import lint
    from paceline.memory.plan import MemoryPlan, plan
    from paceline.runs.comparing import RunComparison, compare
    from paceline.runs.evaluation import evaluate, predict
    from paceline.runs.export import export
    from paceline.runs.listing import list_runs
    from paceline.runs.reopening import load_run, load_sweep
    from paceline.runs.report.report import report
    from paceline.sweeps.results.result import SweepResult
    from paceline.sweeps.sweep import sweep
    from paceline.tasks.base import Task, TaskOutput
    from paceline.tuneups.result import TuneupResult
    from paceline.tuneups.tuneup import tuneup

__version__ = "0.2.0"

# Each public name and the module that holds it. They are imported when first asked for, so that
# `import paceline`, the command line's help and a config error never pay for torch or Ray.
_HOMES = {
    "Callback": "paceline.callbacks.callback",
    "ConfigError": "paceline.errors",
    "Control": "paceline.callbacks.callback",
    "EnvironmentFault": "paceline.errors",
    "RunComparison": "paceline.runs.comparing",
    "ExperimentConfig": "paceline.config",
    "MemoryPlan": "paceline.memory.plan",
    "PacelineError": "paceline.errors",
    "RunFailed": "paceline.errors",
    "RunResult": "paceline.cluster.run_result",
    "ScaleResult": "paceline.batch_scaling.result",
    "SweepResult": "paceline.sweeps.results.result",
    "Task": "paceline.tasks.base",
    "TaskOutput": "paceline.tasks.base",
    "TrainContext": "paceline.callbacks.callback",
    "TuneupResult": "paceline.tuneups.result",
    "compare": "paceline.runs.comparing",
    "evaluate": "paceline.runs.evaluation",
    "export": "paceline.runs.export",
    "lint": "paceline.linting.apart",
    "list_runs": "paceline.runs.listing",
    "load_config": "paceline.config",
    "load_run": "paceline.runs.reopening",
    "load_sweep": "paceline.runs.reopening",
    "plan": "paceline.memory.plan",
    "predict": "paceline.runs.evaluation",
    "report": "paceline.runs.report.report",
    "scale": "paceline.batch_scaling.scale",
    "sweep": "paceline.sweeps.sweep",
    "train": "paceline.cluster.train",
    "tuneup": "paceline.tuneups.tuneup",
}

__all__ = [
    "Callback",
    "RunComparison",
    "ConfigError",
    "Control",
    "EnvironmentFault",
    "ExperimentConfig",
    "MemoryPlan",
    "PacelineError",
    "RunFailed",
    "RunResult",
    "ScaleResult",
    "SweepResult",
    "Task",
    "TaskOutput",
    "TrainContext",
    "TuneupResult",
    "__version__",
    "compare",
    "evaluate",
    "export",
    "lint",
    "list_runs",
    "load_config",
    "load_run",
    "load_sweep",
    "plan",
    "predict",
    "report",
    "scale",
    "sweep",
    "train",
    "tuneup",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
