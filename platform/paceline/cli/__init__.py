"""The command line. It calls only public functions, and its imports at the top of a file must stay light.

Each command is a file of this package: its options, and the function that it calls.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from paceline.cli import (
    compare,
    doctor,
    evaluate,
    explain,
    export,
    init,
    lint,
    list_runs,
    plan,
    predict,
    report,
    scale,
    schema,
    submit,
    sweep,
    sync,
    train,
    tuneup,
    ui,
)
from paceline.cli.answer import discard_output
from paceline.cli.options import add_verbosity
from paceline.errors import (
    BAD_CONFIG,
    FAILED,
    INTERRUPTED,
    ConfigError,
    EnvironmentFault,
    PacelineError,
    RunFailed,
    coded,
)
from paceline.starting_folder import drop_starting_folder

COMMANDS = {
    "init": init,
    "train": train,
    "sweep": sweep,
    "tuneup": tuneup,
    "scale": scale,
    "plan": plan,
    "lint": lint,
    "list": list_runs,
    "compare": compare,
    "evaluate": evaluate,
    "predict": predict,
    "report": report,
    "export": export,
    "ui": ui,
    "sync": sync,
    "submit": submit,
    "doctor": doctor,
    "explain": explain,
    "schema": schema,
}
"""In the order of the help."""


class Parser(argparse.ArgumentParser):
    """Ends its errors with their code, as all messages do; its commands get parsers of the same class."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with 2."""
        super().error(coded(message, "command-line"))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code.

    0: ok, 1: failed, 2: config, 3: environment, 4: trials of a sweep failed, 130: interrupted.
    """
    drop_starting_folder()
    # a thread of Ray's that is left when this process ends must not connect to somebody else's cluster
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns its exit code."""
    options = parse(arguments)
    try:
        code = int(options.command(options))
        print(end="", flush=True)  # a closed pipe is noticed here, not when the process ends
        return code
    except PacelineError as error:
        return _report(error, getattr(options, "json", False))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return FAILED
    except OSError as error:  # a place of the file system that nothing has looked at before
        return _report(_fault_of(error), getattr(options, "json", False))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command and its options; overrides may stand before, between and after the flags.

    Raises:
        SystemExit: the command line is wrong; with code 2, once the reason has been printed.
    """
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
        import argcomplete

        argcomplete.autocomplete(parser)
    _refuse_unknown_command(parser, arguments)
    options, rest = parser.parse_known_args(list(arguments))
    overrides = [argument for argument in rest if "=" in argument and not argument.startswith("-")]
    unknown = [argument for argument in rest if argument not in overrides]
    takes_overrides = hasattr(options, "overrides")
    if unknown and takes_overrides:
        options.refuse(_about_unknown(unknown))
    if rest and not takes_overrides:
        options.refuse(_unrecognized(unknown or overrides))
    if overrides:
        options.overrides = [*options.overrides, *overrides]
    return options


def _refuse_unknown_command(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Name the nearest command, where argparse would list them all.

    Raises:
        SystemExit: there is no such command; with code 2.
    """
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    if named is not None and named not in COMMANDS:
        from paceline.config.hints import nearest

        near = nearest(named, list(COMMANDS))
        parser.error(f"no command {named!r}: {f'did you mean {near}?' if near else 'paceline --help lists them'}")


def _about_unknown(arguments: Sequence[str]) -> str:
    """Describe arguments that are neither flags of a command that takes overrides, nor `key.path=value`."""
    if not any(argument.startswith("-") for argument in arguments):
        return f"{' '.join(arguments)}: write key.path=value"
    return f"{_unrecognized(arguments)} (fields are set as key.path=value, such as trainer.epochs=3)"


def _unrecognized(arguments: Sequence[str]) -> str:
    return f"unrecognized arguments: {' '.join(arguments)}"


def build_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = Parser(prog="paceline", description=__import__("paceline").__doc__)
    parser.add_argument("--version", action="version", version=f"paceline {__import__('paceline').__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add_command(commands)
    for each in commands.choices.values():
        add_verbosity(each)
        each.set_defaults(refuse=each.error)
    return parser


def _fault_of(error: OSError) -> EnvironmentFault:
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        path = os.fsdecode(error.filename)
        return EnvironmentFault(f"{path}: {reason}", "file-system", path=path)
    try:
        os.getcwd()
    except OSError:
        text = "the working folder was removed, or moved: change to a folder that is there"
        return EnvironmentFault(text, "no-working-folder")
    return EnvironmentFault(reason, "file-system")


def _report(error: PacelineError, as_json: bool) -> int:
    """Report an error without Paceline's traceback: every problem of a config, or the failing rank's own traceback.

    Secrets are hidden: a problem contains its override, and an exception may contain arguments.
    """
    from paceline.redaction import redact

    if isinstance(error, ConfigError):
        for problem in error.problems:
            texts = {name: redact(getattr(problem, name)) for name in ("reason", "place", "hint")}
            print(f"error: {replace(problem, **texts)}", file=sys.stderr)
    else:
        if isinstance(error, RunFailed) and error.traceback_text:
            print(redact(error.traceback_text), file=sys.stderr)
        print(f"error: {coded(redact(error.message), error.code)}", file=sys.stderr)
    if as_json and error.exit_code != BAD_CONFIG:
        failure = {"error": redact(error.message), "code": error.code, "exit_code": error.exit_code}
        print(json.dumps({"status": "failed", **failure}))
    return error.exit_code
