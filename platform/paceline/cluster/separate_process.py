"""Work on a config in a separate process: its input, its answer, its errors, and a time limit for the user's code.

The process itself keeps the time, in a thread of the interpreter that needs no lock of Python's; what hangs may hold
it. A process that is ended so has written down where it was.
"""

import faulthandler
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, NoReturn

from paceline.cluster.worker_spec import WorkerSpec
from paceline.config.experiment import ExperimentConfig
from paceline.config.imports import objects_in, user_folders
from paceline.config.own_files import is_own, shown
from paceline.errors import (
    ConfigError,
    EnvironmentFault,
    PacelineError,
    Problem,
    RunFailed,
    TrainingError,
    UnusableCode,
)
from paceline.process_end import end_process, end_with_starter

_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class SeparateProcess:
    """A process of `python -m module` that gets a config and options, and answers once.

    Args:
        module: calls `answer` as its main program.
        options: plain values.
        environment: variables that the process has beside this one's.
    """

    def __init__(
        self, module: str, config: ExperimentConfig, options: Any, environment: dict[str, str] | None = None
    ) -> None:
        objects = objects_in(config.model_dump())
        worker_spec = WorkerSpec(config.model_dump_json(), import_folders=user_folders(), objects=objects)
        payload = pickle.dumps((worker_spec.travelling() if objects else worker_spec, options))
        self._left_behind = tempfile.TemporaryFile()  # noqa: SIM115  # `end` closes it
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start(module, environment or {})
            self._send(payload)
        except BaseException:
            self.end()
            raise

    def _start(self, module: str, environment: dict[str, str]) -> None:
        """Start it with SIGINT held back, which it inherits: Ctrl-C reaches it, too, and may do so before it could say
        what is to become of it. We are interrupted, and end it. The same holds for a SIGHUP that we do not die of."""
        descriptor = self._left_behind.fileno()
        is_handled = signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
        own = {signal.SIGINT, signal.SIGHUP} if is_handled else {signal.SIGINT}
        held = signal.pthread_sigmask(signal.SIG_BLOCK, own)
        try:
            self._process = _popen(module, descriptor, {**os.environ, **environment})
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)

    def _send(self, payload: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, as its answer will tell
            self._process.stdin.write(payload)
            self._process.stdin.close()

    def answer(self, timeout_seconds: float) -> Any:
        """Return what it found; ends the process.

        Raises:
            PacelineError: what it raised.
            EnvironmentFault: it died, or took too long.
            TookTooLong: something of the user's did, see `hanging.at_most`.
        """
        assert self._process is not None
        try:
            self._process.stdin = None  # closed already, which `communicate` does not expect
            text, _ = self._process.communicate(timeout=timeout_seconds if timeout_seconds < inf else None)
        except subprocess.TimeoutExpired:
            told = f"it took more than {timeout_seconds:.0f} s to find out"
            raise EnvironmentFault(told, "took-too-long", seconds=timeout_seconds) from None
        finally:
            self.end()
        if not text:
            exit_code = self._process.returncode
            died = EnvironmentFault(_how_it_died(exit_code), "process-died", exit_code=exit_code)
            raise hang_of(self._final_report) or died
        told = json.loads(text)
        if "error" in told:
            raise _error(told["error"])
        return told["answer"]

    def end(self) -> None:
        """End the process, if it has not ended."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        if not self._left_behind.closed:
            self._left_behind.seek(0)
            self._final_report = self._left_behind.read().decode(errors="replace")
            self._left_behind.close()


def _how_it_died(exit_code: int) -> str:
    what = "the process that was to find out"
    if exit_code == -signal.SIGKILL:
        return f"{what} was killed; it may have run out of memory"
    if exit_code < 0:
        name = next((each.name for each in signal.Signals if each == -exit_code), f"signal {-exit_code}")
        is_crash = name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGILL", "SIGFPE")
        return f"{what} was ended by {name}{': a library has crashed, see the output above' if is_crash else ''}"
    return f"{what} ended with code {exit_code} and without an answer"


def _popen(module: str, descriptor: int, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(descriptor), str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        pass_fds=(descriptor,),
    )


def answer(work: Callable[[ExperimentConfig, Any], Any]) -> NoReturn:
    """The main program of such a process. What the user's code prints goes to stderr.

    Args:
        work: takes the config and the options; gives plain JSON values.
    """
    # nobody takes the answer once the starter has been killed, and this would compute beside the next process
    end_with_starter(int(sys.argv[2]))
    leave_behind_in(int(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's library logs every start
    try:
        worker_spec, options = _read_task()
        told = {"answer": work(worker_spec.config(), options)}
    except Exception as error:
        told = {"error": _error_content(error)}
    with suppress(BrokenPipeError):  # nobody waits for it any more
        out.write(json.dumps(told))
        out.close()
    end_process(0)


def _read_task() -> tuple[WorkerSpec, Any]:
    try:
        worker_spec, options = pickle.load(sys.stdin.buffer)
    except EOFError:  # whoever started it was interrupted before it could say
        sys.exit(1)
    return worker_spec, options


def _error_content(error: Exception) -> dict[str, Any]:
    if isinstance(error, ConfigError):
        return {"kind": "ConfigError", "problems": [vars(problem) for problem in error.problems]}
    if isinstance(error, PacelineError):
        return {"kind": type(error).__name__, "text": error.message, "code": error.code, "fields": _plain(error.fields)}
    return {"kind": "", "text": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _error(told: dict[str, Any]) -> PacelineError:
    if told["kind"] == "ConfigError":
        return ConfigError([Problem(**problem) for problem in told["problems"]])
    for kind in (EnvironmentFault, TrainingError, UnusableCode):
        if told["kind"] == kind.__name__:
            return kind(told["text"], told["code"], **told["fields"])
    failed = RunFailed(told["text"], told.get("traceback", ""))
    failed.code, failed.fields = told.get("code") or failed.code, told.get("fields", {})
    return failed


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """The fields of an error as JSON takes them."""
    return dict(json.loads(json.dumps(fields, default=str)))


_file: int | None = None


class TookTooLong(EnvironmentFault):
    """Something of the user's did not come to its end."""

    def __init__(self, doing: str, seconds: float, place: str, function: str) -> None:
        """Args:
        place: `file:line` of the user's code, if any of it is on the stack.
        function: in which that is.
        """
        self.reason = f"{doing} took more than {seconds:g} s"
        self.place = place
        super().__init__(
            f"{self.reason}, and was given up: it was at {place}, in {function}",
            "took-too-long",
            doing=doing,
            seconds=seconds,
            place=place,
            function=function,
        )


def leave_behind_in(descriptor: int) -> None:
    """Say where this separate process is to write where it was."""
    global _file
    _file = descriptor


@contextmanager
def at_most(seconds: float, doing: str) -> Iterator[None]:
    """End the process when the body takes longer; not within itself.

    Args:
        doing: what the body does, for the message, such as `loading the data`.
    """
    assert _file is not None, "only a separate process may call this"
    os.write(_file, f"{json.dumps([doing, seconds])}\n".encode())
    faulthandler.dump_traceback_later(seconds, exit=True, file=_file)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def hang_of(left_behind: str) -> TookTooLong | None:
    """Return what ended a process, by what it has left behind; None when it was not this.

    The main thread's stack comes last, its innermost frame first.
    """
    told, timeout, stacks = left_behind.rpartition("Timeout (")
    if not timeout:
        return None
    doing, seconds = json.loads(told.splitlines()[-1])
    frames = _FRAME.findall(stacks.rpartition("Thread 0x")[2]) or [("<unknown>", "0", "<unknown>")]
    file, line, function = next((frame for frame in frames if is_own(frame[0])), frames[0])
    return TookTooLong(doing, seconds, shown(file, int(line)), function)
