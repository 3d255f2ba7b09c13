"""Resolves `model.weights` to a file or checkpoint, and to a name that means the same later.

RUN = NAME | NAME/ID | NAME/ID/TRIAL | folder or address of a run, a checkpoint or an export        or a FILE

A name alone is the newest finished run of it. It is replaced by NAME/ID when a run is claimed.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.run_folder import storage_of
from paceline.config.experiment import ExperimentConfig
from paceline.engine.manifest import MANIFEST, BrokenCheckpoint, numbered, verify
from paceline.errors import ConfigError, Problem
from paceline.places import place_of
from paceline.storage.address import CHECKPOINTS, STATUS, StoreAddress, is_address, parse

KEY = "model.weights"
WEIGHTS = "model.safetensors"
SHOWN_NAMES = 8
"""Maximum number of names that an error lists."""


@dataclass(frozen=True)
class FoundWeights:
    """A file with weights, or a folder with `model.safetensors`."""

    place: Path
    pinned: str
    """Name, path or address that means the same weights, whatever is trained later."""


def find_weights(text: str, storage: Path | StoreAddress) -> FoundWeights:
    """Find the weights that a text names. A file or a folder of that name takes precedence over a run of the storage.

    Args:
        text: see the head of this file.
        storage: folder or object store of the runs.

    Raises:
        ConfigError: the weights do not exist, or the checkpoint is broken.
        EnvironmentFault: the object store cannot be used.
    """
    if is_address(text):
        return _in_store(parse(text, KEY))
    places = [place_of(text)]
    if isinstance(storage, Path) and not Path(text).is_absolute():
        places.append(storage / text)
    for place in places:
        if (found := _at(place, text)) is not None:
            return found
    if isinstance(storage, StoreAddress) and not _looks_like_a_file(text):
        found = _in_store(storage / text)
        prefix = str(storage / text)
        is_below = found.pinned.startswith(prefix)
        return FoundWeights(found.place, text + found.pinned.removeprefix(prefix)) if is_below else found
    raise _none(text, storage)


def weights_finder(config: ExperimentConfig) -> Callable[[str], Path]:
    """Return the function that finds weights for the engine, on each worker."""
    return lambda text: find_weights(text, storage_of(config)).place


def with_initial_weights(config: ExperimentConfig, init_from: str | Path | None) -> ExperimentConfig:
    """Return the config with other weights to start from; unchanged if `init_from` is None."""
    return config if init_from is None else config.with_overrides({KEY: str(init_from)})


def pin_weights(config: ExperimentConfig, of_sweep: bool = False) -> ExperimentConfig:
    """Return the config with NAME/ID in place of NAME in `model.weights`.

    Args:
        of_sweep: for the trials of its sweep: `model.weights` may be an axis, whose values are pinned in its place.

    Raises:
        ConfigError: there are no such weights.
        EnvironmentFault: the object store cannot be used.
    """
    storage = storage_of(config)  # an address that cannot be used is an error anyway
    return _mapped(config, lambda text: find_weights(text, storage).pinned, of_sweep)


def adopt_weights(config: ExperimentConfig, stored: Mapping[str, Any], of_sweep: bool = False) -> ExperimentConfig:
    """Return the config with the pinned weights of an earlier launch, where it names the same run.

    Args:
        stored: the dumped config of that launch.
    """
    known = [(stored.get("model") or {}).get("weights"), *_list((stored.get("sweep") or {}).get("space") or {})]
    pinned = [text for text in known if isinstance(text, str)]
    return _mapped(config, lambda text: next((each for each in pinned if _pins(each, text)), text), of_sweep)


def _pins(pinned: str, text: str) -> bool:
    (place, _, query), (asked, _, asked_query) = pinned.partition("?"), text.partition("?")
    return query == asked_query and place.startswith(f"{asked.rstrip('/')}/")


def _mapped(config: ExperimentConfig, change: Callable[[str], str], of_sweep: bool) -> ExperimentConfig:
    axis = _list(config.sweep.space) if of_sweep and config.sweep is not None else []
    if axis and config.sweep is not None:
        changed_axis = [change(each) if isinstance(each, str) else each for each in axis]
        is_same = changed_axis == axis
        return config if is_same else config.with_overrides({"sweep.space": {**config.sweep.space, KEY: changed_axis}})
    text = config.model.initial_weights
    changed = None if text is None else change(text)
    return config if changed == text else config.with_overrides({KEY: changed})


def _list(space: Mapping[str, Any]) -> list[Any]:
    """Return the values of the axis `model.weights`, if it is a list; else none."""
    values = space.get(KEY)
    return list(values) if isinstance(values, list) else []


# --- in folders --------------------------------------------------------------------------------------------------


def _at(place: Path, text: str) -> FoundWeights | None:
    if place.is_file():
        return FoundWeights(place, text)
    if (place / WEIGHTS).is_file():
        if (place / MANIFEST).is_file():
            _require_whole(place)
        return FoundWeights(place, text)
    if (place / STATUS).is_file() or (place / CHECKPOINTS).is_dir():
        return _of_run(place, text)
    if (place.parent / "trials" / place.name / CHECKPOINTS).is_dir():
        return _of_run(place.parent / "trials" / place.name, text)
    finished = (each for each in _runs_in(place) if _status(each) == "finished")
    newest = next(finished, None)
    return None if newest is None else _of_run(newest, f"{text.rstrip('/')}/{newest.name}")


def _of_run(folder: Path, text: str) -> FoundWeights:
    """Return the newest whole checkpoint of a run."""
    for _, path in numbered(folder / CHECKPOINTS):
        with suppress(BrokenCheckpoint):
            verify(path)
            # a run that is not finished may save newer ones
            is_final = _status(folder) == "finished"
            return FoundWeights(path, text if is_final else f"{text.rstrip('/')}/{CHECKPOINTS}/{path.name}")
    reason = f"the run in {folder} has no whole checkpoint"
    raise ConfigError([Problem("no-weights", reason, KEY, hint="name a run that has saved one")])


def _require_whole(checkpoint: Path) -> None:
    try:
        verify(checkpoint)
    except BrokenCheckpoint as error:
        reason = f"{checkpoint} is broken: {error}"
        raise ConfigError([Problem("no-weights", reason, KEY, hint="name another checkpoint of the run")]) from None


def _runs_in(home: Path) -> list[Path]:
    """Return the runs of one name, the newest first: their ids begin with the time."""
    try:
        return sorted((each for each in home.iterdir() if (each / STATUS).is_file()), reverse=True)
    except OSError:
        return []


def _status(run: Path) -> str:
    try:
        return str(json.loads((run / STATUS).read_bytes()).get("status", ""))
    except (OSError, ValueError, AttributeError):
        return ""


# --- in an object store ------------------------------------------------------------------------------------------


def _in_store(address: StoreAddress) -> FoundWeights:
    from paceline.storage.read_copies import bring, brought, runs_below, trial_at
    from paceline.storage.remote_folder import RemoteFolder
    from paceline.storage.stored_checkpoints import StoredCheckpoints

    if address.parent.name == CHECKPOINTS:
        return FoundWeights(brought(str(address)), str(address))
    if (trial := trial_at(address)) is not None:
        for step in StoredCheckpoints(trial).whole_steps():
            with suppress(BrokenCheckpoint):
                return FoundWeights(bring(trial, step), str(trial.shown_address() / CHECKPOINTS / f"step-{step}"))
    for run in reversed(list(runs_below(address))):
        content = json.loads(RemoteFolder(run.address).read(STATUS) or b"{}")
        is_named, is_final = run.run_id == address.name, content.get("status") == "finished"
        if not (is_named or is_final):
            continue
        pinned = address if is_named else address / run.run_id
        for step, _, _ in StoredCheckpoints(run).kept():
            with suppress(BrokenCheckpoint):
                place = bring(run, step)
                return FoundWeights(place, str(pinned if is_final else pinned / CHECKPOINTS / f"step-{step}"))
    raise _none(str(address), address.parent)


# --- errors for missing weights ----------------------------------------------------------------------------------


def _looks_like_a_file(text: str) -> bool:
    return Path(text).suffix in (".safetensors", ".pt", ".pth", ".bin", ".ckpt") or text.startswith((".", "/", "~"))


def _none(text: str, storage: Path | StoreAddress) -> ConfigError:
    if _looks_like_a_file(text) or isinstance(storage, StoreAddress):
        kind = "file" if _looks_like_a_file(text) else "finished run"
        return ConfigError([Problem("no-weights", f"there is no {kind} {text}", KEY, hint="write its whole path")])
    trials = _trials_in(storage / text)
    if trials:
        sweep, trial = trials[0].parent.parent, trials[0].name
        reason = f"{text!r} is a sweep, of which each trial has weights of its own"
        hint = f"name a trial, such as {sweep.relative_to(storage)}/{trial}"
        return ConfigError([Problem("no-weights", reason, KEY, hint=hint)])
    unfinished = [each.name for each in _runs_in(storage / text)]
    if unfinished:
        reason = f"no run of {text!r} in {storage} is finished"
        hint = f"name one that is not, such as {text}/{unfinished[0]}, or train it to its end"
        return ConfigError([Problem("no-weights", reason, KEY, hint=hint)])
    names = sorted(each.name for each in _folders(storage) if _runs_in(each))
    more = [f"and {len(names) - SHOWN_NAMES} more"] if len(names) > SHOWN_NAMES else []
    there = f"{storage} has the runs of {', '.join([*names[:SHOWN_NAMES], *more])}" if names else "it holds no run"
    reason = f"{text!r} is neither a file nor a run in {storage}"
    return ConfigError([Problem("no-weights", reason, KEY, hint=f"{there}; write NAME, NAME/ID or the path of a file")])


def _trials_in(place: Path) -> list[Path]:
    """Return the folders of trials that have checkpoints, of a sweep or of all sweeps of a name."""
    found = (*place.glob(f"trials/*/{CHECKPOINTS}"), *place.glob(f"*/trials/*/{CHECKPOINTS}"))
    return sorted(each.parent for each in found)


def _folders(path: Path) -> list[Path]:
    try:
        return [each for each in path.iterdir() if each.is_dir()]
    except OSError:
        return []
