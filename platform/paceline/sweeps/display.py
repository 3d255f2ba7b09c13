"""Display of a running sweep: a bar and a table on a terminal, plain lines elsewhere; like `paceline.display`."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from paceline.display import PlainListener, QuietListener, Waiting, event_text
from paceline.redaction import redact, redact_tree
from paceline.reports.text import number_text
from paceline.sweeps.listener import SilentSweepListener, SweepListener
from paceline.sweeps.results import labels, ranking, result_text
from paceline.sweeps.results.ranking import BestSetting, Objective, best_seed
from paceline.sweeps.trial import Trial, TrialTable, axis_keys, planned_order

PLAIN_LINE_SECONDS = 5.0
PLAIN_WAIT_SECONDS = 30.0
"""Time between two lines about the current wait before the first trial begins."""
REFRESH_SECONDS = 0.25
REFRESHES = 2.0
"""Times a second that the display is drawn again when nothing is reported: the seconds of a wait continue."""
RUNNING_ROWS = 12
"""Running trials that are shown, at most."""
ENDED_ROWS = 5
"""Newest ended trials that are shown, at most."""
BAR_WIDTH = 30
GAP = "  "
GROUPS_HINT = "usually 30 to 90 s on a small machine, once per sweep"
_COUNTED = ("running", "paused", "pruned", "failed", "oom", "diverged", "skipped", "predicted_oom")
"""States whose number of trials is shown next to that of all ended trials."""


class Beginning:
    """Start time of this launch's first trial, and the work that was done before it.

    Trials left by an earlier launch already have attempts and steps.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.work = 0.0
        self.trained = 0
        self._left: dict[str, tuple[int, int]] | None = None

    def is_over(self, view: TrialTable, now: float) -> bool:
        """Return True if a trial has begun; records the time and the work at its start."""
        if self.since is not None:
            return True
        if self._left is None:
            self._left = {trial.id: (trial.attempts, trial.steps) for trial in view}
        if any((trial.attempts, trial.steps) > self._left.get(trial.id, (0, 0)) for trial in view):
            self.since, self.work, self.trained = now, view.work_done, view.num_trained
        return self.since is not None


@contextmanager
def open_sweep_display(
    objectives: Sequence[Objective],
    title: str = "sweep",
    total_trials: int | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> Iterator[SweepListener]:
    """Open the display that fits stderr: live on a terminal, plain lines in a pipe or a log.

    Args:
        objectives: metrics and their directions, the most important one first.
        title: text before the bar.
        total_trials: number of trials, if the search creates them one after another.
        quiet: show warnings only.
        verbose: plain lines on a terminal too, one for each trial that ends.
    """
    console = Console(stderr=True, highlight=False)
    if quiet:
        yield QuietSweepListener(console)
        return
    if verbose or not console.is_terminal:
        yield PlainSweepListener(console, objectives, total_trials, verbose)
        return
    with Live(console=console, refresh_per_second=REFRESHES, transient=True) as live:
        yield LiveSweepListener(console, live, objectives, title, total_trials)


@contextmanager
def watched_sweep(
    objectives: Sequence[Objective], title: str = "sweep", total_trials: int | None = None
) -> Iterator[SweepListener]:
    """Watch a sweep from Python: a live table on a terminal, lines in a notebook's cell, only warnings elsewhere.

    The arguments are those of `open_sweep_display`.
    """
    if Console().is_jupyter:
        # as for a single run: by file, since Ray's part redirects stdout
        console = Console(file=sys.stdout, force_jupyter=False, highlight=False)
        yield PlainSweepListener(console, objectives, total_trials)
    elif Console(stderr=True).is_terminal:
        with open_sweep_display(objectives, title, total_trials) as listener:
            yield listener
    else:
        yield QuietSweepListener(Console(stderr=True, highlight=False))


class QuietSweepListener(QuietListener, SilentSweepListener):
    """One line per warning and failure, after the trial that it is about."""

    def text_of(self, kind: str, details: Mapping[str, Any]) -> str:
        """Return an event as a line of text."""
        return _event_text(kind, details)


class PlainSweepListener(PlainListener):
    """One line for each stage and event, and one every few seconds when trials have ended.

    Args:
        verbose: also a line for each trial that ends.
    """

    def __init__(
        self,
        console: Console,
        objectives: Sequence[Objective],
        total_trials: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(console, verbose)
        self.objectives = objectives
        self._total = total_trials or 0
        self._told = 0
        self._num_shown = self._num_ranked = 0
        """Counts the ended trials that have had their line, and that were compared with the best one."""
        self._best_setting = BestSetting(objectives)
        self._last_line = -PLAIN_LINE_SECONDS
        self._beginning = Beginning()
        self._waiting = Waiting("", monotonic())
        self._last_wait = self._waiting.since

    def stage(self, text: str) -> None:
        """Print the stage; until the first trial begins, also the reason for the wait."""
        super().stage(text)
        self._waiting = Waiting(text, monotonic(), hint=GROUPS_HINT if "worker group" in text else "")
        self._last_wait = self._waiting.since

    def trials(self, view: TrialTable) -> None:
        """Print how the sweep stands when trials have ended since the last line, which is some seconds ago."""
        now, ended = monotonic(), view.num_ended
        if self.verbose and ended > self._num_shown:
            self._show_ended(view)
        self._show_wait(self._beginning.is_over(view, now), now)
        is_last = ended == self._planned(view)
        if ended <= self._told or (now - self._last_line < PLAIN_LINE_SECONDS and not is_last):
            return
        self._told, self._last_line = ended, now
        best = self._best_text(view)
        self._line(self._counts_text(view) + (f", best {best}" if best else ""))

    def event(self, kind: str, details: Mapping[str, Any]) -> None:
        """Print an event, preceded by its trial."""
        self._line(_event_text(kind, details))

    def _show_ended(self, view: TrialTable) -> None:
        ended = [view.by_id(trial_id) for trial_id in view.ended_ids[self._num_shown :]]
        self._num_shown += len(ended)
        names = labels.short_names(axis_keys([*view[:1], *ended]))
        for trial in ended:
            value = ranking.value_of(trial, self.objectives[0][0])
            result = "" if value is None else f", {self.objectives[0][0]} {number_text(value)}"
            setting = labels.setting_text(redact_tree(trial.params), names)
            self._line(f"trial {trial.id} ({setting}): {labels.outcome_text(trial.state, trial.broken)}{result}")

    def _show_wait(self, has_begun: bool, now: float) -> None:
        if not has_begun and self._waiting.text and now - self._last_wait >= PLAIN_WAIT_SECONDS:
            self._last_wait = now
            self._line(str(self._waiting))

    def _counts_text(self, view: TrialTable) -> str:
        counts = result_text.states_text(view.counts, _COUNTED, view.num_infeasible)
        return f"{view.num_ended}/{self._planned(view)} trials{', ' if counts else ''}{counts}"

    def _planned(self, view: TrialTable) -> int:
        return max(len(view), self._total)

    def _best_text(self, view: TrialTable) -> str:
        for trial_id in view.ended_ids[self._num_ranked :]:
            self._best_setting.add(view.by_id(trial_id))
        self._num_ranked = view.num_ended
        best = self._best_setting.summary()
        if best is None:
            return ""
        names = labels.short_names(axis_keys(best.trials))
        return redact(result_text.summary_text(best_seed(best, self.objectives), best.spreads, names))


def _event_text(kind: str, details: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in details.items() if key != "trial"}
    return (f"trial {details['trial']}: " if "trial" in details else "") + event_text(kind, rest)


class LiveSweepListener(PlainSweepListener):
    """Lines for stages and events above a bar over all trials and a table of those that run or ended last."""

    def __init__(
        self,
        console: Console,
        live: Live,
        objectives: Sequence[Objective],
        title: str = "sweep",
        total_trials: int | None = None,
    ) -> None:
        super().__init__(console, objectives, total_trials)
        self._live = live
        self._title = title
        self._drawn = -REFRESH_SECONDS

    def stage(self, text: str) -> None:
        """Print the stage, and show under the lines for how long it continues, until the first trial begins."""
        super().stage(text)
        if self._beginning.since is None:
            self._live.update(replace(self._waiting, before=f"{self._title}  "), refresh=True)

    def trials(self, view: TrialTable) -> None:
        """Draw the trials again, a few times a second at most."""
        now, ended = monotonic(), view.num_ended
        if now - self._drawn < REFRESH_SECONDS and ended < self._planned(view):
            return
        self._drawn = now
        has_begun = self._beginning.is_over(view, now)
        self._live.update(self._drawing(view, now) if has_begun else self._opening(view), refresh=True)

    def _opening(self, view: TrialTable) -> RenderableType:
        """Return the display before the first trial begins: the number of trials, and the reason for the wait."""
        if not self._waiting.text:
            return Text(f"{self._title}  {self._counts_text(view)}")
        return replace(self._waiting, before=f"{self._title}  {view.num_ended}/{self._planned(view)} trials  ")

    def _drawing(self, view: TrialTable, now: float) -> Text:
        """Everything as one text: rich's own tables and bars take several times as long."""
        best = self._best_text(view)
        text = Text(no_wrap=True, overflow="ellipsis")
        self._add_bar(text, view, now)
        self._add_table(text, view)
        hidden = view.counts["running"] - RUNNING_ROWS
        text.append(f"and {hidden} more running\n" if hidden > 0 else "", "dim")
        none = "each finished trial breaks a constraint" if view.counts["finished"] else "none has finished yet"
        return text.append(f"best so far: {best or none}")

    def _add_bar(self, text: Text, view: TrialTable, now: float) -> None:
        full = BAR_WIDTH * view.num_ended // max(self._planned(view), 1)
        done, missing = "#-" if self.console.options.ascii_only else "━┄"
        left = self._seconds_left(view, now)
        text.append(self._title, "bold").append("  ")
        text.append(done * full, "green").append(missing * (BAR_WIDTH - full), "dim")
        text.append(f"  {self._counts_text(view)}{'' if left is None else f'  {_clock_text(left)} left'}\n")

    def _seconds_left(self, view: TrialTable, now: float) -> float | None:
        """None until a trial has ended since the first one began: the time before says nothing about the rest."""
        begin = self._beginning
        if begin.since is None or view.num_trained <= begin.trained:
            return None
        done, total = view.work_done, self._planned(view) - view.num_untrained
        rate = (done - begin.work) / (now - begin.since) if now > begin.since else 0.0
        return (total - done) / rate if rate > 0 else None

    def _add_table(self, text: Text, view: TrialTable) -> None:
        running = sorted((trial for trial in view.open.values() if trial.state == "running"), key=planned_order)
        del running[RUNNING_ROWS:]
        shown = running + [view.by_id(trial_id) for trial_id in view.ended_ids[: -ENDED_ROWS - 1 : -1]]
        names = labels.short_names(axis_keys([*view[:1], *shown]))
        heading = ["trial", "setting", "step", self.objectives[0][0], "samples/s", "state"]
        rows = [heading, *(self._cells(trial, names) for trial in shown)]
        widths = [max(cell_len(row[column]) for row in rows) for column in range(len(heading))]
        # the one column that gives way when the terminal is narrow
        others = sum(widths) - widths[1] + len(GAP) * (len(widths) - 1)
        widths[1] = min(widths[1], max(self.console.width - others, len("setting")))
        for number, row in enumerate(rows):
            cells = [
                _fitted(*cell, is_right=2 <= column <= 4) for column, cell in enumerate(zip(row, widths, strict=True))
            ]
            text.append(f"{GAP.join(cells)}\n", "" if 0 < number <= len(running) else "dim")

    def _cells(self, trial: Trial, names: Mapping[str, str]) -> list[str]:
        value = ranking.value_of(trial, self.objectives[0][0])
        return [
            trial.id,
            labels.setting_text(redact_tree(trial.params), names),
            f"{trial.steps:,}/{f'{trial.total_steps:,}' if trial.total_steps else '?'}",
            "" if value is None else number_text(value),
            f"{trial.samples_per_second:,.0f}" if trial.samples_per_second else "",
            "infeasible" if trial.is_feasible is False else labels.state_text(trial.state),
        ]


def _fitted(text: str, width: int, is_right: bool) -> str:
    if cell_len(text) > width:
        return f"{set_cell_size(text, width - 1)}…"
    padding = " " * (width - cell_len(text))
    return padding + text if is_right else text + padding


def _clock_text(seconds: float) -> str:
    """A time in seconds as on a clock: `0:07`, `1:02:33`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
