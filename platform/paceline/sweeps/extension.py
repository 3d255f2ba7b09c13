"""Extension of a finished sweep by `--extend`, and the reasons that keep it from being extended.

An extension is the same sweep: its folder, its run in MLflow and the ids of its trials stay. Its file gets the new
config, and keeps the sections `sweep` that it had before, from which the ids of all trials follow (`TrialNumbers`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.cluster.resume_rules import config_difference, shown_value
from paceline.cluster.unfinished_runs import ClaimedRun, Intent, claim
from paceline.config.experiment import ExperimentConfig
from paceline.config.hints import show
from paceline.config.overrides import SELECTORS
from paceline.config.shareable import shareable
from paceline.config.space import QUniform, Range, meaning
from paceline.config.sweep import SweepConfig
from paceline.config.sweep_checks import SAMPLES, SCHEDULER, SEEDS, axis_key
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.storage.address import StoreAddress
from paceline.sweeps.planning.planned_trials import NO_VALUE, PlannedTrials, own_value, section_of, trial_count
from paceline.sweeps.sweep_folder import EXTENDED, MAY_DIFFER, SWEEPS, SweepFolder
from paceline.sweeps.sweep_log import SweepLog, trial_entry

MAY_DIFFER_WHEN_EXTENDED = (*MAY_DIFFER, "sweep.space", SAMPLES, SEEDS)
"""Keys and sections of which the first ones change no trial, and the last three only add trials."""
START_NEW = "undo the change, or start another sweep with --new"


@dataclass(frozen=True)
class SweepExtension:
    """A sweep that gets more trials, or an unfinished extension that is continued."""

    folder: SweepFolder
    earlier: tuple[SweepConfig, ...]
    """The sections `sweep` that it had before."""
    is_new: bool
    """False for an unfinished extension."""


def claim_extension(config: ExperimentConfig, storage: Path) -> ClaimedRun[SweepFolder]:
    """Add trials to the newest finished sweep of this name, or continue its unfinished extension.

    Raises:
        EnvironmentFault: the storage is not writable, or a run or sweep of this name is running.
        ConfigError: there is no such sweep, or some of its trials would not belong to it any more.
    """

    def choose(home: Path) -> tuple[SweepFolder, bool]:
        found = find_extension(config, home)
        if found.is_new:
            sections = [section.model_dump(mode="json") for section in found.earlier]
            stored = shareable(config).model_dump(mode="json")
            found.folder.write(status="running", config=stored, **{EXTENDED: sections})
        else:
            found.folder.write(status="running")
        return found.folder, True

    return claim(storage / config.name, choose)


def require_folder(storage: Path | StoreAddress) -> None:
    """Check that sweeps of a storage can be extended.

    Raises:
        ConfigError: it is an object store.
    """
    if isinstance(storage, StoreAddress):
        reason = f"a sweep in an object store cannot be extended, and storage.path is {storage.bare}"
        hint = "start another sweep with --new, or keep sweeps that are to be extended in a folder"
        raise ConfigError([Problem("extend", reason, "storage.path", hint=hint)])


def earlier_sections(config: ExperimentConfig, home: Path, intent: Intent) -> tuple[SweepConfig, ...]:
    """The sections `sweep` that the sweep of a command had before its extensions. Changes nothing.

    Args:
        home: `<storage>/<name>`.

    Raises:
        ConfigError: it is to be extended, and cannot be.
    """
    if intent == "extend":
        return find_extension(config, home).earlier
    unfinished = None if intent == "new" else SWEEPS.newest(home)
    return unfinished.earlier if unfinished is not None else ()


def find_extension(config: ExperimentConfig, home: Path) -> SweepExtension:
    """Find the sweep that gets more trials, and check that those which it has still belong to it. Changes nothing.

    Args:
        home: `<storage>/<name>`.

    Raises:
        ConfigError: there is none, or they do not.
        EnvironmentFault: its file is damaged.
    """
    newest = SWEEPS.last(home)
    if newest is None:
        raise _nothing(f"there is no sweep of {config.name!r} to extend", "leave --extend out to start one")
    content = newest.read()
    is_finished = content.get("status") == "finished"
    if not is_finished and EXTENDED not in content:
        reason = f"the newest sweep of {config.name!r}, {newest.run_id}, is unfinished; --extend adds to a finished one"
        raise _nothing(reason, "leave --extend out to continue it")
    if not SWEEPS.difference(newest, config) and not is_finished:
        return SweepExtension(newest, newest.earlier, is_new=False)
    whole = f"the {'finished sweep' if is_finished else 'unfinished extension'} {newest.run_id} of {config.name!r}"
    before = _require_same_trials(config, content["config"], whole)
    return SweepExtension(newest, (*newest.earlier, before), is_new=True)


def add_new_keys(folder: Path, config: ExperimentConfig, made: PlannedTrials) -> None:
    """Write the values that trials have of keys which an extension varies for the first time: axes, and the seed.

    Args:
        made: the trials of the extended sweep.

    Raises:
        OSError: the journal cannot be written to.
    """
    params = {planned.id: planned.params for planned in made.planned_trials}
    params |= {trial.id: trial.params for trial in made.skipped}
    seed = {"seed": config.seed} if section_of(config).seeds > 1 else {}
    log = SweepLog(folder)
    try:
        asked = {id: params.get(id, {**trial.params, **seed}) for id, trial in log.history.trials.items()}
        log.append(
            [
                trial_entry(replace(trial, params={**asked[id], **trial.params}))
                for id, trial in log.history.trials.items()
                if asked[id].keys() - trial.params.keys()
            ]
        )
    finally:
        log.close()


def _require_same_trials(config: ExperimentConfig, stored: Mapping[str, Any], whole: str) -> SweepConfig:
    """Check that the config asks for all trials of a sweep and for more; returns the section that it had."""
    section = section_of(config)
    try:
        before = SweepConfig.model_validate(stored.get("sweep"))
    except ValueError:
        raise EnvironmentFault(f"{whole} has a config of another version of Paceline", "other-version") from None
    difference = config_difference(stored, config.model_dump(mode="json"), MAY_DIFFER_WHEN_EXTENDED)
    problems = [
        _problem(f"{whole} has {shown_value(key, old)}, this config has {shown_value(key, new)}", key)
        for key, (old, new) in difference.items()
    ]
    problems += [replace(each, reason=f"{whole} {each.reason}") for each in _fewer_trials(config, before, section)]
    if problems:
        raise ConfigError(problems)
    if trial_count(section) <= trial_count(before):
        raise _not_more(section, trial_count(before), whole)
    return before


def _fewer_trials(config: ExperimentConfig, old: SweepConfig, new: SweepConfig) -> Iterator[Problem]:
    """Yield the problems that keep trials of a sweep from belonging to the extended one."""
    if new.scheduler == "pbt":
        yield _problem("is a population of pbt, whose trials continue from each other and end together", SCHEDULER)
    for axis in old.space.keys() | new.space.keys():
        key = axis_key(axis)
        if axis not in new.space:
            yield _problem("has this axis, and this config has not", key)
        elif axis not in old.space:
            if not _has_own_value(config, axis, old, new):
                reason = "has no such axis, and its trials have none of these values"
                hint = "add the config's own value to the list, or start another sweep with --new"
                yield Problem("extend", reason, key, hint=hint)
        else:
            yield from _narrower(key, old.space[axis], new.space[axis])
    for key, before, after in ((SEEDS, old.seeds, new.seeds), (SAMPLES, old.num_samples, new.num_samples)):
        if before is not None and after is not None and after < before:
            yield _problem(f"has {before:,}, and {after:,} are fewer", key)


def _has_own_value(config: ExperimentConfig, axis: str, old: SweepConfig, new: SweepConfig) -> bool:
    """Return True if the trials of a grid all have one of the values of a new axis: the config's own."""
    section = axis.partition(".")[0]
    if new.search != "grid" or {section, *(f"{section}.{name}" for name in SELECTORS)} & old.space.keys():
        return False  # with another component, the config's own value may not be that of the trial
    return own_value(config, axis, new.lists[axis]) is not NO_VALUE


def _narrower(key: str, old: list[Any] | Range, new: list[Any] | Range) -> Iterator[Problem]:
    if isinstance(old, list) and isinstance(new, list):
        kept = {meaning(value) for value in new}
        gone = [shown_value(key, value) for value in old if meaning(value) not in kept]
        if gone:
            yield _problem(f"has trials with {', '.join(gone)}, which this config leaves out", key)
    elif isinstance(old, list) or isinstance(new, list) or type(old) is not type(new):
        yield _problem(f"has {_kind(old)} here, this config has {_kind(new)}", key)
    elif new.bounds[0] > old.bounds[0] or new.bounds[1] < old.bounds[1]:
        bounds = f"[{', '.join(map(show, old.bounds))}]"
        yield _problem(f"has values from {bounds}, and this config does not allow all of them", key)
    elif isinstance(old, QUniform) and isinstance(new, QUniform) and not _is_same_grid(old, new):
        yield _problem("has values with another distance or start, which this range does not contain", key)


def _is_same_grid(old: QUniform, new: QUniform) -> bool:
    """Return True if the values of one are values of the other, which reaches as far."""
    steps = (old.bounds[0] - new.bounds[0]) / old.step
    return old.step == new.step and abs(steps - round(steps)) < 1e-9 * max(1.0, abs(steps))


def _kind(axis: list[Any] | Range) -> str:
    return "a list" if isinstance(axis, list) else next(iter(type(axis).model_fields))


def _not_more(section: SweepConfig, known: int, whole: str) -> ConfigError:
    reason = f"{whole} has {known:,} trials, and this config asks for no more"
    if section.search == "grid":
        return _nothing(reason, "add values to sweep.space, or raise sweep.seeds", "sweep.space")
    hint = f"raise the number, such as {SAMPLES}={2 * (section.num_samples or 1)}, or sweep.seeds"
    return _nothing(reason, hint, SAMPLES)


def _problem(reason: str, key: str) -> Problem:
    return Problem("extend", reason, key, hint=START_NEW)


def _nothing(reason: str, hint: str, key: str = "name") -> ConfigError:
    return ConfigError([Problem("nothing-to-extend", reason, key, hint=hint)])
