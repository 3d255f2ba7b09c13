"""Finding a run by a folder, a name, a name and an id, or MLflow's id of a run.

RUN = FOLDER | NAME | NAME/ID | NAME/ID/TRIAL | MLflow's id     ->     FoundRun
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from paceline.cluster.run_folder import RunFolder
from paceline.errors import EnvironmentFault
from paceline.places import default_storage, place_of
from paceline.storage.address import RunStore, is_address, parse
from paceline.sweeps.sweep_folder import SweepFolder
from paceline.tracking.run_record import RECORD_FILE
from paceline.tracking.upload_cursor import CURSOR_FILE

Kind = Literal["run", "sweep", "trial", "tune-up", "scale"]

SHOWN_NAMES = 8
"""Names that an error lists, at the most."""
TRIALS = "trials"
STUDY_FILES: Mapping[Kind, str] = {"tune-up": "tuneup.json", "scale": "scale.json"}
"""Equal to `TuneupFolder.FILE` and `ScaleFolder.FILE`, which take longer to import."""
_MLFLOW_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class FoundRun:
    """A run, a sweep, one of a sweep's trials, a tune-up or a scale study, by its folder."""

    kind: Kind
    folder: Path
    """Its own folder, absolute."""
    store: RunStore | None = None
    """Object store that holds the run; `folder` is then a copy without the checkpoints' files. None for a local run."""
    passed_over: "FoundRun | None" = field(default=None, compare=False)
    """If it was found by a name that has both runs and sweeps: the newest one of the other kind."""

    @property
    def id(self) -> str:
        """Paceline's identifier of the run or the sweep, or the number of the trial, such as `0007`."""
        return self.folder.name

    @property
    def name(self) -> str:
        """The config's `name`, under which the storage keeps it."""
        return self.sweep.parent.name if self.sweep is not None else self.folder.parent.name

    @property
    def sweep(self) -> Path | None:
        """The folder of a trial's sweep; None unless it is a trial."""
        return self.folder.parent.parent if self.kind == "trial" else None

    @property
    def tracking(self) -> Path:
        """The folder of its journal and its record, which are sent to MLflow."""
        return self.folder / "tracking"

    @property
    def checkpoints(self) -> Path:
        """Folder of its `step-<n>` folders; a sweep itself has none."""
        return self.folder / "checkpoints"

    def preferring(self, kind: Kind) -> "FoundRun":
        """Return the newest one of a kind, if the same name has both; else this one."""
        other = self.passed_over
        return other if other is not None and other.kind == kind else self

    @property
    def note(self) -> str:
        """Warning that the same name has runs and sweeps; empty if it was not found by such a name."""
        other = self.passed_over
        if other is None:
            return ""
        taken = f"{self} is the newest of this name, which has runs and sweeps"
        return f"{taken}; to use the newest {other.kind}, write {other.name}/{other.id}"

    def __str__(self) -> str:
        """As a person would name it: `run mnist/20250101-120000-abcdef`."""
        own = f"{self.sweep.name}/{self.id}" if self.sweep is not None else self.id
        return f"{'scale study' if self.kind == 'scale' else self.kind} {self.name}/{own}"


def find_run(
    text: str | Path, storage: str | Path | None = None, uri: str | None = None, *, studies: bool = False
) -> FoundRun:
    """Find a run by its folder, name, id or address. If a name is also that of a folder with a run, the folder is used.

    Args:
        text: the folder of a run, of a sweep or of a trial; or `NAME`, `NAME/ID` or `NAME/ID/TRIAL` under the storage,
            where a name alone means the newest run or sweep of it; or MLflow's id of a run. Or the address of a run, or
            of the runs of a name, in an object store, of which a copy is made.
        storage: the folder that holds the runs, or its address; by default PACELINE_STORAGE, else `runs` in the working
            folder.
        uri: the MLflow store in which an id is looked up that no folder has; by default none.
        studies: also find tune-ups and scale studies; by default they are skipped, since they are not trained.

    Raises:
        EnvironmentFault: the run does not exist; the message lists the existing ones.
        ConfigError: an address cannot be used.
    """
    given = str(text).strip()
    here = _here(given) if storage is None else None
    if here is not None and (found := _at(here, studies)) is not None:
        return found
    storage = storage or default_storage() or "runs"
    if is_address(given) or (is_address(storage) and given):
        return _in_store(given if is_address(given) else f"{parse(str(storage), 'storage') / given}")
    storage = place_of(storage)
    if not given:
        raise EnvironmentFault(f"no run is named: {_existing_runs_text(storage, studies)}", "no-run", run="")
    place = Path(os.path.normpath(place_of(given)))
    places = [place] if Path(given).is_absolute() else [place, Path(os.path.normpath(place_of(storage / given)))]
    for each in places:
        if (found := _at(each, studies) or _newest(each, studies)) is not None:
            return found
    if _MLFLOW_ID.fullmatch(given):
        return _by_mlflow_id(given, storage, uri)
    for each in () if studies else places:
        if (study := _at(each, studies=True) or _newest(each, studies=True)) is not None:
            reason = f"the {study} is not a training: `paceline report {study.name}/{study.id}` writes its report"
            raise EnvironmentFault(f"there is no run {given!r}: {reason}", "no-run", run=given)
    raise EnvironmentFault(f"there is no run {given!r}: {_instead(places, storage, studies)}", "no-run", run=given)


def _here(given: str) -> Path | None:
    """The place on this machine that a text may name, whatever holds the runs."""
    return None if not given or is_address(given) else Path(os.path.normpath(place_of(given)))


def runs_under(storage: Path, studies: bool = False) -> Iterator[FoundRun]:
    """All runs and sweeps of a storage, name by name, the oldest of each first; without the trials of the sweeps.

    Args:
        studies: tune-ups and scale studies, too.
    """
    for home in sorted(_folders(storage)):
        yield from _runs_in(home, studies)


def trial_of(sweep: FoundRun, trial_id: str) -> FoundRun:
    """One of a sweep's trials. Of a sweep in an object store, it is copied.

    Raises:
        EnvironmentFault: the store cannot be used.
    """
    if sweep.store is None:
        return FoundRun("trial", sweep.folder / TRIALS / trial_id)
    from paceline.storage.read_copies import copied_trial

    store = sweep.store.trial(trial_id)
    return FoundRun("trial", copied_trial(store), store)


def trials_of(sweep: Path) -> list[FoundRun]:
    """The trials of a sweep that have a folder, in the order of their numbers."""
    folders = sorted(_folders(sweep / TRIALS), key=lambda path: (len(path.name), path.name))
    return [FoundRun("trial", path) for path in folders]


def _at(path: Path, studies: bool = False) -> FoundRun | None:
    """Return the run, sweep or trial that a folder is."""
    if (path / RunFolder.FILE).is_file():
        return FoundRun("run", path)
    if (path / SweepFolder.FILE).is_file():
        return FoundRun("sweep", path)
    for kind, file in STUDY_FILES.items() if studies else ():
        if (path / file).is_file():
            return FoundRun(kind, path)
    home = path.parent if path.parent.name == TRIALS else path / TRIALS
    if path.parent.name == TRIALS and path.is_dir() and (home.parent / SweepFolder.FILE).is_file():
        return FoundRun("trial", path)
    if (path.parent / SweepFolder.FILE).is_file() and (path.parent / TRIALS / path.name).is_dir():
        return FoundRun("trial", path.parent / TRIALS / path.name)
    return None


def _in_store(address: str) -> FoundRun:
    from paceline.storage.read_copies import copied_run

    return FoundRun(*copied_run(address))


def _newest(home: Path, studies: bool = False) -> FoundRun | None:
    newest_first = _runs_in(home, studies)[::-1]
    if not newest_first:
        return None
    newest = newest_first[0]
    others = (each for each in newest_first if {each.kind, newest.kind} == {"run", "sweep"})
    return replace(newest, passed_over=next(others, None))


def _runs_in(home: Path, studies: bool = False) -> list[FoundRun]:
    """The runs and sweeps of one name, the oldest first: their ids begin with the time."""
    each = (_at(path, studies) for path in sorted(_folders(home)))
    return [found for found in each if found is not None and found.kind != "trial"]


def _folders(path: Path) -> list[Path]:
    try:
        return [each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")]
    except OSError:
        return []


# --- by MLflow's id ----------------------------------------------------------------------------------------------


def _by_mlflow_id(run_id: str, storage: Path, uri: str | None) -> FoundRun:
    everything = list(_with_trials(storage))
    for found in everything:
        if _word(found.tracking / CURSOR_FILE, "run_id") == run_id:
            return found
    own_id = _own_id(run_id, uri)
    for found in everything if own_id else []:
        if _word(found.tracking / RECORD_FILE, "run_id") == own_id:
            return found
    known = f"is Paceline's {own_id}, which" if own_id else "is MLflow's id of a run that"
    told = f"{run_id} {known} has no folder in {storage}: {_existing_runs_text(storage)}"
    raise EnvironmentFault(told, "no-folder", run=run_id, own_id=own_id)


def _with_trials(storage: Path) -> Iterator[FoundRun]:
    for found in runs_under(storage):
        yield found
        if found.kind == "sweep":
            yield from trials_of(found.folder)


def _word(file: Path, key: str) -> str:
    try:
        return str(json.loads(file.read_bytes()).get(key, ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _own_id(run_id: str, uri: str | None) -> str:
    """Paceline's id of a run of MLflow's; empty when the store does not know, or is not asked."""
    if uri is None:
        return ""
    from paceline.tracking.mlflow_connection import own_id

    return own_id(uri, run_id)


# --- what to say when there is none ------------------------------------------------------------------------------


def _instead(places: list[Path], storage: Path, studies: bool) -> str:
    for place in places:
        around = next((found for each in place.parents if (found := _at(each, studies)) is not None), None)
        if around is not None:
            return f"{place} lies within the {around}; name {around.folder}" if place.exists() else _within(around)
    for place in places:
        if (
            place.is_dir()
            and place != storage
            and (names := [found.folder.parent.name for found in runs_under(place, studies)])
        ):
            return f"{place} holds the runs of {_listed(names)}; name one of them, such as {place / names[-1]}"
        if (others := _runs_in(place.parent, studies)) and place.parent != storage:
            return f"{place.parent} holds {_listed([found.id for found in others])}"
    return _existing_runs_text(storage, studies)


def _within(around: FoundRun) -> str:
    names = [found.id for found in trials_of(around.folder)] if around.kind == "sweep" else []
    return f"the {around} has the trials {_listed(names)}" if names else f"the {around} holds no run"


def _existing_runs_text(storage: Path, studies: bool = False) -> str:
    names = [found.name for found in runs_under(storage, studies)]
    if names:
        return f"{storage} holds the runs of {_listed(names)}; write NAME for the newest, or NAME/ID"
    nothing = "holds no run" if storage.is_dir() else "is not there"
    return f"{storage} {nothing}; go to the folder that runs/ lies in, or name the run's folder"


def _listed(names: list[str]) -> str:
    shown = list(dict.fromkeys(names))
    more = len(shown) - SHOWN_NAMES
    return ", ".join([*shown[-SHOWN_NAMES:], *([f"and {more} more"] if more > 0 else [])])
