"""Sweeps in an object store: claim one on this machine, in its working copy, and in the store.

As of a run, see `cluster.stored_runs`: the newest sweep of the name by its sweep.json, its log and records, the keeper.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.cluster.run_identity import Intent, new_run, nothing_to_resume
from paceline.cluster.stored_runs import ClaimedStoredRun, HeldName, Tell, newest_stored, note_claim
from paceline.config.experiment import ExperimentConfig
from paceline.durable import write_durably
from paceline.private_files import make_folder
from paceline.storage.address import StoreAddress
from paceline.storage.remote_folder import RemoteFolder
from paceline.storage.run_keeper import RunKeeper
from paceline.storage.working_copies import LAUNCH, TRIALS, RunStore
from paceline.sweeps.sweep_copy import SweepCopy
from paceline.sweeps.sweep_folder import SWEEPS, SweepFolder
from paceline.tracking.stored_length import note_stored


def unfinished_content(storage: StoreAddress, name: str) -> Mapping[str, Any]:
    """Return what the file of the newest sweep of a name says, when that is unfinished; else nothing.

    Raises:
        EnvironmentFault: the store cannot be used, or the file is damaged.
    """
    found = _newest_unfinished(RunStore(str(storage.pinned()), name, ""))
    return {} if found is None else found[1]


def claim_stored_sweep(
    config: ExperimentConfig, storage: StoreAddress, intent: Intent, tell: Tell
) -> ClaimedStoredRun[SweepFolder]:
    """Continue the newest unfinished sweep of this name, or start a new one, in an object store.

    Args:
        tell: is called with what is waited for.

    Raises:
        EnvironmentFault: the store or the working copy cannot be used, or something of this name is running.
        ConfigError: see `claim_sweep`.
    """
    name = HeldName.hold(storage, config.name, tell)
    with name.released_on_error():
        run, copy, resumed = _choose(config, name, intent)
    keeper = RunKeeper(run, run.folder / SweepFolder.FILE, copy, name.lease)
    keeper.start()
    return ClaimedStoredRun(SweepFolder(run.folder), resumed, name.lock, keeper=keeper)


def _choose(config: ExperimentConfig, name: HeldName, intent: Intent) -> tuple[RunStore, SweepCopy, bool]:
    found = None if intent == "new" else _newest_unfinished(name.base)
    if found is None and intent == "resume":
        raise nothing_to_resume(SWEEPS.word, name.base.home)
    if found is None:
        return _begin(config, name)
    run, content = found
    launch_here = str(SweepFolder(run.folder).read().get(LAUNCH, ""))
    _show_here(run, content, launch_here)
    if not SWEEPS.is_continued(SweepFolder(run.folder), config, intent):
        return _begin(config, name)
    copy = SweepCopy(run)
    if launch_here == content.get(LAUNCH) and copy.take_over(may_be_ahead=True):
        run = replace(run, trusted=(launch_here,))
    else:
        copy = SweepCopy(run)
        copy.take_over(may_be_ahead=False)
    note_claim(run, SweepFolder.FILE, {**content, "status": "running"})
    return run, copy, True


def _begin(config: ExperimentConfig, name: HeldName) -> tuple[RunStore, SweepCopy, bool]:
    folder = new_run(name.home, config, SweepFolder)
    run = replace(name.base, run_id=folder.run_id)
    note_stored(folder.tracking, 0)
    note_claim(run, SweepFolder.FILE, folder.read())
    return run, SweepCopy(run), False


def _newest_unfinished(base: RunStore) -> tuple[RunStore, dict[str, Any]] | None:
    found = newest_stored(base, SweepFolder.FILE)
    return None if found is None or found[1].get("status") in SWEEPS.over else found


def _show_here(run: RunStore, content: Mapping[str, Any], launch_here: str) -> None:
    """Have the sweep's file and the names of its trials on this machine, as `SWEEPS` looks at them.

    The launch in the file stays that of the working copy, which is not brought up to date yet.
    """
    data = json.dumps({**content, LAUNCH: launch_here}, indent=1).encode()
    write_durably(run.folder / SweepFolder.FILE, data)
    for trial_id in (RemoteFolder(run.address) / TRIALS).folders():
        make_folder(SweepFolder(run.folder).trials / trial_id)
