"""What a sweep shows while it runs. The golden file has the lines and screens."""

import io
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from paceline.sweeps.display import (
    LiveSweepListener,
    PlainSweepListener,
    SilentSweepListener,
    open_sweep_display,
    watched_sweep,
)
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.states import TrialState
from paceline.sweeps.trial import Trial, TrialTable
from support.clock import FakeClock

OBJECTIVES: list[Objective] = [("val/accuracy", "max")]


def trial(number: int, state: TrialState, accuracy: float | None = None, **changes: Any) -> Trial:
    params = {"data.global_batch_size": 64 * number, "optimizer.lr_scaling": "[red]linear"}
    given = {"steps": {"pending": 0, "running": 250}.get(state, 1000), "total_steps": 1000, "samples_per_second": 12345}
    metrics = {} if accuracy is None else {"val/accuracy": accuracy}
    return Trial(f"{number:04}", params, state, "", metrics, **{**given, **changes})


def sweep(total: int, ended: int, running: int) -> list[Trial]:
    """Trials of which the first ones have ended, and the next ones run."""
    finished = [trial(n, "finished", 0.5 + n / 10000) for n in range(ended)]
    return finished + [trial(n, "running" if n < ended + running else "pending") for n in range(ended, total)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    for module in ("paceline.display", "paceline.sweeps.display"):
        monkeypatch.setattr(f"{module}.monotonic", clock)
    return clock


class Plain:
    """A plain listener and its lines without the time."""

    def __init__(self, total: int | None = None) -> None:
        self.console = Console(file=io.StringIO(), width=120, record=True, highlight=False)
        self.listener = PlainSweepListener(self.console, OBJECTIVES, total)

    def text(self) -> str:
        lines = self.console.export_text(clear=False).splitlines()
        return "\n".join(line.split(" s  ", 1)[1] for line in lines)


class Screen:
    """A listener on a terminal."""

    def __init__(self, total: int | None = None, width: int = 120) -> None:
        self.console = Console(file=io.StringIO(), width=width, height=50, force_terminal=True, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.listener = LiveSweepListener(self.console, self.live, OBJECTIVES, "sweep [bold]x", total)

    def lines(self) -> list[str]:
        """The lines under the bar as they stand on the screen."""
        rendered = self.console.render_lines(self.live.get_renderable(), pad=False)
        return ["".join(segment.text for segment in line).rstrip() for line in rendered]

    def show(self, view: Sequence[Trial], has_begun: bool = False) -> list[str]:
        """Hand trials over; returns the lines. With `has_begun`, after a view without any."""
        if has_begun:
            self.listener.trials(TrialTable())
            self.listener._drawn -= 1
        self.listener.trials(TrialTable(view))
        return self.lines()


def test_plain_line_when_trials_have_ended_and_not_too_often(clock: FakeClock, golden: Any) -> None:
    plain = Plain()
    # two lines are some seconds apart, but for the last one
    for ended, seconds in [(0, 1), (1, 1), (2, 1), (2, 6), (2, 60), (7, 0), (8, 0), (8, 0)]:
        plain.listener.trials(TrialTable(sweep(8, ended, 2)))
        clock.now += seconds
    assert re.findall(r"^\d/8", plain.text(), re.M) == ["1/8", "2/8", "7/8", "8/8"]
    golden(plain.text())


def test_plain_lines_of_stages_events_and_totals(clock: FakeClock, golden: Any) -> None:
    plain = Plain(total=32)
    plain.listener.stage("starting [red]Ray")
    plain.listener.planned([("trials", "32 on 2 slots")])
    plain.listener.event("warning", {"code": "slow", "message": "slow [/]", "trial": "0007"})
    plain.listener.event("failed", {"reason": "no memory", "trial": "0008", "code": "run-failed"})
    plain.listener.event("warning", {"message": "all", "code": "not-written"})
    plain.listener.trials(TrialTable([trial(1, "failed"), trial(2, "oom"), trial(3, "running")]))
    seeds = [Trial(f"{n:04}", {"optimizer.lr": 0.1, "seed": n}, "finished", "", {"val/accuracy": 0.5}) for n in (4, 5)]
    clock.now += 10
    plain.listener.trials(TrialTable([trial(1, "failed"), trial(2, "oom"), *seeds]))
    assert re.findall(r"^\d/32", plain.text(), re.M) == ["2/32", "4/32"]
    golden(plain.text())


def test_plain_line_every_half_minute_until_a_trial_begins(clock: FakeClock, golden: Any) -> None:
    plain = Plain(total=3)
    plain.listener.stage("starting 2 worker groups")
    for view in ([], [trial(1, "running", attempts=1)]):
        for _ in range(70):
            plain.listener.trials(TrialTable(view))
            clock.now += 1
    golden(plain.text())


def test_table_shows_running_and_newest_ended_trials(clock: FakeClock, golden: Any) -> None:
    shown = Screen()
    shown.show(sweep(32, 4, 2), has_begun=True)
    clock.now += 60
    lines = shown.show([*sweep(32, 8, 2)[:7], trial(7, "pruned", 0.3), *sweep(32, 8, 2)[8:]])
    assert [line.split()[0] for line in lines[2:9]] == ["0008", "0009", "0007", "0006", "0005", "0004", "0003"]
    golden("\n".join(lines))


def test_long_table_is_cut_and_a_narrow_one_shortens_the_setting_alone() -> None:
    lines = Screen().show(sweep(1000, 300, 40), has_begun=True)
    ids = [line.split()[0] for line in lines[2:] if line[:4].isdigit()]
    assert ids == [f"0{n}" for n in (*range(300, 312), *range(299, 294, -1))]
    assert "28" in lines[-2]  # more that run
    lines = Screen(width=70).show(sweep(4, 2, 1), has_begun=True)
    assert max(map(len, lines)) <= 70
    assert lines[2].split()[-3:] == ["250/1,000", "12,345", "running"]
    assert "…" in lines[2]


def test_stage_and_its_time_are_shown_until_a_trial_begins(clock: FakeClock, golden: Any) -> None:
    shown, screens = Screen(total=12), []
    shown.listener.stage("starting [red]Ray")
    clock.now += 3
    screens += shown.lines()
    shown.listener.stage("starting 2 worker groups")
    shown.listener.trials(TrialTable())
    clock.now += 43
    screens += shown.lines()
    golden("\n".join(screens))
    clock.now += 1
    table = shown.show([trial(0, "finished", 0.5), trial(1, "pending"), trial(2, "running")])
    assert len(table) > 4
    shown.listener.stage("closing")
    assert shown.lines() == table


def test_trials_of_an_earlier_launch_are_no_beginning(clock: FakeClock) -> None:
    left = [trial(0, "finished", 0.5), trial(1, "pending", attempts=1, steps=250)]
    shown = Screen(total=4)
    shown.listener.stage("starting 1 worker group")
    # in the last view it has a slot, and no workers yet
    for view in (left, left, [left[0], replace(left[1], state="running")]):
        [line] = shown.show(view)
        assert "1/4 trials  starting 1 worker group … " in line
        clock.now += 10
    assert " 1/4 trials, 1 running" in shown.show([left[0], replace(left[1], state="running", attempts=2)])[0]


def test_time_left_counts_from_the_first_trial_and_over_those_that_are_trained(clock: FakeClock) -> None:
    shown = Screen()
    pending = [trial(n, "pending") for n in range(12)]
    running = trial(0, "running", steps=0, attempts=1)
    for first, seconds in [(pending[0], 90.0), (running, 8.0), (replace(running, steps=800), 2.0)]:
        assert "left" not in shown.show([first, *pending[1:]])[0]
        clock.now += seconds
    finished = [trial(n, "finished", 0.5) for n in range(2)]
    assert shown.show([finished[0], *pending[1:]])[0].endswith(" 1:50 left")
    clock.now += 10
    skipped = [trial(n, "skipped") for n in range(4, 12)]
    assert shown.show([*finished, *pending[2:4], *skipped])[0].endswith("10/12 trials, 8 skipped  0:20 left")


def test_display_fits_where_it_is_shown(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    with watched_sweep(OBJECTIVES) as listener:  # in a pipe
        listener.trials(TrialTable(sweep(2, 2, 0)))
    assert isinstance(listener, SilentSweepListener)
    assert capfd.readouterr() == ("", "")
    with open_sweep_display(OBJECTIVES, total_trials=4) as shown:  # of a command
        shown.trials(TrialTable(sweep(2, 2, 0)))
    out, err = capfd.readouterr()
    assert (out, "2/4" in err) == ("", True)
    with monkeypatch.context() as patch:
        patch.setattr(Console, "is_terminal", True)
        with watched_sweep(OBJECTIVES, "sweep x") as listener:
            assert isinstance(listener, LiveSweepListener)
    capfd.readouterr()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with watched_sweep(OBJECTIVES) as listener, redirect_stdout(sys.stderr):
        listener.trials(TrialTable(sweep(2, 2, 0)))
    out, err = capfd.readouterr()
    assert ("2/2" in out, err) == (True, "")
