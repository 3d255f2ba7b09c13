"""One process killed or stopped at a random moment of a command, which is then repeated until it succeeds."""

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from support.chaos.scene import Scene

MOST_COMMANDS = 4
"""How often a command may be given until it has to succeed."""
STOP_SECONDS = (5.0, 60.0)
STOPPED_SHARE = 0.3
"""How many of the victims are stopped rather than killed."""


@dataclass(frozen=True)
class Chaos:
    """What happens to a command; the same for a seed."""

    seed: int
    victim: str
    """Role of the process, see `process_tree`; `driver` and `server` besides."""
    moment: float
    """When, as a share of the duration of the undisturbed command."""
    stop_seconds: float
    """How long the process is stopped; 0 for one that is killed."""
    choice: float
    """Which of several processes of the role, from 0 to 1."""

    @classmethod
    def of_seed(cls, seed: int, victims: Sequence[str]) -> "Chaos":
        """Draw from a seed; one after the other, seeds take each of the victims."""
        chooser = random.Random(seed)
        is_stopped = chooser.random() < STOPPED_SHARE
        return cls(
            seed,
            victims[seed % len(victims)],
            chooser.uniform(0.05, 1.0),
            chooser.uniform(*STOP_SECONDS) if is_stopped else 0.0,
            chooser.random(),
        )

    def earlier(self, attempt: int) -> "Chaos":
        """Return the same at an earlier moment: when the victim had ended before its moment came."""
        return replace(self, moment=self.moment * 0.7**attempt)


@dataclass
class Outcome:
    """What happened, and how the command recovered."""

    chaos: Chaos
    struck_seconds: float | None = None
    """When the victim was hit, from the start of the first command; None where it was not there in time."""
    exit_codes: tuple[int, ...] = ()
    recovery_seconds: float | None = None
    """From the blow (the end of the stop) until each run that was training has a new point, or the command's end."""
    result: dict[str, Any] | None = None
    """The JSON of the command that succeeded; None where none did."""

    @property
    def record(self) -> dict[str, Any]:
        """What the table of all seeds shows, see `chaos.table`."""
        return {**asdict(self), "result": None}


def play(chaos: Chaos, scene: Scene, duration_seconds: float) -> Outcome:
    """Give the command, hit the victim, and give the command again until it succeeds.

    Args:
        duration_seconds: of the undisturbed command.
    """
    outcome, began = Outcome(chaos), time.monotonic()
    scene.start()
    hit_until = _strike(chaos, scene, began + chaos.moment * duration_seconds)
    if hit_until is not None:
        outcome.struck_seconds = hit_until - chaos.stop_seconds - began
    while True:
        outcome.exit_codes += (scene.end(),)
        if outcome.exit_codes[-1] == 0 or len(outcome.exit_codes) == MOST_COMMANDS:
            break
        scene.start()
    ended = time.monotonic()
    if outcome.exit_codes[-1] == 0:
        outcome.result = scene.answer()
    if hit_until is not None:
        outcome.recovery_seconds = scene.seconds_to_new_points(hit_until, ended)
    return outcome


def _strike(chaos: Chaos, scene: Scene, moment: float) -> float | None:
    """Wait for the moment, and for a victim if there is none then; the time at which it is dead or continues."""
    time.sleep(max(0.0, moment - time.monotonic()))
    while not (found := scene.find(chaos.victim)):
        if not scene.is_running:
            return None
        time.sleep(0.05)
    victims = sorted(found, key=lambda each: each.pid)
    victim = victims[int(chaos.choice * len(victims)) % len(victims)]
    with suppress(psutil.NoSuchProcess):
        if not chaos.stop_seconds:
            scene.kill(victim)
            return time.monotonic()
        victim.send_signal(signal.SIGSTOP)
        try:
            time.sleep(chaos.stop_seconds)
        finally:
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGCONT)
        return time.monotonic()
    return None
