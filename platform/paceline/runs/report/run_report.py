"""The report of a run, or of one trial of a sweep."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.final_report import read_outcome
from paceline.cluster.run_folder import RunFolder
from paceline.direction import default_mode
from paceline.engine.manifest import MANIFEST, numbered
from paceline.errors import EnvironmentFault
from paceline.reports.page import Fact, Page, PageSection, Tile, render
from paceline.reports.text import counted, metric_text, seconds_text, time_text
from paceline.runs.finding import FoundRun
from paceline.runs.report.costs import cost_tile, cost_values
from paceline.runs.report.origin import origin_values
from paceline.runs.report.run_charts import run_charts
from paceline.runs.report.speed_comparison import stamp_facts, stragglers
from paceline.tracking import metrics
from paceline.tracking.costs import Ledger
from paceline.tracking.provenance import config_not_in_commit
from paceline.tracking.recorded_run import CONFIG_FILE, RecordedRun, ledger_of, read_run
from paceline.tracking.run_record import ARTIFACT_FOLDER
from paceline.tracking.thinned_curves import Place, ThinnedCurve

LONGEST_REASON = 4000
MOST_STEPS = 5
"""Steps that a sentence names."""
OF_TRAINING = ("train/", "val/")
"""The metrics of the model, rather than of the machine, begin with these."""
_ELSEWHERE = ("cost/", "axis/")
"""Metrics that begin so have another place in the report."""
_STATUS = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "interrupted", "RUNNING": "running"}
_TILES = {
    metrics.SAMPLES_PER_SECOND_OVERALL: ("samples/s", "without warm-up"),
    metrics.SAMPLES_PER_SECOND: ("samples/s at the end", ""),
    metrics.PEAK_MEMORY_BYTES: ("peak memory", ""),
}
_DERIVED = "derived."


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint folder."""

    step: int
    folder: Path
    size_bytes: int | None
    """Total size of its files according to its manifest, in bytes; None if the manifest cannot be read."""
    weights_sha256: str
    """SHA-256 of the file with the weights; empty if unknown."""


@dataclass(frozen=True)
class AttemptRow:
    """One launch of a run that was resumed."""

    number: int
    began_ms: int | None
    first_step: int
    last_step: int
    seconds: float | None
    state: str


@dataclass(frozen=True)
class MetricRow:
    """A row of the table of metrics."""

    key: str
    curve: ThinnedCurve

    @property
    def best(self) -> Place | None:
        """Step and value; None for a metric that is neither better high nor better low."""
        if not (self.key.startswith(OF_TRAINING) or self.key == metrics.SAMPLES_PER_SECOND):
            return None
        return self.curve.lowest if default_mode(self.key) == "min" else self.curve.highest


@dataclass(frozen=True)
class RunReport:
    """Contents of the folder of a run, without secrets. The template `run.html` shows them."""

    kind: str
    """`run` or `trial`."""
    id: str
    name: str
    folder: Path
    status: str
    """`finished`, `failed`, `interrupted`, `running`; for a trial also `pruned` and so on."""
    recorded: RecordedRun
    outcome: Mapping[str, Any]
    """Result as rank 0 reported it; empty where it did not."""
    ledger: Ledger | None
    checkpoints: Sequence[Checkpoint]
    """The newest first."""

    @property
    def started_ms(self) -> int | None:
        """Time of the first launch: the id of a run begins with it."""
        return self.recorded.started_ms(self.id if self.kind == "run" else "")

    @property
    def seconds(self) -> float | None:
        """From the first launch to the end, or to the newest point; None where either is not known."""
        return self.recorded.seconds_since(self.started_ms)

    @property
    def steps(self) -> int:
        """Optimizer steps, by the newest points."""
        return int(max((curve.newest[0] for curve in self.recorded.curves.values()), default=0))

    @property
    def rows(self) -> list[MetricRow]:
        """The metrics, those of the model first."""
        keys = [key for key in self.recorded.curves if not key.startswith(_ELSEWHERE)]
        ordered = sorted(keys, key=lambda key: (not key.startswith(OF_TRAINING), key))
        return [MetricRow(key, self.recorded.curves[key]) for key in ordered]

    @property
    def results(self) -> str:
        """Return one line with the best value of each validation metric; without such metrics, the training loss."""
        rows = [row for row in self.rows if row.key.startswith("val/")]
        rows = rows or [row for row in self.rows if row.key == metrics.TRAIN_LOSS]
        return "; ".join(map(self._result, rows))

    def _result(self, row: MetricRow) -> str:
        last = f"{row.key} {metric_text(row.curve.newest[1], row.key)}"
        if row.best is None or row.best[1] == row.curve.newest[1]:
            return last
        step, value = row.best
        kept = {each.step for each in self.checkpoints}
        is_gone = kept and row.key.startswith("val/") and step not in kept
        missing = " (no checkpoint of it is kept)" if is_gone else ""
        return f"{last}, best {metric_text(value, row.key)} at step {step:,.0f}{missing}"

    @property
    def resumed(self) -> str:
        """Number and steps of its resumptions, as `resumed after step 87`; empty for a single attempt."""
        steps = [f"{each.step:,}" for each in self.recorded.resumes]
        if not steps:
            return ""
        often = f"resumed {len(steps):,} times, " if len(steps) > 1 else "resumed "
        more = f" and {len(steps) - MOST_STEPS:,} more" if len(steps) > MOST_STEPS else ""
        return f"{often}after {'steps' if len(steps) > 1 else 'step'} {', '.join(steps[:MOST_STEPS])}{more}"

    @property
    def changed(self) -> str:
        """Params that were changed when it was resumed, each with its old and new value."""
        lines = self.recorded.tags.get(metrics.CHANGED_PARAMS, "").splitlines()
        return "; ".join(line for line in lines if line.strip())

    @property
    def diverged(self) -> str:
        """Place where it diverged; empty where it did not."""
        if tag := self.recorded.tags.get(metrics.DIVERGED):
            return tag
        for key, curve in sorted(self.recorded.curves.items()):
            if curve.first_odd is not None and key.startswith(OF_TRAINING):
                return f"{key} is not finite at step {curve.first_odd:,.0f}"
        return ""

    @property
    def reason(self) -> str:
        """Reason why it did not finish; empty where it did."""
        return self.recorded.tags.get(metrics.STATUS_REASON, "")[:LONGEST_REASON]

    @property
    def attempts(self) -> list[AttemptRow]:
        """The launches of a run that was resumed; empty for one that was not."""
        resumes = self.recorded.resumes
        starts = [self.started_ms, *(each.began_ms for each in resumes)]
        ends = [*(each.ended_ms for each in resumes), self.recorded.finally_ms]
        steps = [0, *(each.step for each in resumes), self.recorded.newest_step]
        states = [*(_STATUS.get(each.ending, "lost") for each in resumes), self.status]
        found = [
            AttemptRow(at + 1, start, steps[at], steps[at + 1], _seconds(start, ends[at]), states[at])
            for at, start in enumerate(starts)
        ]
        return found if resumes else []

    @property
    def config(self) -> str:
        """YAML; empty where it was not recorded."""
        return self.recorded.file(CONFIG_FILE)

    @property
    def derived(self) -> list[Fact]:
        """Values that follow from the config."""
        params = self.recorded.params.items()
        return [Fact(key.removeprefix(_DERIVED).replace("_", " "), value) for key, value in params if _is_derived(key)]

    @property
    def params(self) -> list[Fact]:
        """The recorded params, for a run without its config."""
        return [
            Fact(key, value, is_code=True)
            for key, value in sorted(self.recorded.params.items())
            if not _is_derived(key)
        ]

    @property
    def command(self) -> str:
        """The command that started it; empty where it is not known."""
        return self.recorded.tags.get(metrics.COMMAND, "")

    @property
    def config_not_in_commit(self) -> str:
        """The config file, where the commit does not have it as it was; empty otherwise."""
        return config_not_in_commit(self.recorded.tags)

    @property
    def uses_recorded_config(self) -> bool:
        """True where the command alone does not start the run again."""
        return bool(self.config) and (bool(self.config_not_in_commit) or self.kind == "trial")

    @property
    def again(self) -> str:
        """Commands that start it again."""
        commit = self.recorded.tags.get(metrics.GIT_COMMIT)
        recorded = shlex.quote(str(self.recorded.folder / ARTIFACT_FOLDER / CONFIG_FILE))
        command = f"uv run paceline train {recorded}" if self.uses_recorded_config else self.command
        return "\n".join([*([f"git checkout {commit}"] if commit else []), command])

    @property
    def is_dirty(self) -> bool:
        """True where files had been changed since the commit."""
        return self.recorded.tags.get(metrics.GIT_DIRTY) == "true"

    def render(self) -> bytes:
        """Return the HTML file."""
        recorded = self.recorded
        stamp, slow = stamp_facts(recorded.tags), stragglers(recorded.tags)
        has_cost = self.ledger is not None and bool(self.ledger.allocated)
        pause = f"{seconds_text(recorded.paused_seconds)} between the attempts. The steps are those that were recorded."
        own = [
            PageSection("metrics", "Metrics"),
            PageSection("curves", "Curves", "Point at a line to see a value. Long curves keep their extremes."),
            PageSection("attempts", counted(len(self.attempts), "attempt"), pause) if self.attempts else None,
            PageSection("cost", "Cost") if has_cost else None,
            PageSection("speeds", "Conditions of the measured speed", "Speeds can be compared where these are alike.")
            if stamp or slow
            else None,
            PageSection("checkpoints", "Checkpoints"),
            PageSection("config", "Config"),
            PageSection("again", "Reproduce it"),
            PageSection("origin", "Origin"),
        ]
        page = Page(
            kind=self.kind,
            name=self.name,
            id=self.id,
            status=self.status,
            subtitle=self._subtitle(),
            tiles=list(self._tiles()),
            sections=[section for section in own if section is not None],
            warnings=recorded.warnings,
        )
        return render(
            "run.html",
            page,
            run=self,
            charts=run_charts(recorded.curves, [each.step for each in recorded.resumes]),
            stamp=stamp,
            stragglers=slow,
            cost=cost_values(self.ledger) if self.ledger is not None and has_cost else None,
            **origin_values(recorded, self._places()),
        )

    def _subtitle(self) -> str:
        began = time_text(self.started_ms)
        pause = f", {self._pause()}" if self.recorded.resumes else ""
        took = f"took {seconds_text(self.seconds)}{pause}" if self.seconds else ""
        return " · ".join(filter(None, [f"started {began}" if began else "", self.resumed, took]))

    def _pause(self) -> str:
        resumes = self.recorded.resumes
        return f"{seconds_text(self.recorded.paused_seconds)} of it between its {len(resumes) + 1} attempts"

    def _tiles(self) -> Iterator[Tile]:
        for row in [row for row in self.rows if row.key.startswith("val/")][:3]:
            best = f"best {metric_text(row.best[1], row.key)}" if row.best else ""
            yield Tile(row.key, metric_text(row.curve.newest[1], row.key), best)
        for key, (label, note) in _TILES.items():
            if (curve := self.recorded.curves.get(key)) is not None:
                # a resumed run measures its peak from its launch on: the highest one counts
                highest = curve.highest if key == metrics.PEAK_MEMORY_BYTES else None
                yield Tile(label, metric_text((highest or curve.newest)[1], key), note)
        yield from cost_tile(self.ledger)
        if self.seconds:
            # the command's own, with Ray, imports and the last upload, is longer, and is not recorded
            about = self._pause() if self.recorded.resumes else "from the first record to the last"
            yield Tile("wall time", seconds_text(self.seconds), about)

    def _places(self) -> list[Fact]:
        weights = str(self.outcome.get("weights_sha256") or "")
        note = " of the numbers, not of a file: compare it with weights_sha256 of another run"
        return [
            Fact("folder", str(self.folder), is_code=True),
            Fact("SHA-256 of the weights at the end", weights, is_code=True, note=note),
        ]


def run_report(found: FoundRun) -> RunReport:
    """Gather the report of a run or a trial. Changes nothing.

    Raises:
        EnvironmentFault: the run's file is damaged, or nothing was recorded.
    """
    content = RunFolder(found.folder).read()
    recorded = read_run(found.tracking)
    if not content and not recorded.name and not recorded.curves:
        raise EnvironmentFault(
            f"the {found} cannot be reported: {found.tracking} has no record and no journal",
            "no-record",
            path=found.tracking,
        )
    return RunReport(
        kind=found.kind,
        id=found.id,
        name=recorded.name or found.name,
        folder=found.folder,
        status=_status(content, recorded),
        recorded=recorded,
        outcome=read_outcome(found.tracking) or {},
        ledger=ledger_of(recorded),
        checkpoints=[_checkpoint(step, folder) for step, folder in numbered(found.checkpoints)],
    )


def _status(content: Mapping[str, Any], recorded: RecordedRun) -> str:
    state = recorded.tags.get(metrics.TRIAL_STATE, "")
    written = content.get("status")
    if written in ("finished", "failed", "interrupted"):
        return str(written)
    return state or _STATUS.get(recorded.status, "") or str(written or "unfinished")


def _checkpoint(step: int, folder: Path) -> Checkpoint:
    try:
        entries = json.loads((folder / MANIFEST).read_bytes())["files"]
        size = sum(int(entry["size_bytes"]) for entry in entries.values())
        weights = next((str(entry["sha256"]) for name, entry in entries.items() if name == "model.safetensors"), "")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Checkpoint(step, folder, None, "")
    return Checkpoint(step, folder, size, weights)


def _is_derived(key: str) -> bool:
    return key.startswith(_DERIVED)


def _seconds(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0) / 1000
