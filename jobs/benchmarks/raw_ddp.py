"""The second part of scaling.py: Paceline on Ray, its loop without Ray, and the textbook DDP loop, which take turns.

Each arm is a group of processes that are up all the time, with one model, one order of samples and one optimizer. A
hook before the forward pass of the model, the same in every arm, lets none of them compute but while it has its turn.

driver:           start the arms  ->  rounds: a turn of each, in random order  ->  compare the final weights
each process:     see raw_arms.py
"""

import json
import multiprocessing
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil
from raw_arms import ARMS, RAY, WEIGHTS, Window, Work, run_arm

PROCESSES = multiprocessing.get_context("spawn")
START_SECONDS, TURN_SECONDS, END_SECONDS = 300.0, 300.0, 240.0
SETTLE_SECONDS = 0.05
"""Between two turns: what stood still may then catch up."""
REST_SECONDS, AT_REST = 60.0, 0.1
"""How long an arm that is up may still be busy, importing what it needs later; and the cores that it takes at rest."""


class ArmFailed(Exception):
    """A process of an arm failed, with the last lines that it wrote."""


class RunningArm:
    """An arm whose processes are up, and wait for their turn."""

    def __init__(self, name: str, work: Work, folder: Path) -> None:
        self.name, self.folder, self._work = name, folder, work
        folder.mkdir(parents=True)
        address = str(folder / "gate")
        self._server = socket.create_server(address, family=socket.AF_UNIX)
        ranks = range(work.workers if ARMS[name][1] else 1)
        arguments = [(name, work, address, folder, rank) for rank in ranks]
        self._processes = [PROCESSES.Process(target=run_arm, args=each) for each in arguments]
        for process in self._processes:
            process.start()
        self._pipes: list[tuple[socket.socket, Any]] = []

    def await_gate(self) -> None:
        """Wait until all ranks stand before their first turn.

        Raises:
            ArmFailed: a process ended before.
        """
        while len(self._pipes) < self._work.workers:
            self._await(self._server, START_SECONDS)
            connection, _ = self._server.accept()
            self._pipes.append((connection, connection.makefile("rw")))
        self._hear()

    def take_turn(self) -> Window:
        """Let all ranks train for a turn: the time of the slowest, and the CPU time of all together."""
        self._say(True)
        windows = [Window(*told) for told in self._hear()]
        return Window(max(each.seconds for each in windows), sum(each.cpu_seconds for each in windows))

    def finish(self) -> Path:
        """Let the arm come to its end; the file with its final weights."""
        self._say(False)
        for process in self._processes:
            process.join(END_SECONDS)
            if process.exitcode != 0:
                raise ArmFailed(self._failure(f"exit code {process.exitcode} at the end"))
        return self.folder / WEIGHTS

    def await_rest(self) -> None:
        """Wait until the arm's processes do next to nothing, since starting them is not what is measured."""
        deadline = monotonic() + REST_SECONDS
        is_busy = True
        while is_busy and monotonic() < deadline:
            before = self._cpu_seconds()
            sleep(1.0)
            is_busy = self._cpu_seconds() - before > AT_REST

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """For the length of the body, all processes of the arm, and those that they have started, are stopped."""
        stopped = self._tree()
        try:
            for each in stopped:
                with suppress(psutil.Error):
                    each.suspend()
            yield
        finally:
            for each in stopped:
                with suppress(psutil.Error):
                    each.resume()

    def _tree(self) -> list[psutil.Process]:
        found = []
        for process in self._processes:
            with suppress(psutil.Error):
                root = psutil.Process(process.pid)
                found += [*root.children(recursive=True), root]
        return found

    def _cpu_seconds(self) -> float:
        total = 0.0
        for each in self._tree():
            with suppress(psutil.Error):
                times = each.cpu_times()
                total += times.user + times.system
        return total

    def end(self) -> None:
        """End what is still running, with all that it has started."""
        for each in self._tree():
            with suppress(psutil.Error):
                each.kill()
        for process in self._processes:
            process.join(10)
        self._server.close()

    def _say(self, goes_on: bool) -> None:
        for _, pipe in self._pipes:
            print(json.dumps(goes_on), file=pipe)
            pipe.flush()

    def _hear(self) -> list[Any]:
        heard = []
        for connection, pipe in self._pipes:
            self._await(connection, TURN_SECONDS)
            line = pipe.readline()
            if not line:
                raise ArmFailed(self._failure("a process died"))
            heard.append(json.loads(line))
        return heard

    def _await(self, source: socket.socket, seconds: float) -> None:
        """Wait until there is something to read."""
        deadline = monotonic() + seconds
        while not wait([source], 0.5):
            if any(process.exitcode is not None for process in self._processes):
                raise ArmFailed(self._failure("a process ended"))
            if monotonic() > deadline:
                raise ArmFailed(self._failure(f"no answer within {seconds:g} s"))

    def _failure(self, reason: str) -> str:
        for process in self._processes:
            process.join(2)  # it may be about to say why
        logs = [file.read_text(errors="replace").splitlines()[-15:] for file in sorted(self.folder.glob("log-*"))]
        return "\n".join([f"{self.name}: {reason}", *(line for lines in logs for line in lines)])


def launch(work: Work, names: list[str], folder: Path, seed: int) -> tuple[dict[str, list[Window]], dict[str, float]]:
    """Start the arms, let them take their turns and end: the windows of each, and how far its final weights are from
    those of the first, 0 where they are equal to the bit.

    Raises:
        ArmFailed: one failed.
    """
    arms: dict[str, RunningArm] = {}
    draw = random.Random(seed)
    try:
        for number, name in enumerate(names):
            arms[name] = RunningArm(name, work, folder / str(number))
            arms[name].await_gate()  # one after the other: they would take each other's cores
            arms[name].await_rest()
        windows: dict[str, list[Window]] = {name: [] for name in names}
        for _ in range(work.turns):
            for name in draw.sample(names, len(names)):
                with _others_standing_still(arms, name):
                    windows[name].append(arms[name].take_turn())
        files = {name: arm.finish() for name, arm in arms.items()}
        return windows, {name: max_difference(file, files[names[0]]) for name, file in files.items()}
    finally:
        for arm in arms.values():
            arm.end()


@contextmanager
def _others_standing_still(arms: dict[str, RunningArm], name: str) -> Iterator[None]:
    """Ray is not to take time from the arms that do without. It stands still for one turn only: its processes look
    after each other, and would take a longer silence for death."""
    sleep(SETTLE_SECONDS)
    if name == RAY or RAY not in arms:
        yield
        return
    with arms[RAY].standing_still():
        yield


def max_difference(file: Path, other: Path) -> float:
    """Largest difference between the weights in two files; 0 when they are equal to the bit."""
    import torch
    from safetensors.torch import load_file

    mine, theirs = load_file(file), load_file(other)
    if mine.keys() != theirs.keys():
        raise ArmFailed(f"{file} and {other} hold different models")
    equal = all(torch.equal(mine[name], theirs[name]) for name in mine)
    return 0.0 if equal else max(float((mine[name].double() - theirs[name].double()).abs().max()) for name in mine)
