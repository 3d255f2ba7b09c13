"""What a sweep shows while it runs."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from time import process_time

import pytest
from rich.console import Console
from rich.live import Live

from paceline.sweeps import display
from paceline.sweeps.display import (
    LiveSweepListener,
    PlainSweepListener,
    SilentSweepListener,
    SweepListener,
    open_sweep_display,
    watched_sweep,
)
from paceline.sweeps.results.ranking import Objective
from paceline.sweeps.trials import Trial, TrialState

OBJECTIVES: list[Objective] = [("val/accuracy", "max")]


def trial(number: int, state: TrialState, accuracy: float | None = None) -> Trial:
    overrides = {"data.global_batch_size": 64 * number, "optimizer.lr_scaling": "[red]linear"}
    steps = {"pending": 0, "running": 250}.get(state, 1000)
    metrics = {} if accuracy is None else {"val/accuracy": accuracy}
    return Trial(
        f"{number:04}", overrides, state, "", metrics, steps=steps, total_steps=1000, samples_per_second=12345.6
    )


def sweep(total: int, ended: int, running: int) -> list[Trial]:
    return [
        trial(n, "finished", 0.5 + n / 10000)
        if n < ended
        else trial(n, "running" if n < ended + running else "pending")
        for n in range(total)
    ]


class Clock:
    """Time that passes when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in ("paceline.display", "paceline.sweeps.display"):
            monkeypatch.setattr(f"{module}.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Plain:
    """A plain listener and its lines without the time."""

    def __init__(self, total: int | None = None) -> None:
        self.console = Console(file=io.StringIO(), width=120, record=True, highlight=False)
        self.listener = PlainSweepListener(self.console, OBJECTIVES, total)

    def lines(self) -> list[str]:
        return [line.split(" s  ", 1)[1] for line in self.console.export_text().splitlines()]


@contextmanager
def live(total: int | None = None, width: int = 120) -> Iterator[tuple[LiveSweepListener, Console]]:
    console = Console(file=io.StringIO(), width=width, height=50, force_terminal=True, highlight=False)
    with Live(console=console, auto_refresh=False, transient=True) as screen:
        yield LiveSweepListener(console, screen, OBJECTIVES, "sweep [bold]x", total), console


def begun(listener: LiveSweepListener) -> LiveSweepListener:
    """One that has seen that nothing had begun: what it is told next has begun since."""
    listener.trials([])
    listener._drawn -= 1
    return listener


def drawn(listener: LiveSweepListener, console: Console) -> list[str]:
    """The lines under the bar as they stand on the screen."""
    lines = console.render_lines(listener._live.get_renderable(), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


# --- plain lines ---------------------------------------------------------------------------------------------------


def test_a_line_when_trials_have_ended_and_not_too_often(clock: Clock) -> None:
    plain = Plain()
    for ended in (0, 1, 2, 2):
        plain.listener.trials(sweep(8, ended, 2))
        clock.now += 1
    clock.now += 5
    plain.listener.trials(sweep(8, 2, 2))
    clock.now += 60
    plain.listener.trials(sweep(8, 2, 2))
    assert plain.lines() == [
        "1/8 trials, 2 running, best 0000 (global_batch_size=0, lr_scaling=[red]linear): val/accuracy 0.5",
        "2/8 trials, 2 running, best 0001 (global_batch_size=64, lr_scaling=[red]linear): val/accuracy 0.5001",
    ]


def test_the_last_line_is_never_left_out(clock: Clock) -> None:
    plain = Plain()
    for ended in (2, 3, 3):
        plain.listener.trials(sweep(3, ended, 0))
    assert [line.split(",")[0] for line in plain.lines()] == ["2/3 trials", "3/3 trials"]


def test_trials_that_are_still_to_be_made_count_in_the_total(clock: Clock) -> None:
    plain = Plain(total=32)
    plain.listener.trials([trial(1, "failed"), trial(2, "oom"), trial(3, "running")])
    assert plain.lines() == ["2/32 trials, 1 running, 1 failed, 1 out of memory"]


def test_stages_plans_and_events_are_lines() -> None:
    plain = Plain()
    plain.listener.stage("starting [red]Ray")
    plain.listener.planned([("trials", "32 on 2 slots")])
    plain.listener.event("warning", {"message": "slow [/]", "trial": "0007"})
    plain.listener.event("failed", {"reason": "no memory", "trial": "0008"})
    plain.listener.event("warning", {"message": "all"})
    assert plain.lines() == [
        "starting [red]Ray",
        "trials: 32 on 2 slots",
        "trial 0007: warning: slow [/]",
        "trial 0008: training failed: no memory",
        "warning: all",
    ]


def test_a_line_every_half_minute_tells_what_it_waits_for(clock: Clock) -> None:
    plain = Plain(total=3)
    plain.listener.stage("starting 2 worker groups")
    for _ in range(70):
        plain.listener.trials([])
        clock.now += 1
    for _ in range(70):
        plain.listener.trials([replace(trial(1, "running"), attempts=1)])
        clock.now += 1
    hint = "(usually 30 to 90 s on a small machine, once per sweep)"
    assert plain.lines() == [
        "starting 2 worker groups",
        f"starting 2 worker groups … 30 s {hint}",
        f"starting 2 worker groups … 60 s {hint}",
    ]


def test_the_best_of_several_seeds_names_no_seed(clock: Clock) -> None:
    plain = Plain()
    view = [
        Trial(f"{seed:04}", {"optimizer.lr": 0.1, "seed": seed}, "finished", metrics={"val/accuracy": 0.5})
        for seed in range(2)
    ]
    plain.listener.trials(view)
    assert plain.lines() == ["2/2 trials, best 0000 (lr=0.1): val/accuracy 0.5 ± 0 over 2 seeds"]


# --- on a terminal -------------------------------------------------------------------------------------------------


def test_the_table_shows_what_runs_and_what_ended_last(clock: Clock) -> None:
    with live() as (listener, console):
        begun(listener).trials(sweep(32, 4, 2))
        clock.now += 60
        listener.trials([*sweep(32, 8, 2)[:7], trial(7, "pruned", 0.3), *sweep(32, 8, 2)[8:]])
        lines = drawn(listener, console)
    assert lines[0].startswith(f"sweep [bold]x  {'━' * 7}{'┄' * 23}  8/32 trials, 2 running, 1 pruned")
    assert lines[0].endswith("5:52 left")
    assert lines[1].split() == ["trial", "setting", "step", "val/accuracy", "samples/s", "state"]
    assert [line.split()[0] for line in lines[2:9]] == ["0008", "0009", "0007", "0006", "0005", "0004", "0003"]
    assert " ".join(lines[2].split()) == "0008 global_batch_size=512, lr_scaling=[red]linear 250/1,000 12,346 running"
    pruned = "0007 global_batch_size=448, lr_scaling=[red]linear 1,000/1,000 0.3 12,346 pruned"
    assert " ".join(lines[4].split()) == pruned
    expected = "best so far: 0006 (global_batch_size=384, lr_scaling=[red]linear): val/accuracy 0.5006"
    assert lines[9:] == [expected]


def test_a_stage_and_its_time_are_shown_until_a_trial_begins(clock: Clock) -> None:
    with live(total=12) as (listener, console):
        listener.stage("starting [red]Ray")
        clock.now += 3
        assert drawn(listener, console) == ["sweep [bold]x  starting [red]Ray … 3 s"]
        listener.stage("starting 2 worker groups")
        left = [trial(0, "finished", 0.5), trial(1, "pending"), trial(2, "running")]
        listener.trials([])
        clock.now += 43
        hint = "(usually 30 to 90 s on a small machine, once per sweep)"
        assert drawn(listener, console) == [f"sweep [bold]x  0/12 trials  starting 2 worker groups … 43 s {hint}"]
        clock.now += 1
        listener.trials(left)
        assert "best so far: 0000" in drawn(listener, console)[-1]
        listener.stage("closing")
        assert "best so far: 0000" in drawn(listener, console)[-1]


def test_what_an_earlier_launch_has_left_is_no_beginning(clock: Clock) -> None:
    left = [trial(0, "finished", 0.5), replace(trial(1, "pending"), attempts=1, steps=250)]
    with live(total=4) as (listener, console):
        listener.stage("starting 1 worker group")
        for _ in range(2):
            listener.trials(left)
            clock.now += 10
            assert "1/4 trials  starting 1 worker group … " in drawn(listener, console)[0]
        listener.trials([left[0], replace(left[1], state="running")])  # it has a seat, and no workers yet
        assert "starting 1 worker group … 20 s" in drawn(listener, console)[0]
        clock.now += 1
        listener.trials([left[0], replace(left[1], state="running", attempts=2)])
        assert " 1/4 trials, 1 running" in drawn(listener, console)[0]


def test_the_time_left_counts_from_the_first_trial_and_is_told_once_one_has_ended(clock: Clock) -> None:
    with live() as (listener, console):
        pending = [trial(n, "pending") for n in range(12)]
        running = replace(trial(0, "running"), steps=0, attempts=1)
        listener.stage("starting 1 worker group")
        for view, seconds, text in [
            (pending, 90.0, "0/12 trials  starting 1"),
            ([running, *pending[1:]], 8.0, "0/12 trials, 1 running"),
            ([replace(running, steps=800), *pending[1:]], 2.0, "0/12 trials, 1 running"),
            ([trial(0, "finished", 0.5), *pending[1:]], 0.0, "1/12 trials  1:50 left"),
        ]:
            listener.trials(view)
            line = drawn(listener, console)[0]
            assert text in line
            assert line.endswith("left") == ("left" in text)
            clock.now += seconds


def test_it_is_drawn_a_few_times_a_second_and_at_the_end(clock: Clock) -> None:
    with live() as (listener, console):
        begun(listener)
        for ended in (0, 1, 2):
            listener.trials(sweep(4, ended, 1))
            clock.now += 0.1
        assert " 0/4 trials" in drawn(listener, console)[0]
        clock.now += 0.1
        listener.trials(sweep(4, 3, 1))
        assert " 3/4 trials" in drawn(listener, console)[0]
        listener.trials(sweep(4, 4, 0))
        assert " 4/4 trials" in drawn(listener, console)[0]


def test_a_narrow_terminal_shortens_the_setting_alone(clock: Clock) -> None:
    with live(width=70) as (listener, console):
        begun(listener).trials(sweep(4, 2, 1))
        lines = drawn(listener, console)
    assert max(map(len, lines)) <= 70
    assert lines[2].split()[-3:] == ["250/1,000", "12,346", "running"]
    assert "…" in lines[2]
    assert len(lines) == 6


def test_skipped_trials_do_not_shorten_the_time_left(clock: Clock) -> None:
    with live() as (listener, console):
        pending = [trial(n, "pending") for n in range(10)]
        begun(listener).trials([replace(pending[0], state="running", attempts=1), *pending[1:]])
        clock.now += 10
        listener.trials([trial(n, "skipped" if n < 6 else "finished" if n < 8 else "pending") for n in range(10)])
        assert drawn(listener, console)[0].endswith("8/10 trials, 6 skipped  0:10 left")


def test_a_thousand_trials_cost_little(clock: Clock) -> None:
    with live() as (listener, console):
        begun(listener).trials(sweep(1000, 300, 40))
        durations = []
        for ended in range(301, 321):
            view = sweep(1000, ended, 40)
            clock.now += 0.3
            begin = process_time()
            listener.trials(view)
            durations.append(process_time() - begin)
        lines = drawn(listener, console)
    assert len(lines) == 2 + 12 + 5 + 2
    assert lines[-2] == "and 28 more running"
    # ten times what it takes: other processes may be at work
    assert sorted(durations)[10] < 0.03


# --- where it is shown ---------------------------------------------------------------------------------------------


def test_nothing_in_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    with watched_sweep(OBJECTIVES) as listener:
        listener.stage("starting")
        listener.trials(sweep(2, 2, 0))
    assert isinstance(listener, SilentSweepListener)
    assert capfd.readouterr() == ("", "")


def test_lines_in_a_notebook(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with watched_sweep(OBJECTIVES) as listener, redirect_stdout(sys.stderr):
        listener.trials(sweep(2, 2, 0))
    out, err = capfd.readouterr()
    assert "2/2 trials, best 0001" in out
    assert err == ""


def test_live_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    with watched_sweep(OBJECTIVES, "sweep x") as listener:
        assert isinstance(listener, LiveSweepListener)


def test_plain_lines_on_stderr_and_the_result_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with open_sweep_display(OBJECTIVES, total_trials=4) as shown:
        listener: SweepListener = shown.listener
        listener.trials(sweep(2, 2, 0))
    shown.print_result([("sweep", "x/1"), ("", "more")])
    out, err = capfd.readouterr()
    assert "2/4 trials, best 0001" in err
    assert out == "sweep  x/1\n       more\n"


def test_the_bar_needs_no_signs_beyond_ascii(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(display, "BAR_WIDTH", 10)
    with live() as (listener, _):
        ascii_console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=120)
        listener.console = ascii_console
        begun(listener).trials(sweep(4, 2, 0))
        assert drawn(listener, ascii_console)[0].startswith("sweep [bold]x  #####-----  2/4 trials")
