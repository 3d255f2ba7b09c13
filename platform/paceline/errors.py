"""Every error that a user can meet, and the exit code that each one ends the command line with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

OK = 0
FAILED = 1
BAD_CONFIG = 2
BAD_ENVIRONMENT = 3
TRIALS_FAILED = 4
INTERRUPTED = 130


class PacelineError(Exception):
    """Base of all errors that Paceline raises on purpose.

    Args:
        message: what failed, why, and the next step.
        code: stable identifier of the kind of error, such as `cluster-too-small`.
        fields: the values that the message names, such as `asked=8, available=2`.
    """

    exit_code = FAILED
    """Exit code of the command line."""

    def __init__(self, message: str, code: str, **fields: object) -> None:
        super().__init__(message)
        self.code = code
        self.fields = fields

    @property
    def message(self) -> str:
        """The text without the code, to be part of another text."""
        return str(self.args[0])

    def __str__(self) -> str:
        return coded(self.message, self.code)

    def __reduce__(self) -> tuple[Any, ...]:
        # as it is, whatever arguments a subclass was made with
        return _restored, (type(self), self.args, self.__dict__)


def _restored(cls: type[PacelineError], args: tuple[object, ...], state: dict[str, object]) -> PacelineError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


def coded(text: str, code: str) -> str:
    """Return the text of an error or a warning with its code at the end, as every message that a user sees has it.

    `paceline explain CODE` prints the section of a code.
    """
    return f"{text.rstrip()} [{code}]"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a config file, an override or a command line."""

    code: str
    """Stable identifier of the kind of problem, such as `unknown-key`."""
    reason: str
    """Description of the problem, in one sentence."""
    key: str = ""
    """Dotted key that the problem is about, such as `trainer.precision`; empty for the file as a whole."""
    place: str = ""
    """`file:line:column`, or `override` and its position; empty when the value came from Python."""
    hint: str = ""
    """The hint or the nearest right value, when one is known."""

    def __str__(self) -> str:
        hint = f"\n    hint: {self.hint}" if self.hint else ""
        return f"{coded(self._where + self.reason, self.code)}{hint}"

    @property
    def message(self) -> str:
        """The text on one line and without the code, to be part of another text."""
        return f"{self._where}{self.reason}{f' ({self.hint})' if self.hint else ''}"

    @property
    def _where(self) -> str:
        return "".join(f"{part}: " for part in (self.place, self.key) if part)


class ConfigError(PacelineError, ValueError):
    """The config file, an override or the command line is wrong. Carries every problem found, not only the first.

    Its code is that of the first problem.
    """

    exit_code = BAD_CONFIG

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.message for problem in self.problems), self.problems[0].code)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


class EnvironmentFault(PacelineError, RuntimeError):
    """The config is right, but this environment lacks something: GPUs, cores, MLflow, data, disk."""

    exit_code = BAD_ENVIRONMENT


class TrainingError(PacelineError, RuntimeError):
    """Training cannot start or continue. The message has the whole reason: a traceback adds nothing."""

    exit_code = FAILED


class UnusableCode(PacelineError, TypeError):
    """User code returned, or the data hold, something that training cannot use."""

    exit_code = FAILED


class RunFailed(PacelineError, RuntimeError):
    """A run ended because training itself failed. The message carries the reason of the rank that failed first."""

    exit_code = FAILED

    def __init__(self, message: str, traceback_text: str = "", code: str = "run-failed") -> None:
        super().__init__(message, code)
        self.traceback_text = traceback_text
        """The failing rank's traceback, for the log; empty when the rank died without one."""


def text_of(error: BaseException) -> str:
    """Return the text of an error, without its code, to be part of another text.

    Works whatever the `__str__` of a user's own error does.
    """
    try:
        return error.message if isinstance(error, PacelineError) else str(error)
    except Exception as trouble:
        return f"(its text cannot be had: {type(trouble).__name__})"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text: Ray puts a traceback below it."""
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def last_line(error: BaseException) -> str:
    """Return the last line of an error's text: of an actor or a task, Ray puts the exception below its traceback."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
