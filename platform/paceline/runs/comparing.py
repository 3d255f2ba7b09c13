"""Several runs side by side: what differs in their configs, their metrics over seeds, and their speeds."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import isfinite
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from paceline.cluster.resume_rules import is_below, shown_value
from paceline.config.lightning import unused_sections
from paceline.errors import ConfigError, EnvironmentFault, Problem
from paceline.redaction import redact, redact_values
from paceline.reports.text import counted
from paceline.runs.finding import FoundRun, find_run
from paceline.runs.reopening import result_of
from paceline.tracking.journal import JOURNAL_FILE, Journal
from paceline.tracking.run_record import flatten
from paceline.tracking.speed_stamps import differences, read_stamp

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLACES = ("name", "storage", "tracking")
"""Keys and sections of the config that say where a run is kept, not what it does."""
SEED = "seed"


@dataclass(frozen=True)
class Value:
    """A metric of the runs of a group."""

    mean: float
    deviation: float | None
    """Sample standard deviation over the seeds; None for a single one."""
    count: int
    """Number of seeds. Several runs of one seed count as one, with their mean."""

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.deviation is None else f"{self.mean:.4g} ± {self.deviation:.2g}"


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    label: str
    config: Mapping[str, Any]
    """With dotted keys."""
    metrics: Mapping[str, float]
    samples_per_second: float
    stamp: Mapping[str, Any]
    """Conditions that its speed was measured in, see `tracking.comparing`."""
    points: Sequence[tuple[str, float, int]]
    """All logged values: key, value, step."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests of the user's modules at the end of the run; empty without any, or where they cannot be read."""

    @property
    def seed(self) -> Any:
        """The seed of its config."""
        return self.config.get(SEED)


@dataclass(frozen=True)
class RunGroup:
    """Runs of one config and one code that differ in their seed at most."""

    members: tuple[Member, ...]

    @property
    def label(self) -> str:
        """The runs, such as `mnist/20261124-180731-548a55`."""
        seeds = len({each.seed for each in self.members})
        repeats = len(self.members) - seeds
        more = [counted(seeds - 1, "more seed")] if seeds > 1 else []
        more += [counted(repeats, "repeat")] if repeats else []
        return " and ".join([self.members[0].label, *more])

    def value(self, metric: str) -> Value | None:
        """Return a metric over the runs that have it; None if none does."""
        return _value([(each.seed, each.metrics[metric]) for each in self.members if metric in each.metrics])

    @property
    def samples_per_second(self) -> Value | None:
        """Training speed over all workers; None where it was not measured."""
        speeds = [(each.seed, each.samples_per_second) for each in self.members]
        return _value([(seed, speed) for seed, speed in speeds if speed > 0])


def _value(found: Sequence[tuple[Any, float]]) -> Value | None:
    """Return the value of a group, from one of each run with its seed."""
    if not found:
        return None
    by_seed: dict[Any, list[float]] = {}
    for seed, value in found:
        by_seed.setdefault(seed, []).append(value)
    values = [fmean(each) for each in by_seed.values()]
    is_spread = len(values) > 1 and all(map(isfinite, values))
    return Value(fmean(values), stdev(values) if is_spread else None, len(values))


@dataclass(frozen=True)
class RunComparison:
    """Result of `compare`."""

    groups: tuple[RunGroup, ...]

    @cached_property
    def config(self) -> dict[str, tuple[Any, ...]]:
        """Fields that differ: dotted key to the value of each group, None where it has no such field."""
        configs = [group.members[0].config for group in self.groups]
        keys = sorted({key for config in configs for key in config})
        values = {key: tuple(config.get(key) for config in configs) for key in keys}
        return {key: each for key, each in values.items() if any(value != each[0] for value in each) and _is_shown(key)}

    @cached_property
    def code(self) -> dict[str, tuple[str | None, ...]]:
        """The user's modules that differ: name to the digest of each group, None where it has no such module."""
        codes = [group.members[0].code for group in self.groups]
        names = sorted({name for first, second in combinations(codes, 2) for name in _changed(first, second)})
        return {name: tuple(code.get(name) for code in codes) for name in names}

    @cached_property
    def metrics(self) -> dict[str, tuple[Value | None, ...]]:
        """The last value of each `val/` and `train/` metric of each group."""
        names = sorted({name for group in self.groups for each in group.members for name in each.metrics})
        shown = [name for name in names if name.startswith(("val/", "train/"))]
        return {name: tuple(group.value(name) for group in self.groups) for name in shown}

    @cached_property
    def speed_differences(self) -> list[str]:
        """Reasons why the speeds cannot be compared; empty if they can."""
        members = [each for group in self.groups for each in group.members]
        found = [
            redact(difference.of_runs(first.label, second.label))
            for first, second in combinations(members, 2)
            for difference in differences(first.stamp, second.stamp)
        ]
        return list(dict.fromkeys(found))

    @property
    def is_speed_comparable(self) -> bool:
        """True if all speeds were measured under the same conditions."""
        return not self.speed_differences

    def plot(self, metric: str | None = None) -> "Figure":
        """Draw a metric over the optimizer steps, a line for each run and a colour for each group.

        Args:
            metric: by default `val/loss` if all groups have it, else the first that they share.

        Raises:
            ConfigError: no run has logged such a metric.
        """
        from paceline.reports.figure import Picture, dress

        chosen = metric or self._shared_metric()
        figure = Picture(7.0, 4.0)
        axes = figure.add_subplot()
        for number, group in enumerate(self.groups):
            for index, member in enumerate(group.members):
                points = [(step, value) for key, value, step in member.points if key == chosen]
                if points:
                    label = group.label if index == 0 else None
                    axes.plot(*zip(*points, strict=True), color=f"C{number % 10}", label=label, alpha=0.9)
        if not axes.lines:
            known = ", ".join(self.metrics) or "none"
            raise ConfigError(
                [Problem("unknown-metric", f"no run has logged {chosen!r}", hint=f"they have logged {known}")]
            )
        axes.set(xlabel="optimizer step", ylabel=chosen)
        axes.legend(fontsize="small")
        dress(axes)
        return figure

    def save_plot(self, file: Path, metric: str | None = None) -> None:
        """Write the picture of `plot` to a file.

        Raises:
            ConfigError: the file's ending is none of a picture; or see `plot`.
        """
        figure = self.plot(metric)
        kinds = figure.canvas.get_supported_filetypes()
        if file.suffix[1:] not in kinds:
            hint = "let it end with .png, .svg or .pdf"
            raise ConfigError([Problem("picture-format", f"{file.name!r} is not a picture's name", "plot", hint=hint)])
        figure.savefig(file)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "groups": [[each.label for each in group.members] for group in self.groups],
            "config": {key: [redact_values({key: each})[key] for each in row] for key, row in self.config.items()},
            "code": {name: list(row) for name, row in self.code.items()},
            "metrics": {name: [_plain(each) for each in row] for name, row in self.metrics.items()},
            "samples_per_second": [_plain(group.samples_per_second) for group in self.groups],
            "is_speed_comparable": self.is_speed_comparable,
            "speed_differences": self.speed_differences,
        }

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Return the comparison as tables: heading and rows."""
        heading = [str(number) for number in range(1, len(self.groups) + 1)]
        runs = [[str(number), group.label] for number, group in enumerate(self.groups, 1)]
        config = [[key, *(shown_value(key, each) for each in row)] for key, row in self.config.items()]
        code = [[name, *(each or "" for each in row)] for name, row in self.code.items()]
        metrics = [[name, *("" if each is None else str(each) for each in row)] for name, row in self.metrics.items()]
        speeds = [group.samples_per_second for group in self.groups]
        if self.is_speed_comparable:
            metrics.append(["samples/s", *("" if each is None else f"{each.mean:,.0f}" for each in speeds)])
        found = [
            (["", "run"], runs),
            (["config", *heading], config),
            (["code", *heading], code),
            (["metric", *heading], metrics),
        ]
        return [(titles, rows) for titles, rows in found if rows]

    def _shared_metric(self) -> str:
        shared = [name for name, row in self.metrics.items() if all(each is not None for each in row)]
        return "val/loss" if "val/loss" in shared or not shared else shared[0]

    def __repr__(self) -> str:
        blocks = []
        for titles, rows in self.tables():
            widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
            lines = [
                "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in (titles, *rows)
            ]
            blocks.append("\n".join(lines))
        return "\n\n".join(blocks)


def _changed(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """Return the modules that both have, and that differ."""
    return [name for name in first.keys() & second.keys() if first[name] != second[name]]


def _is_shown(key: str) -> bool:
    return not is_below(key, PLACES)


def _plain(value: Value | None) -> dict[str, Any] | None:
    """Return a value as JSON; null for one that is not finite."""
    if value is None:
        return None
    mean = value.mean if isfinite(value.mean) else None
    return {"mean": mean, "deviation": value.deviation, "count": value.count}


def compare(*runs: str | Path, storage: str | Path | None = None) -> RunComparison:
    """Compare runs: differences of their configs and code, metrics over seeds, and speeds where these can be compared.

    Runs of the same code whose configs differ in the seed at most are one group. Several runs of one seed count as one.

    Args:
        runs: two or more, each a folder, `NAME` (its newest run), `NAME/ID`, `NAME/ID/TRIAL`, or MLflow's id.
        storage: the folder that holds the runs, or its address; by default PACELINE_STORAGE, else `runs` in the working
            folder.

    Raises:
        EnvironmentFault: there is no such run, or it is a sweep.
        ConfigError: fewer than two runs are named; the same run named again does not count.
    """
    named = {found.folder: found for found in (find_run(run, storage).preferring("run") for run in runs)}
    if len(named) < 2:
        count = f"{len(named)} run" if len(named) == 1 else f"{len(named)} runs"
        hint = "name two or more, such as mnist/20261124-180731-548a55"
        raise ConfigError([Problem("too-few-runs", f"{count} cannot be compared", "runs", hint=hint)])
    groups: dict[tuple[tuple[str, str], ...], list[list[Member]]] = {}
    for found in named.values():
        if found.kind == "sweep":
            hint = f"name its trials, such as {found.name}/{found.id}/0000"
            raise EnvironmentFault(f"{found.folder} is a sweep: {hint}", "other-kind", kind="sweep")
        member = _member(found)
        own = {key: repr(value) for key, value in member.config.items() if key != SEED and _is_shown(key)}
        alike = groups.setdefault(tuple(sorted(own.items())), [])
        of_its_code = next((members for members in alike if not _changed(members[0].code, member.code)), None)
        if of_its_code is None:
            alike.append([member])
        else:
            of_its_code.append(member)
    return RunComparison(tuple(RunGroup(tuple(members)) for alike in groups.values() for members in alike))


def _member(found: FoundRun) -> Member:
    result = result_of(found)
    label = str(found).partition(" ")[2]
    return Member(
        label=label,
        config=flatten(result.config.model_dump(mode="json", exclude=unused_sections(result.config))),
        metrics=result.metrics,
        samples_per_second=result.samples_per_second,
        stamp=_stamp(found),
        points=result.points,
        code=_code(Path(result.checkpoint)) if result.checkpoint else {},
    )


def _code(checkpoint: Path) -> Mapping[str, str]:
    """The digests of the user's code, from a checkpoint in a folder; empty where there are none."""
    from paceline.engine.manifest import STATE
    from paceline.engine.user_code import KEY

    with suppress(OSError, ValueError):
        return dict(json.loads((checkpoint / STATE).read_text()).get(KEY, {}))
    return {}


def _stamp(found: FoundRun) -> Mapping[str, Any]:
    """The conditions of the run's speed, from its journal; empty where they were not recorded."""
    tags: dict[str, str] = {}
    for entry in Journal(found.tracking / JOURNAL_FILE).read():
        if entry.kind == "tags":
            tags.update(entry.content["tags"])
    return read_stamp(tags)
