"""Sizes of custom data sets, as earlier runs and sweeps of the same name recorded them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.cluster.run_coordinator import read_outcome
from paceline.cluster.run_identity import RunFolder
from paceline.config.data import Sizes
from paceline.config.experiment import ExperimentConfig
from paceline.errors import EnvironmentFault
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.sweeps.sweep_log import read_log
from paceline.tracking.metrics import EPOCH

_NEWEST = 10
"""Folders that are looked at."""


class RecordedSizes:
    """Sizes of the training sets that earlier runs and sweeps were trained on; the newest record of each counts.

    Args:
        home: `<storage>/<name>`.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._known: dict[str, tuple[int, str]] | None = None
        self.sources: list[str] = []
        """The runs and sweeps whose records were used, in words."""

    def of(self, config: ExperimentConfig) -> Sizes | None:
        """Sizes of the config's data, the validation set's left at 0; None where there is no record of them."""
        key = _data_key(config.data.model_dump(mode="json"))
        if key is None:
            return None
        if self._known is None:
            self._known = {}
            for found, size, source in _records(self._home):
                self._known.setdefault(found, (size, source))
        if key not in self._known:
            return None
        size, source = self._known[key]
        if source not in self.sources:
            self.sources.append(source)
        return Sizes(size, 0)


def _records(home: Path) -> Iterator[tuple[str, int, str]]:
    """What stands for the data, the size of the training set, and where that is recorded; the newest first."""
    for folder in sorted(home.glob("*/"), reverse=True)[:_NEWEST]:
        try:
            found = list(_of_sweep(SweepFolder(folder))) + list(_of_run(RunFolder(folder)))
        except (OSError, LookupError, TypeError, ValueError, AttributeError, EnvironmentFault):
            continue  # damaged, or of another version
        yield from found


def _of_sweep(folder: SweepFolder) -> Iterator[tuple[str, int, str]]:
    data = folder.read().get("config", {}).get("data")
    for trial in read_log(folder.path).trials.values() if data else ():
        key, size = _data_key(_with(data, trial.params)), _training_size(trial.samples, trial.metrics)
        if trial.state == "finished" and key and size:
            yield key, size, f"sweep {folder.run_id}"


def _of_run(folder: RunFolder) -> Iterator[tuple[str, int, str]]:
    data, outcome = folder.read().get("config", {}).get("data"), read_outcome(folder.tracking) or {}
    if data and outcome.get("status") == "finished":
        key, size = _data_key(data), _training_size(outcome["samples"], outcome["metrics"])
        if key and size:
            yield key, size, f"run {folder.run_id}"


def _training_size(samples: int, metrics: Mapping[str, float]) -> int:
    """Samples of one epoch, of which a training tells how many it took; 0 where it did not."""
    epochs = metrics.get(EPOCH, 0.0)
    return round(samples / epochs) if epochs > 0 else 0


def _with(data: Mapping[str, Any], params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section `data` of a trial, as far as it says where the data come from."""
    result: dict[str, Any] = {"path": data.get("path"), "args": dict(data.get("args") or {})}
    for key, value in sorted(params.items(), key=lambda item: item[0].count(".")):
        section, *below = key.split(".", 2)
        if section != "data":
            continue
        if not below:
            result = {"path": value.get("path"), "args": dict(value.get("args") or {})}
        elif below == ["name"]:
            result["path"] = None
        elif below[0] in ("path", "args") and len(below) == 1:
            result[below[0]] = value
        elif below[0] == "args":
            result["args"] = {**result["args"], below[1]: value}
    return result


def _data_key(data: Mapping[str, Any]) -> str | None:
    """Stands for data of the user's own; None for those that Paceline ships, which know their size by themselves."""
    path = data.get("path")
    return json.dumps([path, data.get("args") or {}], sort_keys=True, default=str) if path else None
