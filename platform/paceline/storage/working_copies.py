"""Places of a stored run on this machine: a working copy below the cache, which may be removed at any time."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.places import place_of
from paceline.storage.address import StoreAddress, parse

CACHE_VARIABLE = "PACELINE_CACHE"
DEFAULT_CACHE = "~/.cache/paceline"
CHECKPOINTS = "checkpoints"
TRACKING = "tracking"
TRIALS = "trials"
"""Folder of a sweep's trials, each of which is kept as a run is."""
OUTCOME = "outcome.json"
"""In the folder `TRACKING` once training has ended, and only then."""
STATUS = "run.json"
"""As `RunFolder.FILE`, which this room cannot see."""
LAUNCH = "launch"
"""Entry of that file: the launch that has claimed the run last."""
SWEEP_STATUS = "sweep.json"
"""As `SweepFolder.FILE`."""
SWEEP_BEST = "best.yaml"
"""As `SweepFolder.best_config`."""
SWEEP_LOG = "log.jsonl"
"""The sweep's journal of its trials."""


def cache_folder() -> Path:
    """Where this machine keeps working copies.

    Raises:
        EnvironmentFault: the system refuses the name.
    """
    return place_of(os.environ.get(CACHE_VARIABLE, "").strip() or DEFAULT_CACHE)


def home_of(storage: StoreAddress, name: str) -> Path:
    """The folder of this machine's working copies of the runs of a name."""
    return cache_folder() / storage.digest / name


@dataclass(frozen=True)
class RunStore:
    """Where a run is kept, and in whose name a launch works on it. Plain values, which travel to the workers."""

    storage: str
    """Address of all runs, with how the store is reached, see `StoreAddress.pinned`."""
    name: str
    run_id: str
    shown: str = ""
    """The address as the config has it."""
    launch: str = ""
    """Tells this launch from others: what may be written, and whose working copies may be used."""
    trusted: tuple[str, ...] = ()
    """Launches whose checkpoints count although they did not get into the store: the record here has all their
    metrics."""

    @property
    def home(self) -> StoreAddress:
        """What holds the runs of this name."""
        return parse(self.storage) / self.name

    @property
    def address(self) -> StoreAddress:
        """What holds the run."""
        return self.home / self.run_id

    def trial(self, trial_id: str) -> "RunStore":
        """Return the place of a trial, where this is a sweep's. The lease on the sweep's name is that on its trials."""
        return replace(self, run_id=f"{self.run_id}/{TRIALS}/{trial_id}")

    def shown_address(self) -> StoreAddress:
        """The same as a person would write it."""
        return parse(self.shown or self.storage) / self.name / self.run_id

    @property
    def folder(self) -> Path:
        """The run's working copy on this machine."""
        return home_of(parse(self.storage), self.name) / self.run_id
